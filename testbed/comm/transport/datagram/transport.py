"""Messages as UDP datagrams, whose losses this end mends and whose pace it keeps: see the modules beside this one."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from testbed.clock import clock_here
from testbed.comm.transport.base import BEST_EFFORT, MAX_TAG, TrafficClass, TransportError
from testbed.comm.transport.datagram import udp
from testbed.comm.transport.datagram.control_connection import ControlConnection, new_secret
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

_HEADER_SAVING_BYTES = 24  # than TCP's and IPv4's headers with time stamps those of UDP and IPv4 are
_FIRST_ROUND_TRIP_S = 0.05  # where TCP does not tell
_UNSET_WINDOW_SHARE = 4  # of the receive buffer, where nobody says how large a window should be


class DatagramTransport(Mesh):
    """One rank's pairs; see Transport for the messages, MeshSettings for `settings`.

    rank: this rank. addresses: (IPv4 address, port) of every rank, in rank order; datagrams go to the same ports.
    datagrams: the same on all ranks. eager, listener: as for TcpTransport. Raises TransportError when a setting does
    not take, TransportTimeout when `eager` and a peer does not appear.
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
        self._outbox = udp.SendBatch()
        self._marks = CONTROLS[self.datagrams.control].marks
        self._inbox = udp.ReceiveBatch(self._marks)
        self._granter = Granter(settings.port_bps, udp.MAX_MTU_BYTES + ETHERNET_HEADER_BYTES)
        # reading it is a system call in a guest, where it stands still between two calls of `progress` anyway
        self._clock: Callable[[], float] = (lambda: self.now_s) if clock_here() == "free" else time.monotonic
        self._due_s = math.inf  # no pair wants to be looked at before
        self._due: dict[DatagramPair, float] = {}
        super().__init__(rank, addresses, settings, listener, eager)

    # ---- the mesh's

    def _connections_to(self, peer: int, tag: int, traffic: TrafficClass) -> DatagramPair:
        """The pair, begun if need be."""
        pair = self._pairs.get((peer, traffic))
        if pair is None or not 0 <= tag <= MAX_TAG:
            self._check_address(peer, tag)
        if pair is None or (pair.lost is None and not pair.stands):
            self._stream(peer, ConnectionKey(traffic))
        return self._pairs[peer, traffic]

    def _make_stream(self, peer: int, key: ConnectionKey) -> ControlConnection:
        if key.channels or key.channel:
            raise ValueError(f"channel: got {key.channel} of {key.channels}, expected one connection")
        which = peer, key.traffic
        pair = self._pairs.get(which)
        if pair is None or pair.lost is not None:
            pair = self._pairs[which] = self._make_pair(peer, key.traffic)
        own = pair

        def on_ports(secret: int, ports: list[int]) -> None:
            self._introduced(own, lifeline, key, secret, ports)

        lifeline = ControlConnection(
            self.rank,
            peer,
            self._counters[peer],
            self.exposed,
            lambda: self._attached(own, lifeline, key),
            on_ports,
            own.fail,
            own.figures,
        )
        own.on_fault = lifeline.fail
        return lifeline

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
            self._outbox,
            self._inbox,
            self._granter,
            watch,
            self._clock,
            self._look_again,
        )

    def _drop(self, peer: int) -> None:
        for which in [which for which, pair in self._pairs.items() if which[0] == peer and pair.lost]:
            self._due.pop(self._pairs.pop(which), None)

    def _keys(self, peer: int, traffic: TrafficClass = BEST_EFFORT) -> list[ConnectionKey]:
        return [ConnectionKey(traffic)]

    # ---- time

    def progress(self, timeout_s: float | None = 0.0) -> None:
        """See Transport."""
        due_s = min(self._due_s, self._granter.due_s)
        if due_s < math.inf:
            left_s = max(0.0, due_s - self._clock())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        super().progress(timeout_s)
        now_s = self._clock()
        if self._granter.due_s <= now_s:
            for pair, total in self._granter.grants(now_s):
                assert isinstance(pair, DatagramPair)
                pair.grant(total)
        if self._due_s <= now_s:
            for pair in [pair for pair, at_s in self._due.items() if at_s <= now_s]:
                self._due[pair] = math.inf
                pair.on_due(now_s)
            self._due_s = min(self._due.values(), default=math.inf)

    def _look_again(self, pair: DatagramPair, due_s: float) -> None:
        """A pair wants to be looked at then, and not for what it wanted before."""
        self._due[pair] = due_s
        self._due_s = min(self._due_s, due_s)

    # ---- introducing the ends of a pair

    def _attached(self, pair: DatagramPair, lifeline: ControlConnection, key: ConnectionKey) -> None:
        """The dialler says where its paths begin; the listener waits for that."""
        if self.rank < lifeline.peer:
            return
        assert lifeline.sock is not None
        local, remote = lifeline.sock.getsockname()[0], lifeline.sock.getpeername()
        ports = [
            self.settings.local_port(self.rank, lifeline.peer, self._path_key(key, path))
            for path in range(self.datagrams.paths)
        ]
        self._open(pair, lifeline, key, new_secret(), [((local, port), remote) for port in ports])
        if lifeline.lost is None:
            lifeline.say_ports(pair.secret, [sock.getsockname()[1] for sock in pair.sockets])

    def _path_key(self, key: ConnectionKey, path: int) -> ConnectionKey:
        paths = self.datagrams.paths
        return ConnectionKey(key.traffic, path, paths) if paths > 1 else key

    def _introduced(
        self,
        pair: DatagramPair,
        lifeline: ControlConnection,
        key: ConnectionKey,
        secret: int,
        ports: list[int],
    ) -> None:
        """The peer has said where its paths begin, or that they stand."""
        assert lifeline.sock is not None
        if self.rank < lifeline.peer:
            if pair.sockets or len(ports) != self.datagrams.paths:
                lifeline.fail(f"it has {len(ports)} paths, expected {self.datagrams.paths}, once")
                return
            local, remote = lifeline.sock.getsockname(), lifeline.sock.getpeername()[0]
            self._open(pair, lifeline, key, secret, [(local, (remote, port)) for port in ports])
            if lifeline.lost is not None:
                return
            lifeline.say_ports(secret, [])
        if not pair.sockets:
            lifeline.fail("it said that its paths stand before it was told of any")
            return
        with contextlib.suppress(OSError):  # whatever ends the lifeline ends the pair
            round_trip_s = snapshot_connection(lifeline.sock)["rtt_s"] or _FIRST_ROUND_TRIP_S
            pair.stand(round_trip_s, self._route(pair, lifeline.peer))

    def _open(
        self,
        pair: DatagramPair,
        lifeline: ControlConnection,
        key: ConnectionKey,
        secret: int,
        ends: list[tuple[tuple[str, int], tuple[str, int]]],
    ) -> None:
        """This end's sockets, each from a local to a remote address; without them the peer is lost."""
        settings = self.settings.settings_of(self.rank, lifeline.peer, key)
        sockets: list[socket.socket] = []
        try:
            for local, remote in ends:
                sockets.append(udp.make_socket(local, remote, settings, key.traffic, self._marks))
        except (OSError, TransportError) as error:
            for sock in sockets:
                sock.close()
            lifeline.fail(f"datagrams: {getattr(error, 'strerror', None) or error}")
            return
        pair.begin_sockets(sockets, secret)

    def _route(self, pair: DatagramPair, peer: int) -> Route:
        settings = self.settings
        path_bps = settings.path_bps[peer] if settings.path_bps is not None else 0.0
        empty_s = settings.round_trips_s[peer] if settings.round_trips_s is not None else math.inf
        window_bytes = self._window_bytes(pair, peer)
        return Route(window_bytes, settings.port_bps, path_bps, empty_s, self.size - 1)

    def _window_bytes(self, pair: DatagramPair, peer: int) -> int:
        """What the scenario says, or by the path's product of rate and delay, or what the receive buffer holds."""
        if self.datagrams.window_bytes is not None:
            return self.datagrams.window_bytes
        if self.settings.bdp_bytes is not None:
            return round(WINDOW_PRODUCTS * self.settings.bdp_bytes[peer])
        room = pair.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        return room // 2 // _UNSET_WINDOW_SHARE

    # ---- for those who measure

    def peer_counts(self) -> dict[int, WireCounts] | None:
        """See Mesh; datagrams, as IP sees them, count as segments, what their headers are shorter off their payload."""
        found = super().peer_counts()
        if found is None:
            return None
        for (peer, _), pair in self._pairs.items():
            sent, came = pair.datagrams_out - pair.datagrams_cut, pair.datagrams_in
            own = (
                sent,
                came,
                pair.bytes_out - sent * _HEADER_SAVING_BYTES,
                pair.bytes_in - came * _HEADER_SAVING_BYTES,
            )
            found[peer] = found.get(peer, WireCounts()).plus(WireCounts(0, *own))
        return found

    def socket_options(self) -> dict[tuple[int, object], SocketOptions]:
        """See Mesh; of datagrams' sockets, too."""
        found = super().socket_options()
        for (peer, _), pair in self._pairs.items():
            if pair.lost is None:
                found |= {
                    (peer, (pair, path)): read_socket_options(sock) for path, sock in enumerate(pair.sockets)
                }
        return found

    def state_words(self, peers: Iterable[int]) -> str:
        """See Mesh; of datagrams, too."""
        wanted = set(peers)
        found = [
            f"datagrams with rank {peer}: {pair.words}"
            for (peer, _), pair in self._pairs.items()
            if peer in wanted
        ]
        return "; ".join([super().state_words(wanted), *found])

    def glances(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """See Mesh; of datagrams. A window that is none is 0."""
        pairs = list(self._pairs.items())
        return [
            (peer, ConnectionKey(traffic), pair.glance()) for (peer, traffic), pair in pairs if pair.stands
        ]

    def _before_goodbye(self, deadline_s: float) -> None:
        """Until the peers have all, or nothing more comes to them for as long as there is time for a goodbye."""
        bound_s = deadline_s - time.monotonic()
        had = -1
        while not all(pair.may_part for pair in self._pairs.values()):
            now_s = time.monotonic()
            has = sum(pair.acknowledged for pair in self._pairs.values())
            if has > had:
                had, deadline_s = has, now_s + bound_s
            if now_s >= deadline_s:
                return
            self.progress(deadline_s - now_s)
