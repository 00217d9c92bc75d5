"""Errors of the fabric room."""

from __future__ import annotations

from testbed.errors import TestbedError


class FabricError(TestbedError):
    """The network could not be built as asked, or it broke."""
