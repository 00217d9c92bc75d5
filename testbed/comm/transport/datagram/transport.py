"""The transport `datagram`: messages as UDP datagrams, with loss recovery and congestion control in user space.

The dialling side of a pair sends the ports of its paths over the control connection; the listening side confirms that
its sockets are open.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from testbed.clock import clock_here
from testbed.comm.transport.base import TransportError
from testbed.comm.transport.control_connection import SETUP_TAG, ControlConnection, ControlledMesh
from testbed.comm.transport.datagram import udp
from testbed.comm.transport.datagram.controls import CONTROLS, Granter
from testbed.comm.transport.datagram.packets import ETHERNET_HEADER_BYTES, MAX_PATHS
from testbed.comm.transport.datagram.pair import DatagramPair, RankDatagrams
from testbed.comm.transport.datagram.sender import WINDOW_PRODUCTS, DatagramSettings, Route
from testbed.comm.transport.sockets import (
    MeshSettings,
    SocketOptions,
    WireCounts,
    read_socket_options,
    snapshot_connection,
)
from testbed.comm.transport.wire import ConnectionKey

_HEADER_SAVING_BYTES = 24  # size of TCP headers with timestamps minus that of UDP headers
_FIRST_ROUND_TRIP_S = 0.05  # round trip if TCP has no sample
_UNSET_WINDOW_SHARE = 4  # share of the receive buffer, if the window is not configured
_SECRET, _PORT = struct.Struct("<I"), struct.Struct("<H")
_MAX_SETUP_BYTES = _SECRET.size + MAX_PATHS * _PORT.size

Control = ControlConnection[DatagramPair]


class DatagramTransport(ControlledMesh[DatagramPair]):
    """One rank's datagram pairs; see Transport for the messages, Mesh for the other arguments and the errors.

    Datagrams go to the ports of `addresses`, too.

    Args:
        datagrams: Recovery, control and paths; the same on all ranks.
    """

    setup_limits: ClassVar[Mapping[int, int]] = {SETUP_TAG: _MAX_SETUP_BYTES}
    setup_content = "ports"

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
        self._uses_ecn = CONTROLS[self.datagrams.control].uses_ecn
        self._granter = Granter(settings.port_bps, udp.MAX_MTU_BYTES + ETHERNET_HEADER_BYTES)
        # in a guest, reading the clock is a system call, and time does not pass between two calls of `progress`
        self._clock: Callable[[], float] = (lambda: self.now_s) if clock_here() == "free" else time.monotonic
        self._shared = RankDatagrams(
            self.datagrams,
            udp.SendBatch(),
            udp.ReceiveBatch(self._uses_ecn),
            self._granter,
            self._clock,
            self._schedule,
        )
        self._due_s = math.inf  # the next timer of any pair
        self._due: dict[DatagramPair, float] = {}
        super().__init__(rank, addresses, settings, eager=eager, listener=listener)

    # ---- see Mesh

    def _make_pair(self, peer: int, key: ConnectionKey) -> DatagramPair:
        def watch(sock: socket.socket, mask: int, handler: Any) -> None:
            self._loop.watch(sock, mask, handler, key.traffic.priority)

        return DatagramPair(self._end(peer), self._shared, watch)

    def _make_stream(self, peer: int, key: ConnectionKey) -> Control:
        control = super()._make_stream(peer, key)
        control.pair.on_fault = control.fail
        return control

    def _drop_lost(self, peer: int) -> None:
        super()._drop_lost(peer)
        self._due = {pair: due_s for pair, due_s in self._due.items() if pair.lost is None}

    def _pair_info(self, pair: DatagramPair) -> dict[str, Any]:
        return pair.totals()

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

    def _on_attach(self, control: Control) -> None:
        """Send the ports of this end's paths if this rank dialled."""
        if self.rank < control.peer:
            return
        assert control.sock is not None
        local, remote = control.sock.getsockname()[0], control.sock.getpeername()
        ports = [
            self.settings.local_port(self.rank, control.peer, self._path_key(control.key, path))
            for path in range(self.datagrams.paths)
        ]
        secret = secrets.randbits(32)
        self._open_sockets(control, secret, [((local, port), remote) for port in ports])
        if control.lost is None:
            self._send_ports(control, secret, [sock.getsockname()[1] for sock in control.pair.sockets])

    @staticmethod
    def _send_ports(control: Control, secret: int, ports: list[int]) -> None:
        """Send the ports of this end's paths; an empty list confirms that its sockets are open."""
        control.send_setup(_SECRET.pack(secret) + b"".join(map(_PORT.pack, ports)))

    def _path_key(self, key: ConnectionKey, path: int) -> ConnectionKey:
        paths = self.datagrams.paths
        return ConnectionKey(key.traffic, path, paths) if paths > 1 else key

    def _on_setup(self, control: Control, tag: int, data: bytearray) -> None:
        """Handle the ports of the peer's paths, or its confirmation."""
        if len(data) < _SECRET.size or len(data) % _PORT.size:
            control.refuse_setup(len(data))
            return
        (secret,) = _SECRET.unpack_from(data)
        ports = [port for (port,) in _PORT.iter_unpack(data[_SECRET.size :])]
        pair = control.pair
        assert control.sock is not None
        if self.rank < control.peer:
            if pair.sockets or len(ports) != self.datagrams.paths:
                control.fail(f"its ports: got {len(ports)}, expected {self.datagrams.paths}, once")
                return
            local, remote = control.sock.getsockname(), control.sock.getpeername()[0]
            self._open_sockets(control, secret, [(local, (remote, port)) for port in ports])
            if control.lost is not None:
                return
            self._send_ports(control, secret, [])
        if not pair.sockets:
            control.fail("it confirmed its sockets before it got any ports")
            return
        with contextlib.suppress(OSError):  # an error of the control connection ends the pair
            round_trip_s = snapshot_connection(control.sock)["rtt_s"] or _FIRST_ROUND_TRIP_S
            pair.start(round_trip_s, self._route(pair, control.peer))

    def _open_sockets(
        self, control: Control, secret: int, ends: list[tuple[tuple[str, int], tuple[str, int]]]
    ) -> None:
        """Open this end's sockets, each from a local to a remote address. On an error the peer is lost."""
        traffic = control.key.traffic
        settings = self.settings.settings_of(self.rank, control.peer, control.key)
        with contextlib.ExitStack() as stack:
            try:
                sockets = [
                    stack.enter_context(udp.make_socket(local, remote, settings, traffic, self._uses_ecn))
                    for local, remote in ends
                ]
            except (OSError, TransportError) as error:
                control.fail(f"datagrams: {getattr(error, 'strerror', None) or error}")
                return
            stack.pop_all()
        control.pair.begin_sockets(sockets, secret)

    def _route(self, pair: DatagramPair, peer: int) -> Route:
        settings = self.settings
        path_bps = settings.path_bps[peer] if settings.path_bps is not None else 0.0
        empty_s = settings.round_trips_s[peer] if settings.round_trips_s is not None else math.inf
        window_bytes = self._window_bytes(pair, peer)
        return Route(window_bytes, settings.port_bps, path_bps, empty_s, self.size - 1)

    def _window_bytes(self, pair: DatagramPair, peer: int) -> int:
        """Return the scenario's window, or the bandwidth-delay product, or the share of the receive buffer."""
        if self.datagrams.window_bytes is not None:
            return self.datagrams.window_bytes
        if self.settings.bdp_bytes is not None:
            return round(WINDOW_PRODUCTS * self.settings.bdp_bytes[peer])
        room = pair.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        return room // 2 // _UNSET_WINDOW_SHARE

    # ---- measurements

    def peer_counts(self) -> dict[int, WireCounts] | None:
        """See Mesh. Datagrams count as segments, as IP sees them. Payloads are corrected for the shorter headers."""
        counts = super().peer_counts()
        if counts is None:
            return None
        for control in self._controls():
            peer, pair = control.peer, control.pair
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
        """See Mesh. The datagram sockets are included."""
        options = super().socket_options()
        for control in self._controls():
            if control.pair.lost is None:
                for path, sock in enumerate(control.pair.sockets):
                    options[control.peer, (control.pair, path)] = read_socket_options(sock)
        return options

    def describe_state(self, peers: Iterable[int]) -> str:
        """See Mesh. The state of the datagrams is included."""
        wanted = set(peers)
        states = [
            f"datagrams with rank {control.peer}: {control.pair.description}"
            for control in self._controls()
            if control.peer in wanted
        ]
        return "; ".join([super().describe_state(wanted), *states])

    def snapshots(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """See Mesh. The snapshots are of the datagrams; a window of 0 means none."""
        return [
            (control.peer, control.key, control.pair.snapshot())
            for control in self._controls()
            if control.pair.is_connected
        ]

    def _before_goodbye(self, deadline_s: float) -> None:
        """Wait until the peers have everything, or make no progress for the time of a goodbye."""
        bound_s = deadline_s - time.monotonic()
        had = -1
        while not all(control.pair.can_say_goodbye for control in self._controls()):
            now_s = time.monotonic()
            has = sum(control.pair.acknowledged for control in self._controls())
            if has > had:
                had, deadline_s = has, now_s + bound_s
            if now_s >= deadline_s:
                return
            self.progress(deadline_s - now_s)
