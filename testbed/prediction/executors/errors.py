"""Errors of the engines room."""

from __future__ import annotations

from testbed.errors import TestbedError


class WorkStopped(TestbedError):
    """A process that did some of the work was ended by somebody else."""


class EngineError(TestbedError):
    """An engine that is not there, or whose workers are not as this machine is."""
