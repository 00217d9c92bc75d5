"""Errors of the fabric room."""

from __future__ import annotations


class FabricError(Exception):
    """The network could not be built as asked, or it broke."""
