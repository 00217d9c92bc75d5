"""Errors of carrying out a job."""

from __future__ import annotations

from testbed.errors import TestbedError


class RunError(TestbedError):
    """A run could not be brought to its end; says which part failed and how."""
