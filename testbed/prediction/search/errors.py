"""Errors of the explorer room."""

from __future__ import annotations

from testbed.errors import BadInput


class NothingFits(BadInput):
    """No configuration of a search fits; the message says which constraint keeps most of them out."""
