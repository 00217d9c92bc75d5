"""Errors of the explorer room."""

from __future__ import annotations

from testbed.errors import BadInput, TestbedError


class NothingFits(BadInput):
    """No configuration of a search fits; the message says which constraint keeps most of them out."""


class TryingStopped(TestbedError):
    """A process that tried configurations was ended by somebody else."""
