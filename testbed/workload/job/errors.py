"""Errors of running a job."""

from __future__ import annotations

from testbed.errors import TestbedError
from testbed.spec.errors import ConfigError, Problem


class RunError(TestbedError):
    """The error for a run that could not be completed; the message states which part failed, and how."""


def wrong_workload(field: str, found: str, expected: str) -> ConfigError:
    """Return an error for incompatible keys of a scenario's workload."""
    return ConfigError([Problem("scenario", None, f"workload.{field}", found, expected)])
