"""A view of the sockets below a rank's transport, for measurements."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from testbed.comm.transport.base import Transport, unwrap_transport
from testbed.comm.transport.connector import StreamKey
from testbed.comm.transport.event_loop import StallDetector
from testbed.comm.transport.sockets import (
    SocketOptions,
    WireCounts,
    describe_socket_state,
    read_socket_options,
    read_wire_counts,
    snapshot_connection,
)
from testbed.comm.transport.stream import Stream
from testbed.comm.transport.wire import ConnectionKey


class SocketView:
    """The connections of a rank, as measurements see them."""

    counts_payload = True  # whether `peer_counts` has the bytes of messages

    def __init__(self) -> None:
        self.stall_detector: StallDetector | None = None
        self._streams: dict[StreamKey, Stream] = {}

    def socket_info(self) -> list[dict[str, Any]]:
        """Return `peer`, class and channel (unless 0) and `Stream.info` of every connection, open or past.

        Ready for JSON.
        """
        entries = []
        for (peer, (traffic, channel, _)), stream in sorted(self._streams.items(), key=lambda item: item[0]):
            info = stream.info()
            if info is not None:
                marks = {"dscp": traffic.dscp, "priority": traffic.priority, "channel": channel}
                entries.append({"peer": peer, **{k: v for k, v in marks.items() if v}, **info})
        return entries

    def snapshots(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """Return peer, key and `sockets.snapshot_connection` of all open connections. Thread-safe."""
        snapshots = []
        for (peer, key), stream in list(self._streams.items()):
            if (sock := stream.sock) is not None:
                with contextlib.suppress(OSError):  # closed concurrently
                    snapshots.append((peer, key, snapshot_connection(sock)))
        return snapshots

    def open_connections(self) -> frozenset[object]:
        """Return an object for each open connection, the same one while the connection is open."""
        return frozenset(stream for stream in self._streams.values() if stream.sock is not None)

    def peer_counts(self) -> dict[int, WireCounts] | None:
        """Return the kernel's counts of the open connections, by peer; None if they are unavailable."""
        counts: dict[int, WireCounts] = {}
        try:
            for (peer, _), stream in self._streams.items():
                if stream.sock is not None:
                    counts[peer] = counts.get(peer, WireCounts()).add(read_wire_counts(stream.sock))
        except OSError:
            return None
        return counts

    def socket_options(self) -> dict[tuple[int, object], SocketOptions]:
        """Return the options of every open connection, by peer and its object in `open_connections`."""
        options: dict[tuple[int, object], SocketOptions] = {}
        for (peer, _), stream in self._streams.items():
            if stream.sock is not None:
                with contextlib.suppress(OSError):  # closed concurrently
                    options[peer, stream] = read_socket_options(stream.sock)
        return options

    def wire_counts(self, peers: Mapping[int, WireCounts]) -> WireCounts | None:
        """Return the sum over all peers; None if unavailable. peers: the result of `peer_counts`."""
        return reduce(WireCounts.add, peers.values(), WireCounts())

    def describe_state(self, peers: Iterable[int]) -> str:
        """Return, as text, the state of the connections with these peers, to explain why nothing arrives."""
        wanted, states = set(peers), []
        for (peer, key), stream in sorted(self._streams.items(), key=lambda item: item[0]):
            if peer not in wanted:
                continue
            state = "none yet" if stream.lost is None else "lost"
            if (sock := stream.sock) is not None:
                with contextlib.suppress(OSError):
                    state = describe_socket_state(sock)
            channel = f", channel {key.channel}" if key.channels else ""
            states.append(f"connection with rank {peer}{channel}: {state}")
        return "; ".join(states)


class NoSocketView(SocketView):
    """The substitute for a plug-in transport without a view: records of its connections stay empty."""

    counts_payload = False

    def peer_counts(self) -> dict[int, WireCounts] | None:
        """Return None, because the counts are unknown."""
        return None

    def wire_counts(self, peers: Mapping[int, WireCounts]) -> WireCounts | None:
        """Return None, because the counts are unknown."""
        return None

    def describe_state(self, peers: Iterable[int]) -> str:
        """Return, as text, that the state is unknown."""
        return "its transport does not report the state of its connections"


def find_socket_view(transport: Transport) -> SocketView:
    """Return the transport, or the one under its layers, as a view."""
    return unwrap_transport(transport, SocketView) or NoSocketView()
