"""What a scenario names under `transport.kind`: each says how it is made and what the rest of the testbed must know.

Each registers under its name in the module where it stands. Somebody's own is a class in a file of its own: see
docs/how-to/plugins/transports.md.
"""

from testbed.comm.transport.kinds.base import TRANSPORTS, TransportKind, transport_kind

__all__ = ["TRANSPORTS", "TransportKind", "transport_kind"]
