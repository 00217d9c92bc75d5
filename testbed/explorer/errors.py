"""Errors of the explorer room."""

from __future__ import annotations


class NothingFits(ValueError):
    """No configuration of a search fits; the message says which constraint keeps most of them out."""
