"""Access to the sockets at the bottom of a rank's transport, for measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from testbed.comm.transport.base import Transport, unwrap_transport
from testbed.comm.transport.event_loop import StallDetector
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.sockets import SocketOptions, WireCounts
from testbed.comm.transport.wire import ConnectionKey


class NoSocketView:
    """The stand-in for a transport of a plug-in without a `Mesh`: records of its connections stay empty."""

    counts_payload = False

    def __init__(self) -> None:
        self.stall_detector: StallDetector | None = None

    def socket_info(self) -> list[dict[str, Any]]:
        """Return no connections."""
        return []

    def snapshots(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """Return no connections."""
        return []

    def open_connections(self) -> frozenset[object]:
        """Return no connections."""
        return frozenset()

    def peer_counts(self) -> dict[int, WireCounts] | None:
        """Return None: unknown."""
        return None

    def socket_options(self) -> dict[tuple[int, object], SocketOptions]:
        """Return no connections."""
        return {}

    def wire_counts(self, peers: Mapping[int, WireCounts]) -> WireCounts | None:
        """Return None: unknown."""
        return None

    def describe_state(self, peers: Iterable[int]) -> str:
        """Return, as text, that the state is unknown."""
        return "its transport does not report the state of its connections"


SocketView = Mesh[Any] | NoSocketView


def find_socket_view(transport: Transport) -> SocketView:
    """Return the mesh that a transport is, or that is under its layers."""
    return unwrap_transport(transport, Mesh) or NoSocketView()
