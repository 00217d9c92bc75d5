"""The transport `datagram`: messages as UDP datagrams, with loss recovery and congestion control in user space."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from testbed.clock import clock_here
from testbed.comm.transport.base import BEST_EFFORT, MAX_TAG, TrafficClass, TransportError
from testbed.comm.transport.datagram import udp
from testbed.comm.transport.datagram.control_connection import ControlConnection
from testbed.comm.transport.datagram.controls import CONTROLS, Granter
from testbed.comm.transport.datagram.packets import ETHERNET_HEADER_BYTES
from testbed.comm.transport.datagram.pair import DatagramPair
from testbed.comm.transport.datagram.sender import WINDOW_PRODUCTS, DatagramSettings, Route
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.sockets import (
    MeshSettings,
    SocketOptions,
    WireCounts,
    read_socket_options,
    snapshot_connection,
)
from testbed.comm.transport.wire import ConnectionKey

_HEADER_SAVING_BYTES = 24  # TCP headers with timestamps over UDP headers
_FIRST_ROUND_TRIP_S = 0.05  # if TCP has no sample
_UNSET_WINDOW_SHARE = 4  # share of the receive buffer, if the window is not configured


class DatagramTransport(Mesh):
    """One rank's datagram pairs; see Transport for the messages.

    Args:
        rank: This rank.
        addresses: (IPv4 address, port) of every rank, in rank order. Datagrams go to the same ports.
        settings: Sockets and timeouts.
        datagrams: Recovery, control and paths; the same on all ranks.
        eager: Connect to all peers at once.
        listener: A bound socket to listen on instead of this rank's address.

    Raises:
        TransportError: If a setting does not take effect.
        TransportTimeout: If `eager` is set and a peer does not appear.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        datagrams: DatagramSettings | None = None,
        *,
        eager: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        self.datagrams = datagrams or DatagramSettings()
        self._pairs: dict[tuple[int, TrafficClass], DatagramPair] = {}
        self._send_batch = udp.SendBatch()
        self._uses_ecn = CONTROLS[self.datagrams.control].uses_ecn
        self._receive_batch = udp.ReceiveBatch(self._uses_ecn)
        self._granter = Granter(settings.port_bps, udp.MAX_MTU_BYTES + ETHERNET_HEADER_BYTES)
        # in a guest reading the clock is a system call, and time stands still between two calls of `progress`
        self._clock: Callable[[], float] = (lambda: self.now_s) if clock_here() == "free" else time.monotonic
        self._due_s = math.inf  # the next timer of any pair
        self._due: dict[DatagramPair, float] = {}
        super().__init__(rank, addresses, settings, listener, eager)

    # ---- see Mesh

    def _connections_to(self, peer: int, tag: int, traffic: TrafficClass) -> DatagramPair:
        pair = self._pairs.get((peer, traffic))
        if pair is None or not 0 <= tag <= MAX_TAG:
            self._check_address(peer, tag)
        if pair is None or (pair.lost is None and not pair.is_connected):
            self._stream(peer, ConnectionKey(traffic))
        return self._pairs[peer, traffic]

    def _make_stream(self, peer: int, key: ConnectionKey) -> ControlConnection:
        if key.channels or key.channel:
            raise ValueError(f"channel: got {key.channel} of {key.channels}, expected one connection")
        pair_key = peer, key.traffic
        pair = self._pairs.get(pair_key)
        if pair is None or pair.lost is not None:
            pair = self._pairs[pair_key] = self._make_pair(peer, key.traffic)
        current = pair

        def on_ports(secret: int, ports: list[int]) -> None:
            self._on_ports(current, control, key, secret, ports)

        control = ControlConnection(
            self.rank,
            peer,
            self._counters[peer],
            self.exposed,
            lambda: self._on_attach(current, control, key),
            on_ports,
            current.fail,
            current.totals,
        )
        current.on_fault = control.fail
        return control

    def _make_pair(self, peer: int, traffic: TrafficClass) -> DatagramPair:
        def watch(sock: socket.socket, mask: int, handler: Any) -> None:
            self._loop.watch(sock, mask, handler, traffic.priority)

        return DatagramPair(
            self.rank,
            peer,
            self.datagrams,
            self.settings.max_staged_bytes,
            self._counters[peer],
            self.exposed,
            self._send_batch,
            self._receive_batch,
            self._granter,
            watch,
            self._clock,
            self._schedule,
        )

    def _drop_lost(self, peer: int) -> None:
        for pair_key in [
            pair_key for pair_key, pair in self._pairs.items() if pair_key[0] == peer and pair.lost
        ]:
            self._due.pop(self._pairs.pop(pair_key), None)

    def _keys(self, peer: int, traffic: TrafficClass = BEST_EFFORT) -> list[ConnectionKey]:
        return [ConnectionKey(traffic)]

    # ---- timers

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        due_s = min(self._due_s, self._granter.due_s)
        if due_s < math.inf:
            left_s = max(0.0, due_s - self._clock())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        super().progress(timeout_s)
        now_s = self._clock()
        if self._granter.due_s <= now_s:
            for pair, total in self._granter.pop_grants(now_s):
                assert isinstance(pair, DatagramPair)
                pair.grant(total)
        if self._due_s <= now_s:
            for pair in [pair for pair, at_s in self._due.items() if at_s <= now_s]:
                self._due[pair] = math.inf
                pair.on_due(now_s)
            self._due_s = min(self._due.values(), default=math.inf)

    def _schedule(self, pair: DatagramPair, due_s: float) -> None:
        """Call a pair's `on_due` at `due_s`, instead of at the time that it asked for before."""
        self._due[pair] = due_s
        self._due_s = min(self._due_s, due_s)

    # ---- setup of a pair

    def _on_attach(self, pair: DatagramPair, control: ControlConnection, key: ConnectionKey) -> None:
        """Send the ports of this end's paths if this rank dialled."""
        if self.rank < control.peer:
            return
        assert control.sock is not None
        local, remote = control.sock.getsockname()[0], control.sock.getpeername()
        ports = [
            self.settings.local_port(self.rank, control.peer, self._path_key(key, path))
            for path in range(self.datagrams.paths)
        ]
        self._open_sockets(
            pair, control, key, secrets.randbits(32), [((local, port), remote) for port in ports]
        )
        if control.lost is None:
            control.send_ports(pair.secret, [sock.getsockname()[1] for sock in pair.sockets])

    def _path_key(self, key: ConnectionKey, path: int) -> ConnectionKey:
        paths = self.datagrams.paths
        return ConnectionKey(key.traffic, path, paths) if paths > 1 else key

    def _on_ports(
        self,
        pair: DatagramPair,
        control: ControlConnection,
        key: ConnectionKey,
        secret: int,
        ports: list[int],
    ) -> None:
        """Handle the ports of the peer's paths, or its confirmation."""
        assert control.sock is not None
        if self.rank < control.peer:
            if pair.sockets or len(ports) != self.datagrams.paths:
                control.fail(f"its ports: got {len(ports)}, expected {self.datagrams.paths}, once")
                return
            local, remote = control.sock.getsockname(), control.sock.getpeername()[0]
            self._open_sockets(pair, control, key, secret, [(local, (remote, port)) for port in ports])
            if control.lost is not None:
                return
            control.send_ports(secret, [])
        if not pair.sockets:
            control.fail("it confirmed its sockets before it got any ports")
            return
        with contextlib.suppress(OSError):  # an error of the control connection ends the pair
            round_trip_s = snapshot_connection(control.sock)["rtt_s"] or _FIRST_ROUND_TRIP_S
            pair.start(round_trip_s, self._route(pair, control.peer))

    def _open_sockets(
        self,
        pair: DatagramPair,
        control: ControlConnection,
        key: ConnectionKey,
        secret: int,
        ends: list[tuple[tuple[str, int], tuple[str, int]]],
    ) -> None:
        """Open this end's sockets, each from a local to a remote address. On an error the peer is lost."""
        settings = self.settings.settings_of(self.rank, control.peer, key)
        sockets: list[socket.socket] = []
        try:
            for local, remote in ends:
                sockets.append(udp.make_socket(local, remote, settings, key.traffic, self._uses_ecn))
        except (OSError, TransportError) as error:
            for sock in sockets:
                sock.close()
            control.fail(f"datagrams: {getattr(error, 'strerror', None) or error}")
            return
        pair.begin_sockets(sockets, secret)

    def _route(self, pair: DatagramPair, peer: int) -> Route:
        settings = self.settings
        path_bps = settings.path_bps[peer] if settings.path_bps is not None else 0.0
        empty_s = settings.round_trips_s[peer] if settings.round_trips_s is not None else math.inf
        window_bytes = self._window_bytes(pair, peer)
        return Route(window_bytes, settings.port_bps, path_bps, empty_s, self.size - 1)

    def _window_bytes(self, pair: DatagramPair, peer: int) -> int:
        """Return the scenario's window, or the bandwidth-delay product, or what the receive buffer can hold."""
        if self.datagrams.window_bytes is not None:
            return self.datagrams.window_bytes
        if self.settings.bdp_bytes is not None:
            return round(WINDOW_PRODUCTS * self.settings.bdp_bytes[peer])
        room = pair.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        return room // 2 // _UNSET_WINDOW_SHARE

    # ---- measurements

    def peer_counts(self) -> dict[int, WireCounts] | None:
        """See Mesh. Datagrams, as IP sees them, count as segments. Payloads are corrected for the shorter headers."""
        counts = super().peer_counts()
        if counts is None:
            return None
        for (peer, _), pair in self._pairs.items():
            sent, received = pair.datagrams_out - pair.datagrams_segmented, pair.datagrams_in
            datagrams = (
                sent,
                received,
                pair.bytes_out - sent * _HEADER_SAVING_BYTES,
                pair.bytes_in - received * _HEADER_SAVING_BYTES,
            )
            counts[peer] = counts.get(peer, WireCounts()).add(WireCounts(0, *datagrams))
        return counts

    def socket_options(self) -> dict[tuple[int, object], SocketOptions]:
        """See Mesh; with the datagram sockets."""
        options = super().socket_options()
        for (peer, _), pair in self._pairs.items():
            if pair.lost is None:
                options |= {
                    (peer, (pair, path)): read_socket_options(sock) for path, sock in enumerate(pair.sockets)
                }
        return options

    def describe_state(self, peers: Iterable[int]) -> str:
        """See Mesh; with the datagrams."""
        wanted = set(peers)
        states = [
            f"datagrams with rank {peer}: {pair.description}"
            for (peer, _), pair in self._pairs.items()
            if peer in wanted
        ]
        return "; ".join([super().describe_state(wanted), *states])

    def snapshots(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """See Mesh; of the datagrams. No window reads as 0."""
        pairs = list(self._pairs.items())
        return [
            (peer, ConnectionKey(traffic), pair.snapshot())
            for (peer, traffic), pair in pairs
            if pair.is_connected
        ]

    def _before_goodbye(self, deadline_s: float) -> None:
        """Wait until the peers have everything, or make no progress for the time of a goodbye."""
        bound_s = deadline_s - time.monotonic()
        had = -1
        while not all(pair.can_say_goodbye for pair in self._pairs.values()):
            now_s = time.monotonic()
            has = sum(pair.acknowledged for pair in self._pairs.values())
            if has > had:
                had, deadline_s = has, now_s + bound_s
            if now_s >= deadline_s:
                return
            self.progress(deadline_s - now_s)
