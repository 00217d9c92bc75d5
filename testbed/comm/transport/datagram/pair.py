"""Datagrams to and from one peer, for one class of traffic, from messages to packets and back."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from testbed.clock import clock_here
from testbed.comm.transport.base import PeerLost, Request, TransportError
from testbed.comm.transport.datagram import udp
from testbed.comm.transport.datagram.buffers import ReceiveBuffer, SendBuffer
from testbed.comm.transport.datagram.controls import Credits, Granter
from testbed.comm.transport.datagram.packets import (
    CREDIT,
    DATA,
    GRANTED_KIND,
    PARITY,
    PARITY_KIND,
    WANTED_KIND,
    Data,
    unpack_ack,
)
from testbed.comm.transport.datagram.recoveries import RECOVERIES, Item
from testbed.comm.transport.datagram.sender import DatagramSettings, Route, Sender, make_sender
from testbed.comm.transport.datagram.spraying import Spray
from testbed.comm.transport.event_loop import ignore_events
from testbed.comm.transport.onesided import PeerEnd

# retry interval after a full NIC queue: in real time, when a third of the shortest queue has drained
NO_ROOM_S, NO_ROOM_PACKETS = 0.0005, 20


class RankDatagrams(NamedTuple):
    """State that all pairs of a rank share.

    Attributes:
        settings: Recovery, control and paths.
        send_batch: For packets to send.
        receive_batch: For received packets.
        granter: Grants credits to all senders of the rank.
        clock: Returns the time in seconds.
        on_due: Called with a pair and the time at which it wants its `on_due` to be called.
    """

    settings: DatagramSettings
    send_batch: udp.SendBatch
    receive_batch: udp.ReceiveBatch
    granter: Granter
    clock: Callable[[], float]
    on_due: Callable[[DatagramPair, float], None]


class DatagramPair(ReceiveBuffer):
    """All datagrams to and from one peer, for one class of traffic.

    Args:
        end: This rank's end.
        shared: What all pairs of the rank share.
        watch: (socket, events, handler), as in the event loop.
    """

    def __init__(
        self,
        end: PeerEnd,
        shared: RankDatagrams,
        watch: Callable[[socket.socket, int, Callable[[int], None]], None],
    ) -> None:
        settings, self._send_batch, self._receive_batch, self._granter, self._clock, self._on_due = shared
        kind, paths = RECOVERIES[settings.recovery], settings.paths
        super().__init__(end, paths, kind.in_order, kind.code)
        self._watch = watch
        self.settings = settings
        # called with a reason to drop the peer, which is sent to the peer
        self.on_fault: Callable[[str], None] | None = None
        self.sockets: list[socket.socket] = []
        self._waiting: list[Request] = []  # until the pair is connected
        self._out: SendBuffer | None = None
        self._blocked: set[int] = set()  # paths whose socket is not writable
        self._retry_s = math.inf  # when to retry after a full NIC queue
        self._no_room_s = NO_ROOM_S
        self._sender: Sender | None = None
        self.secret = 0
        self._payload_bytes = 0
        self._spray = Spray(settings.paths) if settings.paths > 1 else None
        self.datagrams_out = self.datagrams_in = self.bytes_out = self.bytes_in = 0
        self.datagrams_segmented = 0  # sent packets cut from trains, which IP did not count

    # ---- start and end

    @property
    def is_connected(self) -> bool:
        """Whether both ends have opened their sockets."""
        return self._sender is not None

    @property
    def can_say_goodbye(self) -> bool:
        """Whether the peer has received everything."""
        return self.lost is not None or (not self._waiting and (self._sender is None or self._sender.idle))

    @property
    def acknowledged(self) -> int:
        """The number of packets that the peer has acknowledged without gaps."""
        return self._sender.recovery.low if self._sender else 0

    def begin_sockets(self, sockets: list[socket.socket], secret: int) -> None:
        """Use these sockets, one for each path."""
        self.sockets, self.secret = sockets, secret
        for path, sock in enumerate(sockets):
            self._watch(sock, udp.READ, partial(self._on_event, path))

    def start(self, round_trip_s: float, route: Route) -> None:
        """Start sending: both ends have opened their sockets. round_trip_s: the initial estimate."""
        if self.is_connected or self.lost is not None:
            return
        settings = self.settings
        self._payload_bytes = udp.payload_bytes(self.sockets[0])
        frame_bytes = udp.frame_bytes(self._payload_bytes)
        self._granter.packet_bytes = frame_bytes
        self._trains = udp.SegmentationOffload(DATA.size + self._payload_bytes, route.line_bps)
        if clock_here() != "free":
            self._no_room_s = max(NO_ROOM_S, NO_ROOM_PACKETS * frame_bytes * 8 / route.line_bps)
        self._sender = make_sender(settings, frame_bytes, round_trip_s, route)
        kind = RECOVERIES[settings.recovery]
        self._out = SendBuffer(self._payload_bytes, self.secret, kind.code, self.counters)
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._queue(request)
        self.pump()

    def fail(self, reason: TransportError | str) -> None:
        """Mark the peer as lost: close the sockets and fail all requests. Whole messages can still be received."""
        if self.lost is not None:
            return
        if isinstance(reason, str) and self.on_fault is not None:
            self.on_fault(reason)  # this calls `fail` with the error
            return
        self.lost = PeerLost(self.rank, self.peer, reason) if isinstance(reason, str) else reason
        for sock in self.sockets:
            self._watch(sock, 0, ignore_events)
            sock.close()
        self._granter.forget(self)
        self._fail_incoming(self.lost)
        pending = [*self._waiting, *(self._out.drop() if self._out else ())]
        self._waiting.clear()
        for request in pending:
            request.fail(self.lost)

    # ---- sending

    def send(self, request: Request) -> None:
        """Send as much as the control allows now, and the rest later."""
        if self.lost is not None:
            request.fail(self.lost)
        elif self._sender is None:
            self._waiting.append(request)
        else:
            self._queue(request)
            self.pump()

    def _queue(self, request: Request) -> None:
        assert self._sender is not None
        assert self._out is not None
        self._sender.extend(self._out.add(request, self._sender.recovery.end))

    def pump(self) -> None:
        """Send what may be sent now, and schedule the next timer."""
        sender = self._sender
        if sender is None or self.lost is not None:
            return
        now_s = self._clock()
        while self._retry_s == math.inf and self.lost is None:
            if self._spray is None and (numbers := sender.next_run(udp.BATCH, now_s)):
                if 0 in self._blocked or not self._transmit_run(numbers, now_s):
                    break
                continue
            items = sender.next_items(udp.BATCH, now_s)
            if not items or not self._transmit(items, now_s):
                break
        if self.lost is not None:
            return
        wanted = sender.wanted_credits(now_s)
        if wanted is not None:
            self._send_small(CREDIT.pack(WANTED_KIND, 0, 0, self.secret, wanted))
        due_s = min(sender.due_s, self._retry_s)
        if not self._blocked:
            self._on_due(self, due_s)
        elif sender.recovery.due_s < math.inf:
            self._on_due(self, sender.recovery.due_s)

    def _transmit(self, items: list[Item], now_s: float) -> bool:
        """Send these items in order; return whether all were sent."""
        if self._spray is None:
            return 0 not in self._blocked and self._transmit_on(0, items, now_s, len(items) - 1)
        paths = len(self.sockets)
        for position, item in enumerate(items):
            path = self._spray.choose(now_s)
            if path in self._blocked:
                path = next((other for other in range(paths) if other not in self._blocked), -1)
            asks_from = 0 if position >= len(items) - paths else 1
            if path < 0 or not self._transmit_on(path, [item], now_s, asks_from):
                return False
        return True

    def _transmit_on(self, path: int, items: list[Item], now_s: float, asks_from: int) -> bool:
        """Send items on one path. From position `asks_from` on, each requests an acknowledgement."""
        sender, out = self._sender, self._out
        assert sender is not None
        assert out is not None
        serial = sender.recovery.next_serial(path)
        sizes: list[tuple[int, int, int]] = []
        for position, item in enumerate(items):
            asks = sender.wants_ack(position >= asks_from)
            at = position * udp.HEADER_STRIDE
            sizes.append(out.write(self._send_batch.headers, at, item, path, serial + position, asks))
        columns = list(map(list, zip(*sizes, strict=True)))

        def on_taken(taken: int) -> None:
            for item in items[:taken]:
                sender.on_sent(item, path, now_s)

        send = partial(self._send_batch.send, self.sockets[path], *columns)
        return self._transmit_batch(path, send, columns, on_taken)

    def _transmit_run(self, numbers: range, now_s: float) -> bool:
        """Send consecutive data packets on the only path; return whether all were sent."""
        sender, out = self._sender, self._out
        assert sender is not None
        assert out is not None
        serial, asking = sender.recovery.next_serial(0), sender.ack_requests(len(numbers))
        columns = out.write_run(self._send_batch.words, numbers, 0, serial, asking)
        send = partial(self._send_batch.send_trains, self.sockets[0], self._trains, *columns)
        return self._transmit_batch(
            0, send, columns, lambda taken: sender.on_run_sent(numbers[:taken], 0, now_s)
        )

    def _transmit_batch(
        self,
        path: int,
        send: Callable[[], int],
        columns: Sequence[udp.PerPacket],
        on_taken: Callable[[int], object],
    ) -> bool:
        """Pass packets to the kernel, and record how many it took; return whether it took all.

        columns: per packet, the size of its header, and address and size of its payload.
        """
        segmented = self._send_batch.segmented
        try:
            taken = send()
        except (BlockingIOError, ConnectionRefusedError):
            taken = 0  # an earlier packet was refused; the control connection detects a lost peer
        except udp.QueueFull:
            self._retry_s = self._clock() + self._no_room_s
            return False
        except OSError as error:
            self.fail(f"datagrams: {error.strerror}")
            return False
        if taken:
            header_bytes, payload_bytes = (int(np.sum(figures[:taken])) for figures in columns[::2])
            self.counters.header_bytes_sent += header_bytes
            self.bytes_out += header_bytes + payload_bytes
            self.datagrams_out += taken
            self.datagrams_segmented += self._send_batch.segmented - segmented
            on_taken(taken)
            assert self._out is not None
            assert self._sender is not None
            self._out.complete(self._sender.recovery)
        took_all = taken == len(columns[0])
        if not took_all and path not in self._blocked and self.lost is None:
            self._blocked.add(path)
            self._watch(self.sockets[path], udp.READ | udp.WRITE, partial(self._on_event, path))
        return took_all

    def _send_small(self, packet: bytes, path: int = 0) -> None:
        """Send a small packet that may be lost."""
        with contextlib.suppress(OSError):  # treated like a lost packet
            self.bytes_out += self.sockets[path].send(packet)
            self.datagrams_out += 1

    def grant(self, total: int) -> None:
        """Grant the peer `total` packets since the start."""
        if self.lost is None and self.sockets:
            self._send_small(CREDIT.pack(GRANTED_KIND, 0, 0, self.secret, total))

    # ---- called by the event loop

    def on_due(self, now_s: float) -> None:
        """Handle timers."""
        if self._sender is None or self.lost is not None:
            return
        if now_s >= self._retry_s:
            self._retry_s = math.inf
        if now_s >= self._sender.recovery.due_s:
            for path in range(len(self.sockets)):
                self._read(path)  # if this rank is late, feedback may already be in the socket
            if self.lost is None and now_s >= self._sender.recovery.due_s:
                feedback = self._sender.on_timer(now_s)
                if self._spray is not None:
                    for path, lost in feedback.timed_out_by_path.items():
                        round_trip_s = self._sender.recovery.round_trips.smoothed_s
                        self._spray.record(path, 0, lost, 0, now_s, round_trip_s)
        self.pump()

    def _on_event(self, path: int, mask: int) -> None:
        if self.lost is not None:
            return
        sock = self.sockets[path]
        if mask & udp.ERROR:
            udp.drain_errors(sock)
        if mask & udp.WRITE and path in self._blocked:
            self._blocked.discard(path)
            self._watch(sock, udp.READ, partial(self._on_event, path))
        if mask & udp.READ:
            self._read(path)
        self.pump()

    def _read(self, path: int) -> None:
        """Receive one batch of packets and acknowledge it."""
        if self.lost is not None:
            return
        receive_batch = self._receive_batch
        try:
            count = receive_batch.receive(self.sockets[path])
        except OSError as error:
            self.fail(f"datagrams: {error.strerror}")
            return
        self.datagrams_in += count
        self.bytes_in += sum(receive_batch.sizes)
        runs, others, acks = udp.coalesce_packets(receive_batch, self.secret)
        for run in runs:
            rows = receive_batch.rows[run.at : run.at + run.packets]
            self.on_run(run, rows[:, DATA.size : receive_batch.sizes[run.at]])
            if self.lost is not None:
                return
        for position in others:
            self._on_other(receive_batch.packet(position), receive_batch.marked[position])
            if self.lost is not None:
                return
        if acks and self._sender is not None:
            for packet in acks:
                self._on_ack(packet)
                if self.lost is not None:
                    return
            if self._out is not None:
                self._out.forget(self._sender.recovery.low)
        for ack in self.receiver.acks():
            self._send_small(ack.pack(self.secret), ack.path)

    # ---- receiving

    def _on_other(self, packet: memoryview, marked: bool) -> None:
        """Handle a packet that is neither data nor an acknowledgement."""
        kind = packet[0]
        if kind == PARITY_KIND and len(packet) > DATA.size + PARITY.size:
            self.on_parity(Data._make(DATA.unpack_from(packet)), packet[DATA.size :], marked)
        elif kind == WANTED_KIND:
            total, granted = CREDIT.unpack_from(packet)[-1], self._granter.granted(self)
            if total <= granted:
                self.grant(granted)
            else:
                self._granter.request(self, total)
        elif kind == GRANTED_KIND and self._sender and isinstance(self._sender.control, Credits):
            self._sender.control.grant(CREDIT.unpack_from(packet)[-1])

    def _on_ack(self, packet: memoryview) -> None:
        assert self._sender is not None
        ack, now_s = unpack_ack(packet), self._clock()
        try:
            self._sender.on_ack(ack, now_s)
        except ValueError as error:
            self.fail(f"it sent {error}")
            return
        if self._spray is not None:
            self._spray.on_ack(ack, now_s, self._sender.recovery.round_trips.smoothed_s)

    # ---- statistics

    def snapshot(self) -> dict[str, float]:
        """Return the fields of `sockets.snapshot_connection`."""
        assert self._sender is not None
        return self._sender.snapshot(self.acknowledged * self._payload_bytes)

    @property
    def description(self) -> str:
        """The state of the pair, as text."""
        return "none yet" if self._sender is None else self._sender.describe(self.receiver)

    def totals(self) -> dict[str, Any]:
        """Return statistics, ready for JSON."""
        if self._sender is None:
            return {}
        totals = self._sender.totals(self.settings, self.receiver, self._spray)
        return {**totals, "packets_cut": self.datagrams_segmented}
