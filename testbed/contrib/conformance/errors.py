"""What conformance suites raise."""

from __future__ import annotations

from testbed.errors import TestbedError


class Nonconforming(TestbedError, AssertionError):
    """An algorithm that does not do what its collective promises; the message has the case."""
