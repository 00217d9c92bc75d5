"""Errors of carrying out a job."""

from __future__ import annotations

from testbed.errors import TestbedError
from testbed.spec.errors import ConfigError, Problem


class RunError(TestbedError):
    """A run could not be brought to its end; says which part failed and how."""


def wrong_workload(field: str, found: str, expected: str) -> ConfigError:
    """Of a scenario's workload, where what it says together does not fit."""
    return ConfigError([Problem("scenario", None, f"workload.{field}", found, expected)])
