"""All queue pairs with one peer, for one class of traffic: who announces what, who writes where.

Small messages go whole, by SEND, over a queue pair of their own, the fast path, into whichever slot of the receiver's
is next. A receive of more is announced there, with the address of its memory; its sender writes straight into that,
cut into segments that go round the other queue pairs (see `channels`), and nothing is copied. A queue pair with too
many segments that no completion has come for is passed over; immediates let the receiver put segments in order.

Messages of a tag are matched in the order in which they were sent: a small one waits at its sender until large ones of
its tag before it have been announced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from testbed.comm.transport.base import PeerCounters, Request, TransportError
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.mailbox import Mailbox, wrong_length
from testbed.comm.transport.onesided import ExposedWindows, is_one_sided, is_put
from testbed.comm.transport.rdma import wire
from testbed.comm.transport.rdma.fast_path import FastPath
from testbed.comm.transport.rdma.verbs import Card, QueuePair, RegionCache
from testbed.comm.transport.rdma.wire import ANNOUNCE, ASK, DISCARD, MESSAGE, REFUSE, SLOTS, Frame, Immediate
from testbed.comm.transport.rdma.writes import Inbound, Outbound, Segments, WriteQueue


class RdmaPair:
    """Sends and receives are accepted at any time; they wait for `start`, and fail once the peer is lost."""

    def __init__(
        self,
        rank: int,
        peer: int,
        settings: StripeSettings,
        max_staged_bytes: int,
        counters: PeerCounters,
        exposed: ExposedWindows,
    ) -> None:
        self.rank, self.peer = rank, peer
        self.settings = settings
        self.counters = counters
        self.exposed = exposed
        self.lost: TransportError | None = None
        self.fast = FastPath()
        self.regions: RegionCache | None = None
        self._write_over: Sequence[QueuePair] = ()
        self._max_staged_bytes = max_staged_bytes
        # outgoing
        # by tag: a large one that is not announced, and all behind it
        self._held: dict[int, deque[Request]] = {}
        self._announced: dict[int, deque[Frame]] = {}  # by tag: receives that no message has come for yet
        self._told = 0  # of how many receives the peer has told
        self._writing = WriteQueue(settings)
        # incoming
        self._mailbox = Mailbox()
        self._asked: dict[int, deque[int]] = {}  # by tag: lengths of large messages that wait for a receive
        self._segments = Segments(self.settings.mode == "dqplb")
        self._waiting: deque[Inbound] = deque()  # receives that no slot was free for
        self._open: dict[int, list[Inbound]] = {}  # by tag: large receives that are not done
        self._slots: dict[int, Inbound] = {}
        self._number = 0  # of receives announced
        self._whole: dict[int, int] = {}  # by tag: the latest of those that a message has come for
        self._one_sided: deque[Inbound] = deque()  # puts and signals, in the order in which they were sent

    @property
    def may_part(self) -> bool:
        """Whether all that was begun has gone, as far as the peer has asked for it."""
        return self.lost is not None or not (self._writing.busy or self.fast.busy)

    # ---- what the rank asks for

    def send(self, request: Request) -> None:
        """Send now what can be sent, the rest when the peer has asked for it."""
        tag = request.tag
        if self.lost is not None:
            request.fail(self.lost)
        elif is_put(tag) and len(request.view) > self.settings.fast_bytes:
            self._held.setdefault(tag, deque()).append(request)
            self.fast.say(Frame(ASK, announced=self._told, tag=tag, length=len(request.view)))
        elif tag in self._held and not is_put(tag):
            self._held[tag].append(request)
        else:
            self._send_or_hold(request)

    def _send_or_hold(self, request: Request) -> bool:
        """Whether it could be sent; else it is the first of its tag to wait."""
        tag, length = request.tag, len(request.view)
        known = self._announced.get(tag)
        if length > self.settings.fast_bytes or known:
            if not known:
                self._held.setdefault(tag, deque()).appendleft(request)
                self.fast.say(Frame(ASK, announced=self._told, tag=tag, length=length))
                return False
            announced = known.popleft()
            if not known:
                del self._announced[tag]
            self._write(request, announced)
            return True
        self.fast.say(Frame(MESSAGE, announced=self._told, tag=tag, length=length), request.view)
        self._count_sent(request)
        return True

    def _write(self, request: Request, announced: Frame) -> None:
        """Into the receive that the peer has announced."""
        length = len(request.view)
        if length != announced.length:
            self.fast.say(Frame(REFUSE, announced.slot, length=length))
            request.complete()
            return
        assert self.regions is not None
        out = Outbound(request, self.regions.piece(request.view), announced)
        self._writing.add(out)

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or wait for it."""
        tag, length = request.tag, len(request.view)
        staged = self._mailbox.take_staged(tag)
        if staged is not None:
            if len(staged.view) != length:
                request.fail(wrong_length(self.rank, self.peer, tag, len(staged.view), length))
                return
            self._put(request, staged.view)
            return
        if self.lost is not None:
            request.fail(self.lost)
            return
        asked = self._take_asked(tag)
        if asked is not None and asked != length:
            self._discard(request, asked)
        elif length > self.settings.fast_bytes:
            self._announce(Inbound(request, asked is not None))
        else:
            self._mailbox.post(request)

    def _discard(self, request: Request, got: int) -> None:
        """The message that waits for this receive is of another length."""
        self.fast.say(Frame(DISCARD, tag=request.tag))
        request.fail(wrong_length(self.rank, self.peer, request.tag, got, len(request.view)))

    def _take_asked(self, tag: int) -> int | None:
        lengths = self._asked.get(tag)
        if lengths is None:
            return None
        length = lengths.popleft()
        if not lengths:
            del self._asked[tag]
        return length

    def _announce(self, into: Inbound) -> None:
        """Tell the peer where to write, when a slot is free."""
        self._open.setdefault(into.request.tag, []).append(into)
        self._waiting.append(into)
        self._announce_all()

    def _announce_all(self) -> None:
        while self._waiting and len(self._slots) < SLOTS and self.regions is not None and self.lost is None:
            into = self._waiting.popleft()
            slot = next(slot for slot in range(SLOTS) if slot not in self._slots)
            self._number += 1
            into.slot, into.number = slot, self._number
            into.piece = self.regions.piece(into.request.view)
            self._slots[slot] = into
            where = into.piece.address, into.piece.remote_key
            self.fast.say(
                Frame(ANNOUNCE, slot, self._number, into.request.tag, len(into.request.view), *where)
            )

    # ---- cards

    def attach(self, card: Card, fast: QueuePair, writing: Sequence[QueuePair], regions: RegionCache) -> None:
        """There are queue pairs; they are not connected yet."""
        self.fast.attach(card, fast)
        self._write_over, self.regions = tuple(writing), regions
        self._announce_all()

    def start(self) -> None:
        """The peer's queue pairs are connected, too."""
        if self.lost is None:
            self.fast.start()
            self._writing.start(self._write_over)

    def on_sent(self, queue_pair: int, work: int) -> None:
        """A segment is in the peer's memory."""
        request = self._writing.on_sent(queue_pair, work)
        if request is not None:
            self._count_sent(request)

    def on_written(self, immediate: Immediate, size_bytes: int) -> str:
        """A segment is in this rank's memory; what is wrong with it, empty where nothing is."""
        into = self._slots.get(immediate.slot)
        if into is None:
            return f"it wrote into slot {immediate.slot}, which is not announced"
        for done in self._segments.add(into, immediate, size_bytes):
            if done.received != len(done.request.view):
                return f"it wrote {done.received} of {len(done.request.view)} bytes"
            self._received(done)
        return ""

    def _received(self, into: Inbound) -> None:
        self._close(into)
        tag = into.request.tag
        self._whole[tag] = max(into.number, self._whole.get(tag, 0))
        self.counters.messages_received += 1
        self.counters.bytes_received += len(into.request.view)
        into.ended = True
        if is_one_sided(into.request.tag):
            self._tell_one_sided()
        else:
            into.request.complete()
        self._announce_all()

    def _close(self, into: Inbound) -> None:
        """It is announced no longer, or not any more."""
        if into.slot in self._slots:
            del self._slots[into.slot]
        else:
            self._waiting.remove(into)
        of_tag = self._open[into.request.tag]
        of_tag.remove(into)
        if not of_tag:
            del self._open[into.request.tag]
        if into.piece is not None:
            into.piece.release()

    # ---- what the peer says on the fast path

    def on_frame(self, frame: Frame, payload: memoryview) -> str:
        """What is wrong with it; empty where nothing is."""
        if frame.kind == MESSAGE:
            return self._on_message(frame, payload)
        if frame.kind == ANNOUNCE:
            self._told += 1
            self._on_announced(frame)
        elif frame.kind == ASK:
            return self._on_asked(frame)
        elif frame.kind == REFUSE:
            into = self._slots.get(frame.slot)
            if into is None:
                return f"it refuses slot {frame.slot}, which is not announced"
            self._close(into)
            request = into.request
            request.fail(wrong_length(self.rank, self.peer, request.tag, frame.length, len(request.view)))
            self._announce_all()
        elif frame.tag in self._held:
            self._held[frame.tag].popleft().complete()
            self._go_on(frame.tag)
        return ""

    def _on_message(self, frame: Frame, payload: memoryview) -> str:
        tag, length = frame.tag, len(payload)
        if length != frame.length:
            return f"its message has {length} bytes, of {frame.length}"
        self.counters.messages_received += 1
        self.counters.bytes_received += length
        self.counters.header_bytes_received += wire.HEADER.size
        if is_put(tag):
            placed = self.exposed.place(self.peer, tag, length)
            if isinstance(placed, str):
                return placed
            self._put(placed, payload)
            return ""
        if is_one_sided(tag):
            signal = Inbound(Request("recv", self.peer, tag, memoryview(b"")), ended=True)
            self._one_sided.append(signal)
            self._tell_one_sided()
            return ""
        if tag not in self._mailbox.posted:
            for into in self._open.get(tag, ()):
                if into.unknown_to_sender(frame.announced):
                    return self._misfit(into, length)
        return self._deliver(tag, payload)

    def _misfit(self, into: Inbound, length: int) -> str:
        """A small message for a large receive: its sender may yet be told where to write, and so is lost."""
        request = into.request
        self._close(into)
        error = wrong_length(self.rank, self.peer, request.tag, length, len(request.view))
        request.fail(error)
        return f"its message of {length} bytes does not fit a receive that is announced"

    def _deliver(self, tag: int, payload: memoryview) -> str:
        request, length = self._mailbox.take_posted(tag), len(payload)
        if request is None:
            if not self._mailbox.has_room(length, self._max_staged_bytes):
                return f"it sent more than {self._max_staged_bytes} bytes that nobody had asked for"
            self._mailbox.stage(tag, length).view[:] = payload
        elif len(request.view) != length:
            request.fail(wrong_length(self.rank, self.peer, tag, length, len(request.view)))
        else:
            self._put(request, payload)
        return ""

    def _put(self, request: Request, payload: memoryview) -> None:
        """A small message where it belongs."""
        if payload:  # a place for none may be of any kind
            request.view[:] = payload
            self.counters.bytes_copied += len(payload)
        request.complete()

    def _tell_one_sided(self) -> None:
        """Puts are over, and signals found, in their order, when they have come and all before them have."""
        waiting = self._one_sided
        while waiting and waiting[0].ended:
            into = waiting.popleft()
            if is_put(into.request.tag):
                into.request.complete()
            else:
                self._deliver(into.request.tag, into.request.view)

    def _on_announced(self, frame: Frame) -> None:
        waiting = self._held.get(frame.tag)
        if waiting is None:
            self._announced.setdefault(frame.tag, deque()).append(frame)
            return
        self._write(waiting.popleft(), frame)
        self._go_on(frame.tag)

    def _go_on(self, tag: int) -> None:
        """What waited behind the first of a tag, which waits no longer."""
        waiting = self._held.pop(tag)
        if is_put(tag):  # all of them have asked
            if waiting:
                self._held[tag] = waiting
            return
        while waiting:
            if not self._send_or_hold(waiting.popleft()):
                self._held[tag].extend(waiting)
                return

    def _on_asked(self, frame: Frame) -> str:
        """A large message waits for its receive."""
        tag, length = frame.tag, frame.length
        if is_put(tag):
            placed = self.exposed.place(self.peer, tag, length)
            if isinstance(placed, str):
                return placed
            into = Inbound(placed, matched=True)
            self._one_sided.append(into)
            self._announce(into)
            return ""
        if self._whole.get(tag, 0) > frame.announced:
            # told where to write meanwhile it did so, on queue pairs that are quicker than this one
            return ""
        for into in self._open.get(tag, ()):
            if into.unknown_to_sender(frame.announced):
                into.matched = True  # word of it is under way
                return ""
        request = self._mailbox.take_posted(tag)
        if request is not None:
            self._discard(request, length)
        else:
            self._asked.setdefault(tag, deque()).append(length)
        return ""

    # ---- ends

    def fail(self, reason: TransportError) -> None:
        """The peer is lost: fail all that waits for it. Whole small messages can still be received."""
        if self.lost is not None:
            return
        self.lost = reason
        self.fast.close()
        for queue_pair in self._write_over:
            queue_pair.close()
        under_way: list[Inbound | Outbound] = [*self._slots.values(), *self._waiting, *self._writing.stop()]
        held = [request for queue in self._held.values() for request in queue]
        for one in under_way:
            if one.piece is not None:
                one.piece.release()
        for kept in (self._slots, self._waiting, self._open):
            kept.clear()
        for more in (self._held, self._asked, self._announced, self._one_sided):
            more.clear()
        for request in (*(one.request for one in under_way), *held):
            request.fail(reason)
        self._mailbox.fail(reason)

    def _count_sent(self, request: Request) -> None:
        self.counters.messages_sent += 1
        self.counters.bytes_sent += len(request.view)
        self.counters.header_bytes_sent += wire.HEADER.size
        request.complete()
