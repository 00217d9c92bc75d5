"""Conformance suites for built-in components and plug-ins: call one from your own tests."""

from testbed.contrib.conformance.algorithms import check_algorithm
from testbed.contrib.conformance.harness import Nonconforming
from testbed.contrib.conformance.transports import check_transport, transport_checks

__all__ = ["Nonconforming", "check_algorithm", "check_transport", "transport_checks"]
