"""The sockets at the bottom of a rank's transport, for those who measure: a mesh of ours, or none that can be seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from testbed.comm.transport.base import Transport, unwrap_transport
from testbed.comm.transport.event_loop import StallDetector
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.sockets import SocketOptions, WireCounts
from testbed.comm.transport.wire import ConnectionKey


class NoSocketView:
    """In place of a mesh, where a transport of somebody's own has none: records of its connections stay empty."""

    counts_payload = False

    def __init__(self) -> None:
        self.stall_detector: StallDetector | None = None

    def socket_info(self) -> list[dict[str, Any]]:
        """No connections that can be seen."""
        return []

    def glances(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """No connections that can be seen."""
        return []

    def open_connections(self) -> frozenset[object]:
        """None that can be seen."""
        return frozenset()

    def peer_counts(self) -> dict[int, WireCounts] | None:
        """Not known."""
        return None

    def socket_options(self) -> dict[tuple[int, object], SocketOptions]:
        """No connections that can be seen."""
        return {}

    def wire_counts(self, peers: Mapping[int, WireCounts]) -> WireCounts | None:
        """Not known."""
        return None

    def state_words(self, peers: Iterable[int]) -> str:
        """For people who wonder why nothing comes."""
        return "its transport does not tell how its connections stand"


SocketView = Mesh | NoSocketView


def find_socket_view(transport: Transport) -> SocketView:
    """The mesh that a transport is, or that is under its layers."""
    return unwrap_transport(transport, Mesh) or NoSocketView()
