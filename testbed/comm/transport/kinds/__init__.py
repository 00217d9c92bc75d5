"""The kinds of transport that a scenario names under `transport.kind`.

Each says how it is made and what the rest of the testbed must know about it, and registers under its name in its own
module. To add one from a file of your own, see docs/how-to/plugins/transports.md.
"""

from testbed.comm.transport.kinds.base import TRANSPORTS, TransportKind, transport_kind

__all__ = ["TRANSPORTS", "TransportKind", "transport_kind"]
