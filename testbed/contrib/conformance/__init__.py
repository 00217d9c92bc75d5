"""Conformance suites, for what the testbed has itself and for what anybody adds: call one in a test of your own."""

from testbed.contrib.conformance.algorithms import check_algorithm
from testbed.contrib.conformance.harness import Nonconforming
from testbed.contrib.conformance.transports import check_transport, transport_checks

__all__ = ["Nonconforming", "check_algorithm", "check_transport", "transport_checks"]
