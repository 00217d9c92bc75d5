"""All queue pairs with one peer, for one class of traffic: announcements of receives, and writes into them.

Small messages go in one piece, by SEND, over a separate queue pair, the fast path, into the receiver's next slot. A
larger receive is announced there, with the address of its memory. Its sender writes straight into that memory, in
segments that use the other queue pairs round-robin (see `channels`), and nothing is copied. A queue pair with too many
segments without a completion is skipped. Immediates let the receiver put segments in order.

Messages of a tag are matched in the order in which they were sent: a small one waits at its sender until earlier
large ones of its tag have been announced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from testbed.comm.transport.base import Request, TransportError
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.mailbox import Mailbox, TagQueues, wrong_length
from testbed.comm.transport.onesided import PeerEnd, is_one_sided, is_put
from testbed.comm.transport.rdma import wire
from testbed.comm.transport.rdma.card import Card, QueuePair
from testbed.comm.transport.rdma.queues import FastPath, Inbound, Outbound, Segments, WriteQueue
from testbed.comm.transport.rdma.regions import RegionCache
from testbed.comm.transport.rdma.wire import ANNOUNCE, ASK, DISCARD, MESSAGE, REFUSE, SLOTS, Frame, Immediate


class RdmaPair:
    """One peer's queue pairs.

    Sends and receives are always accepted: they wait for `start`, and fail if the peer is lost.
    """

    def __init__(self, end: PeerEnd, settings: StripeSettings) -> None:
        self.rank, self.peer, self.counters, self.exposed, self._max_staged_bytes = end
        self.settings = settings
        self.lost: TransportError | None = None
        self.fast = FastPath()
        self.regions: RegionCache | None = None
        self._write_queue_pairs: Sequence[QueuePair] = ()
        # outgoing
        # by tag: a large message whose receive is not announced, and all messages behind it
        self._waiting_sends: dict[int, deque[Request]] = {}
        self._announced: TagQueues[Frame] = TagQueues()  # by tag: the peer's receives without a message
        self._known_receives = 0  # how many receives the peer has announced
        self._writes = WriteQueue(settings)
        # incoming
        self._mailbox = Mailbox()
        self._asked_lengths: TagQueues[int] = (
            TagQueues()
        )  # by tag: lengths of large messages without a receive
        self._segments = Segments(self.settings.mode == "dqplb")
        self._waiting: deque[Inbound] = deque()  # large receives without a slot
        self._open: dict[int, list[Inbound]] = {}  # by tag: incomplete large receives
        self._slots: dict[int, Inbound] = {}
        self._number = 0  # number of the last announced receive
        self._last_received: dict[int, int] = {}  # by tag: the number of the latest completed receive
        self._one_sided: deque[Inbound] = deque()  # puts and signals, in sending order

    @property
    def is_connected(self) -> bool:
        """Whether the peer's queue pairs are connected to this rank's."""
        return self.fast.ready

    @property
    def queue_pairs(self) -> list[QueuePair]:
        """The queue pair of the fast path, and those of writes; empty before `attach`."""
        fast = self.fast.queue_pair
        return [] if fast is None else [fast, *self._write_queue_pairs]

    @property
    def can_say_goodbye(self) -> bool:
        """Whether everything that the peer has requested has been sent."""
        return self.lost is not None or not (self._writes.busy or self.fast.busy)

    # ---- called by the rank

    def send(self, request: Request) -> None:
        """Send what can be sent now, and the rest when the peer has requested it."""
        tag = request.tag
        if self.lost is not None:
            request.fail(self.lost)
        elif is_put(tag) and len(request.view) > self.settings.fast_bytes:
            self._waiting_sends.setdefault(tag, deque()).append(request)
            self.fast.send(Frame(ASK, announced=self._known_receives, tag=tag, length=len(request.view)))
        elif tag in self._waiting_sends and not is_put(tag):
            self._waiting_sends[tag].append(request)
        else:
            self._send_or_hold(request)

    def _send_or_hold(self, request: Request) -> bool:
        """Return whether the message could be sent; otherwise it is the first of its tag to wait."""
        tag, length = request.tag, len(request.view)
        announced = self._announced.take(tag)
        if length > self.settings.fast_bytes or announced is not None:
            if announced is None:
                self._waiting_sends.setdefault(tag, deque()).appendleft(request)
                self.fast.send(Frame(ASK, announced=self._known_receives, tag=tag, length=length))
                return False
            self._write(request, announced)
            return True
        self.fast.send(Frame(MESSAGE, announced=self._known_receives, tag=tag, length=length), request.view)
        self._count_sent(request)
        return True

    def _write(self, request: Request, announced: Frame) -> None:
        """Write a message into the receive that the peer has announced."""
        length = len(request.view)
        if length != announced.length:
            self.fast.send(Frame(REFUSE, announced.slot, length=length))
            request.complete()
            return
        assert self.regions is not None
        out = Outbound(request, self.regions.piece(request.view), announced)
        self._writes.add(out)

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or wait for it."""
        tag, length = request.tag, len(request.view)
        staged = self._mailbox.take_staged(tag)
        if staged is not None:
            if len(staged.view) != length:
                request.fail(wrong_length(self.rank, self.peer, tag, len(staged.view), length))
                return
            self._copy_into(request, staged.view)
            return
        if self.lost is not None:
            request.fail(self.lost)
            return
        asked_length = self._asked_lengths.take(tag)
        if asked_length is not None and asked_length != length:
            self._discard(request, asked_length)
        elif length > self.settings.fast_bytes:
            self._announce(Inbound(request, asked_length is not None))
        else:
            self._mailbox.posted.put(request.tag, request)

    def _discard(self, request: Request, got: int) -> None:
        """Refuse the message that waits for this receive, because its length differs."""
        self.fast.send(Frame(DISCARD, tag=request.tag))
        request.fail(wrong_length(self.rank, self.peer, request.tag, got, len(request.view)))

    def _announce(self, into: Inbound) -> None:
        """Announce the receive's memory to the peer, once a slot is free."""
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
            self.fast.send(
                Frame(ANNOUNCE, slot, self._number, into.request.tag, len(into.request.view), *where)
            )

    # ---- called on events of the NIC

    def attach(self, card: Card, fast: QueuePair, writing: Sequence[QueuePair], regions: RegionCache) -> None:
        """Use these queue pairs, which are not connected yet."""
        self.fast.attach(card, fast)
        self._write_queue_pairs, self.regions = tuple(writing), regions
        self._announce_all()

    def start(self) -> None:
        """Start sending: the peer's queue pairs are connected, too."""
        if self.lost is None:
            self.fast.start()
            self._writes.start(self._write_queue_pairs)

    def on_sent(self, queue_pair: int, work: int) -> None:
        """Handle the completion of a segment, which is in the peer's memory now."""
        request = self._writes.on_sent(queue_pair, work)
        if request is not None:
            self._count_sent(request)

    def on_written(self, immediate: Immediate, size_bytes: int) -> str:
        """Handle a segment that was written into this rank's memory; return what is wrong with it, or ""."""
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
        self._last_received[tag] = max(into.number, self._last_received.get(tag, 0))
        self.counters.messages_received += 1
        self.counters.bytes_received += len(into.request.view)
        into.ended = True
        if is_one_sided(into.request.tag):
            self._complete_one_sided()
        else:
            into.request.complete()
        self._announce_all()

    def _close(self, into: Inbound) -> None:
        """Withdraw a receive that is announced, or waits to be announced."""
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

    # ---- frames from the peer

    def on_frame(self, frame: Frame, payload: memoryview) -> str:
        """Handle a frame of the fast path; return what is wrong with it, or ""."""
        if frame.kind == MESSAGE:
            return self._on_message(frame, payload)
        if frame.kind == ANNOUNCE:
            self._known_receives += 1
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
        elif frame.tag in self._waiting_sends:
            self._waiting_sends[frame.tag].popleft().complete()
            self._send_next(frame.tag)
        return ""

    def _on_message(self, frame: Frame, payload: memoryview) -> str:
        tag, length = frame.tag, len(payload)
        if length != frame.length:
            return f"its message has {length} bytes, its header says {frame.length}"
        self.counters.messages_received += 1
        self.counters.bytes_received += length
        self.counters.header_bytes_received += wire.HEADER.size
        if is_put(tag):
            placed = self.exposed.place(self.peer, tag, length)
            if isinstance(placed, str):
                return placed
            self._copy_into(placed, payload)
            return ""
        if is_one_sided(tag):
            signal = Inbound(Request("recv", self.peer, tag, memoryview(b"")), ended=True)
            self._one_sided.append(signal)
            self._complete_one_sided()
            return ""
        if tag not in self._mailbox.posted:
            for into in self._open.get(tag, ()):
                if into.unknown_to_sender(frame.announced):
                    return self._reject_message(into, length)
        return self._deliver(tag, payload)

    def _reject_message(self, into: Inbound, length: int) -> str:
        """Fail a large receive whose message is small.

        The peer may already have its announcement and could still write there, so the peer is treated as lost.
        """
        request = into.request
        self._close(into)
        error = wrong_length(self.rank, self.peer, request.tag, length, len(request.view))
        request.fail(error)
        return f"its message of {length} bytes does not fit a receive that is announced"

    def _deliver(self, tag: int, payload: memoryview) -> str:
        request, length = self._mailbox.posted.take(tag), len(payload)
        if request is None:
            if not self._mailbox.has_room(length, self._max_staged_bytes):
                return f"it sent more than {self._max_staged_bytes} bytes without a posted receive"
            self._mailbox.stage(tag, length).view[:] = payload
        elif len(request.view) != length:
            request.fail(wrong_length(self.rank, self.peer, tag, length, len(request.view)))
        else:
            self._copy_into(request, payload)
        return ""

    def _copy_into(self, request: Request, payload: memoryview) -> None:
        """Copy a small message into its receive."""
        if payload:  # an empty buffer may be read-only
            request.view[:] = payload
            self.counters.bytes_copied += len(payload)
        request.complete()

    def _complete_one_sided(self) -> None:
        """Complete puts and deliver signals in order, each once it and all earlier ones have arrived."""
        waiting = self._one_sided
        while waiting and waiting[0].ended:
            into = waiting.popleft()
            if is_put(into.request.tag):
                into.request.complete()
            else:
                self._deliver(into.request.tag, into.request.view)

    def _on_announced(self, frame: Frame) -> None:
        waiting = self._waiting_sends.get(frame.tag)
        if waiting is None:
            self._announced.put(frame.tag, frame)
            return
        self._write(waiting.popleft(), frame)
        self._send_next(frame.tag)

    def _send_next(self, tag: int) -> None:
        """Send the messages of a tag that waited behind the first one, which no longer waits."""
        waiting = self._waiting_sends.pop(tag)
        if is_put(tag):  # each of them has sent an ASK
            if waiting:
                self._waiting_sends[tag] = waiting
            return
        while waiting:
            if not self._send_or_hold(waiting.popleft()):
                self._waiting_sends[tag].extend(waiting)
                return

    def _on_asked(self, frame: Frame) -> str:
        """Handle the peer's request for a large message's receive."""
        tag, length = frame.tag, frame.length
        if is_put(tag):
            placed = self.exposed.place(self.peer, tag, length)
            if isinstance(placed, str):
                return placed
            into = Inbound(placed, matched=True)
            self._one_sided.append(into)
            self._announce(into)
            return ""
        if self._last_received.get(tag, 0) > frame.announced:
            # the peer has received the announcement meanwhile, and its writes overtook this frame on other queue pairs
            return ""
        for into in self._open.get(tag, ()):
            if into.unknown_to_sender(frame.announced):
                into.matched = True  # the announcement is on its way
                return ""
        request = self._mailbox.posted.take(tag)
        if request is not None:
            self._discard(request, length)
        else:
            self._asked_lengths.put(tag, length)
        return ""

    # ---- end

    def fail(self, reason: TransportError) -> None:
        """Mark the peer as lost and fail all requests. Whole small messages can still be received."""
        if self.lost is not None:
            return
        self.lost = reason
        self.fast.close()
        for queue_pair in self._write_queue_pairs:
            queue_pair.close()
        in_flight: list[Inbound | Outbound] = [*self._slots.values(), *self._waiting, *self._writes.stop()]
        held = [request for queue in self._waiting_sends.values() for request in queue]
        for one in in_flight:
            if one.piece is not None:
                one.piece.release()
        for receives in (self._slots, self._waiting, self._open):
            receives.clear()
        for by_tag in (self._waiting_sends, self._asked_lengths, self._announced, self._one_sided):
            by_tag.clear()
        for request in (*(one.request for one in in_flight), *held):
            request.fail(reason)
        self._mailbox.fail(reason)

    def _count_sent(self, request: Request) -> None:
        self.counters.messages_sent += 1
        self.counters.bytes_sent += len(request.view)
        self.counters.header_bytes_sent += wire.HEADER.size
        request.complete()
