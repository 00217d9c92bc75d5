"""Conformance suites: what the testbed asks of its own parts, for those who write one themselves."""

from testbed.testing.transports import check_transport, transport_checks

__all__ = ["check_transport", "transport_checks"]
