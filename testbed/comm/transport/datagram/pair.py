"""All that goes between this rank and a peer as datagrams, for one class of traffic: messages to packets and back."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from testbed.clock import clock_here
from testbed.comm.transport.base import PeerCounters, PeerLost, Request, TransportError
from testbed.comm.transport.datagram import stats, udp
from testbed.comm.transport.datagram.buffers import ReceiveBuffer, SendBuffer
from testbed.comm.transport.datagram.controls import Credits, Granter
from testbed.comm.transport.datagram.packets import (
    CREDIT,
    DATA,
    ETHERNET_HEADER_BYTES,
    GRANTED_KIND,
    HEADER_ROOM,
    PARITY,
    PARITY_KIND,
    UDP_HEADERS_BYTES,
    WANTED_KIND,
    Data,
    unpack_ack,
)
from testbed.comm.transport.datagram.recoveries import RECOVERIES, Item
from testbed.comm.transport.datagram.sender import DatagramSettings, Route, Sender, make_sender
from testbed.comm.transport.datagram.spraying import Spray
from testbed.comm.transport.datagram.udp import coalesce_packets
from testbed.comm.transport.onesided import ExposedWindows

# until a card whose queue was full is tried again: by the real clock when a third of the shortest has gone
NO_ROOM_S, NO_ROOM_PACKETS = 0.0005, 20


class DatagramPair(ReceiveBuffer):
    """watch: (socket, events, handler) as of the event loop. on_due: told when this pair wants to be looked at."""

    def __init__(
        self,
        rank: int,
        peer: int,
        settings: DatagramSettings,
        max_staged_bytes: int,
        counters: PeerCounters,
        exposed: ExposedWindows,
        outbox: udp.SendBatch,
        inbox: udp.ReceiveBatch,
        granter: Granter,
        watch: Callable[[socket.socket, int, Callable[[int], None]], None],
        clock: Callable[[], float],
        on_due: Callable[[DatagramPair, float], None],
    ) -> None:
        kind, paths = RECOVERIES[settings.recovery], settings.paths
        super().__init__(rank, peer, max_staged_bytes, counters, exposed, paths, kind.in_order, kind.code)
        self.settings = settings
        # told a reason to lose the peer, which the peer is told, too
        self.on_fault: Callable[[str], None] | None = None
        self.sockets: list[socket.socket] = []
        self._outbox, self._inbox, self._granter = outbox, inbox, granter
        self._watch, self._clock, self._on_due = watch, clock, on_due
        self._waiting: list[Request] = []  # until the pair stands
        self._out: SendBuffer | None = None
        self._full: set[int] = set()  # sockets that take nothing now, by path
        self._again_s = math.inf  # when to try a card whose queue was full
        self._no_room_s = NO_ROOM_S
        self._sender: Sender | None = None
        self.secret = 0
        self._payload_bytes = 0
        self._spray = Spray(settings.paths) if settings.paths > 1 else None
        self.datagrams_out = self.datagrams_in = self.bytes_out = self.bytes_in = 0
        self.datagrams_cut = 0  # from trains: of those that were sent, which IP did not count

    # ---- beginning and end

    @property
    def stands(self) -> bool:
        """Whether both ends have their sockets."""
        return self._sender is not None

    @property
    def may_part(self) -> bool:
        """Whether nothing is left that the peer does not have."""
        return self.lost is not None or (not self._waiting and (self._sender is None or self._sender.idle))

    @property
    def acknowledged(self) -> int:
        """Packets that the peer has said to have, with all before them."""
        return self._sender.recovery.low if self._sender else 0

    def begin_sockets(self, sockets: list[socket.socket], secret: int) -> None:
        """These are this end's, one for each path."""
        self.sockets, self.secret = sockets, secret
        for path, sock in enumerate(sockets):
            self._watch(sock, udp.READ, partial(self._on_event, path))

    def stand(self, round_trip_s: float, route: Route) -> None:
        """Both ends have their sockets: packets may go. round_trip_s: a first guess."""
        if self.stands or self.lost is not None:
            return
        settings = self.settings
        self._payload_bytes = udp.payload_bytes(self.sockets[0])
        frame_bytes = self._payload_bytes + HEADER_ROOM + UDP_HEADERS_BYTES + ETHERNET_HEADER_BYTES
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
        """The peer is lost: let the sockets go, fail all that waits. Whole messages can still be received."""
        if self.lost is not None:
            return
        if isinstance(reason, str) and self.on_fault is not None:
            self.on_fault(reason)  # which comes back here with the error
            return
        self.lost = PeerLost(self.rank, self.peer, reason) if isinstance(reason, str) else reason
        for sock in self.sockets:
            self._watch(sock, 0, self._ignore)
            sock.close()
        self._granter.forget(self)
        self._fail_incoming(self.lost)
        pending = [*self._waiting, *(self._out.drop() if self._out else ())]
        self._waiting.clear()
        for request in pending:
            request.fail(self.lost)

    @staticmethod
    def _ignore(mask: int) -> None:
        """The handler of what is no longer watched."""

    # ---- sending

    def send(self, request: Request) -> None:
        """Send now as far as may be, the rest when it may."""
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
        """Send what may be sent now; see to what is due."""
        sender = self._sender
        if sender is None or self.lost is not None:
            return
        now_s = self._clock()
        while self._again_s == math.inf and self.lost is None:
            if self._spray is None and (numbers := sender.fresh(udp.BATCH, now_s)):
                if 0 in self._full or not self._transmit_run(numbers, now_s):
                    break
                continue
            items = sender.items(udp.BATCH, now_s)
            if not items or not self._transmit(items, now_s):
                break
        if self.lost is not None:
            return
        wanted = sender.wants(now_s)
        if wanted is not None:
            self._tell(CREDIT.pack(WANTED_KIND, 0, 0, self.secret, wanted))
        due_s = min(sender.due_s, self._again_s)
        if not self._full:
            self._on_due(self, due_s)
        elif sender.recovery.due_s < math.inf:
            self._on_due(self, sender.recovery.due_s)

    def _transmit(self, items: list[Item], now_s: float) -> bool:
        """Send these, in their order; whether all went."""
        if self._spray is None:
            return 0 not in self._full and self._transmit_on(0, items, now_s, len(items) - 1)
        paths = len(self.sockets)
        for position, item in enumerate(items):
            path = self._spray.choose(now_s)
            if path in self._full:
                path = next((other for other in range(paths) if other not in self._full), -1)
            asks_from = 0 if position >= len(items) - paths else 1
            if path < 0 or not self._transmit_on(path, [item], now_s, asks_from):
                return False
        return True

    def _transmit_on(self, path: int, items: list[Item], now_s: float, asks_from: int) -> bool:
        """asks_from: the position from which on packets ask for an acknowledgement, whatever else."""
        sender, out = self._sender, self._out
        assert sender is not None
        assert out is not None
        serial = sender.recovery.next_serial(path)
        sizes: list[tuple[int, int, int]] = []
        for position, item in enumerate(items):
            asks = sender.asks(position >= asks_from)
            at = position * udp.HEADER_STRIDE
            sizes.append(out.write(self._outbox.headers, at, item, path, serial + position, asks))
        told = list(map(list, zip(*sizes, strict=True)))

        def note(took: int) -> None:
            for item in items[:took]:
                sender.sent(item, path, now_s)

        return self._hand_over(path, partial(self._outbox.send, self.sockets[path], *told), told, note)

    def _transmit_run(self, numbers: range, now_s: float) -> bool:
        """As `_transmit`, of packets of data in a row on the only path."""
        sender, out = self._sender, self._out
        assert sender is not None
        assert out is not None
        serial, asking = sender.recovery.next_serial(0), sender.asking(len(numbers))
        told = out.write_run(self._outbox.words, numbers, 0, serial, asking)
        send = partial(self._outbox.send_trains, self.sockets[0], self._trains, *told)
        return self._hand_over(0, send, told, lambda took: sender.sent_run(numbers[:took], 0, now_s))

    def _hand_over(
        self,
        path: int,
        send: Callable[[], int],
        told: Sequence[udp.PerPacket],
        note: Callable[[int], object],
    ) -> bool:
        """Have the kernel send, and note how many packets it took; whether it was all.

        told: of each the size of its header, address and size of its payload.
        """
        cut = self._outbox.cut
        try:
            took = send()
        except (BlockingIOError, ConnectionRefusedError):
            took = 0  # refused was an earlier packet; the lifeline tells what it means
        except udp.QueueFull:
            self._again_s = self._clock() + self._no_room_s
            return False
        except OSError as error:
            self.fail(f"datagrams: {error.strerror}")
            return False
        if took:
            header_bytes, payload_bytes = (int(np.sum(figures[:took])) for figures in told[::2])
            self.counters.header_bytes_sent += header_bytes
            self.bytes_out += header_bytes + payload_bytes
            self.datagrams_out += took
            self.datagrams_cut += self._outbox.cut - cut
            note(took)
            assert self._out is not None
            assert self._sender is not None
            self._out.complete(self._sender.recovery)
        if took < len(told[0]):
            self._wait_for(path)
        return took == len(told[0])

    def _wait_for(self, path: int) -> None:
        """Until the kernel takes more."""
        if path not in self._full and self.lost is None:
            self._full.add(path)
            self._watch(self.sockets[path], udp.READ | udp.WRITE, partial(self._on_event, path))

    def _tell(self, packet: bytes, path: int = 0) -> None:
        """Send something small that may be lost."""
        with contextlib.suppress(OSError):  # it is lost here, then
            self.bytes_out += self.sockets[path].send(packet)
            self.datagrams_out += 1

    def grant(self, total: int) -> None:
        """Let the peer have sent so many packets in all."""
        if self.lost is None and self.sockets:
            self._tell(CREDIT.pack(GRANTED_KIND, 0, 0, self.secret, total))

    # ---- what the event loop tells

    def on_due(self, now_s: float) -> None:
        """Time has passed."""
        if self._sender is None or self.lost is not None:
            return
        if now_s >= self._again_s:
            self._again_s = math.inf
        if now_s >= self._sender.recovery.due_s:
            for path in range(len(self.sockets)):
                self._read(path)  # word of it may be there, when it is this rank that is late
            if self.lost is None and now_s >= self._sender.recovery.due_s:
                news = self._sender.on_timer(now_s)
                if self._spray is not None:
                    for path, lost in news.late_on.items():
                        round_trip_s = self._sender.recovery.round_trips.smoothed_s
                        self._spray.heard(path, 0, lost, 0, now_s, round_trip_s)
        self.pump()

    def _on_event(self, path: int, mask: int) -> None:
        if self.lost is not None:
            return
        sock = self.sockets[path]
        if mask & udp.ERROR:
            udp.drain_errors(sock)
        if mask & udp.WRITE and path in self._full:
            self._full.discard(path)
            self._watch(sock, udp.READ, partial(self._on_event, path))
        if mask & udp.READ:
            self._read(path)
        self.pump()

    def _read(self, path: int) -> None:
        """Take some of what has come, and say so."""
        if self.lost is not None:
            return
        inbox = self._inbox
        try:
            count = inbox.receive(self.sockets[path])
        except OSError as error:
            self.fail(f"datagrams: {error.strerror}")
            return
        self.datagrams_in += count
        self.bytes_in += sum(inbox.sizes)
        runs, others, acks = coalesce_packets(inbox, self.secret)
        for run in runs:
            rows = inbox.rows[run.at : run.at + run.packets]
            self.on_run(run, rows[:, DATA.size : inbox.sizes[run.at]])
            if self.lost is not None:
                return
        for position in others:
            self._on_other(inbox.packet(position), inbox.marked[position])
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
            self._tell(ack.pack(self.secret), ack.path)

    # ---- receiving

    def _on_other(self, packet: memoryview, marked: bool) -> None:
        """Neither data nor an acknowledgement."""
        kind = packet[0]
        if kind == PARITY_KIND and len(packet) > DATA.size + PARITY.size:
            self.on_parity(Data._make(DATA.unpack_from(packet)), packet[DATA.size :], marked)
        elif kind == WANTED_KIND:
            self._on_wanted(CREDIT.unpack_from(packet)[-1])
        elif kind == GRANTED_KIND and self._sender and isinstance(self._sender.control, Credits):
            self._sender.control.grant(CREDIT.unpack_from(packet)[-1])

    def _on_ack(self, packet: memoryview) -> None:
        assert self._sender is not None
        ack, now_s = unpack_ack(packet), self._clock()
        try:
            self._sender.heard(ack, now_s)
        except ValueError as error:
            self.fail(f"it sent {error}")
            return
        if self._spray is not None:
            self._spray.told(ack, now_s, self._sender.recovery.round_trips.smoothed_s)

    def _on_wanted(self, total: int) -> None:
        granted = self._granter.granted(self)
        if total <= granted:
            self.grant(granted)
        else:
            self._granter.want(self, total)

    # ---- for people

    def glance(self) -> dict[str, float]:
        """As `sockets.glance` of a TCP connection."""
        assert self._sender is not None
        return stats.snapshot_pair(self._sender, self.acknowledged * self._payload_bytes)

    @property
    def words(self) -> str:
        """How it stands."""
        if self._sender is None:
            return "none yet"
        return stats.describe_pair(self._sender, self.receiver)

    def figures(self) -> dict[str, Any]:
        """What has happened, ready for JSON."""
        if self._sender is None:
            return {}
        found = stats.pair_totals(self.settings, self._sender, self.receiver, self._spray)
        return {**found, "packets_cut": self.datagrams_cut}
