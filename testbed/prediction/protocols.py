"""Message protocols on a fluid network, and the software cost of messages at both ends.

This models `transport.protocols` and `transport.host_costs`. Ranks at both ends handle one message after another. A
`rendezvous` message leaves once the receiver has announced that it is waiting. A `staged` message is sent in chunks,
with at most one chunk per slot in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop

from testbed.comm.transport import PROTOCOLS, Software
from testbed.comm.transport.layers import NOTE_BYTES
from testbed.net.paths.network import Ends, LossDelay, Network
from testbed.prediction.collective_flow import software_part
from testbed.prediction.connections import NO_STATE, Connections, ConnectionState
from testbed.prediction.events import Event, EventQueue, Mailbox
from testbed.prediction.fluid import Fluid
from testbed.prediction.packets.connections import PacketConnections

SOON_S = 1e-9  # times further apart than this are distinct despite the clock's rounding

Key = tuple[object, ...]


@dataclass(eq=False)
class _Staged:
    """A message in chunks, with its counters.

    All attributes count chunks. `granted` may leave, `begun` have left, and `waiting` arrived before their receive.
    `leaving` are being copied out of their slots or have been, and `done` have been copied out.
    """

    ends: Ends
    dscp: int
    chunks: Sequence[int]
    accepted: Event
    granted: int
    received: Event | None = None
    begun: int = 0
    waiting: int = 0
    leaving: int = 0
    done: int = 0


@dataclass(eq=False)
class _StagedQueue:
    """Messages of one key, in order.

    `sends` has messages with chunks to send, `unreceived` messages without their receive, and `receives` receives
    without their message. `unannounced` has messages whose receiver has not announced that it is waiting, and
    `announced` announcements without their message. `full` counts slots that have chunks of announced messages, as far
    as the sender knows.
    """

    sends: deque[_Staged] = field(default_factory=deque)
    unreceived: deque[_Staged] = field(default_factory=deque)
    receives: deque[Event] = field(default_factory=deque)
    unannounced: deque[_Staged] = field(default_factory=deque)
    announced: int = 0
    full: int = 0


MEAN = LossDelay()


class Messaging(EventQueue):
    """The simulated clock and network, with messages sent over it.

    `worked_s` is the software time of each rank. `burst_bytes` is the most that any pair has to send at once.
    """

    def __init__(
        self,
        network: Network,
        ranks: int,
        software: Software,
        lateness: LossDelay = MEAN,
        state: ConnectionState = NO_STATE,
    ) -> None:
        super().__init__()
        self.network, self.software, self.lateness = network, software, lateness
        protocol = PROTOCOLS.find(software.protocol)
        self._announced, self._copied = protocol.registers, protocol.copies
        parts = {software_part(rank): 1.0 for rank in range(ranks)}
        capacities = {**network.capacities, **parts}
        self.fluid = state.fluid or Fluid(self, capacities, network.queues, network.classes)
        self.fluid.continue_on(self)
        self.busy_until_s = [0.0] * ranks
        self.worked_s = [0.0] * ranks
        self.sending: dict[Ends, int] = {}
        self.burst_bytes = 0.0
        self.mailboxes: dict[Key, Mailbox] = {}
        self.staged_queues: dict[Key, _StagedQueue] = {}
        self.connections: Connections | PacketConnections
        if network.packets:
            self.connections = state.packets or PacketConnections(self, network, lateness.draw)
            self.connections.continue_on(self)
        else:
            self.connections = Connections(self, network, self.fluid, lateness, state.lossy, state.paces)

    @property
    def state(self) -> ConnectionState:
        """The connections' state after this step, for the next one."""
        own = self.connections
        if isinstance(own, PacketConnections):
            return NO_STATE._replace(packets=own)
        return ConnectionState(own.lossy_windows, own.paces, self.fluid)

    def run_until_idle(self) -> None:
        """Run until there are no more events."""
        heap, soon, fluid = self.heap, self.soon, self.fluid
        while True:
            now_s = self.now_s
            while heap and heap[0][0] <= now_s:
                heappop(heap)[2]()
            while soon:
                soon.popleft()()
            if not fluid.busy:
                if not heap:
                    break
                while heap and not soon and not fluid.busy:
                    self.now_s, _, action = heappop(heap)
                    action()
                continue
            leaves_s = fluid.leaves_s()
            if heap and heap[0][0] <= leaves_s:
                # callbacks of messages that leave at this time belong to this time
                self.now_s = heap[0][0]
                if leaves_s - self.now_s > SOON_S:  # usually no message leaves now
                    continue
            elif leaves_s > now_s:
                self.now_s = leaves_s
            fluid.leave()

    def send(self, key: Key, ends: Ends, size_bytes: int, dscp: int, held: bool = False) -> Event:
        """Start to send a message.

        Args:
            key: Key of the message; messages with one key arrive in order.
            ends: Ranks of sender and receiver.
            size_bytes: Payload.
            dscp: Traffic class.
            held: Whether the message waits for its receive.

        Returns:
            The event that the connection has accepted the last byte. For a message that is written directly into the
            receiver's memory, it is the event that the sender knows of its arrival.
        """
        accepted, mailbox = Event(), self._mailbox(key)
        if self._copied:
            mailbox.send(lambda: self._stage(key, ends, size_bytes, dscp, accepted), held=held)
            return accepted

        if self.network.is_written(ends, size_bytes):

            def arrive() -> None:
                mailbox.arrive()
                self.call_later(self._reply_s(ends, dscp), accepted.trigger)

            mailbox.send(lambda: self._transmit(ends, size_bytes, dscp, arrive, Event()), held=True)
        elif held or self._announced:
            mailbox.send(lambda: self._transmit(ends, size_bytes, dscp, mailbox.arrive, accepted), held=True)
        else:
            self._transmit(ends, size_bytes, dscp, mailbox.arrive, accepted)
        return accepted

    def receive(self, key: Key, ends: Ends, size_bytes: int, dscp: int) -> Event:
        """Return the event that happens when the next message of this key has arrived."""
        mailbox = self._mailbox(key)
        if self._copied:
            mailbox.allow()
            return self._unstage(key, ends, dscp)
        if not self._announced:
            if self.network.is_written(ends, size_bytes):
                back = ends[::-1]
                self._transmit(back, NOTE_BYTES, dscp, mailbox.allow, Event(), note=True, worked=False)
            else:
                mailbox.allow()
        elif not mailbox.arrived:
            self._transmit(ends[::-1], NOTE_BYTES, dscp, mailbox.allow, Event(), note=True)
        return mailbox.receive()

    def put(self, key: Key, ends: Ends, size_bytes: int, dscp: int) -> Event:
        """Start a one-sided write into the peer's memory, followed by a signal, with any protocol.

        The returned event is the same as that of `send`. The peer's software handles only the signal.
        """
        accepted, mailbox = Event(), self._mailbox(key)

        def deliver() -> None:
            self._work(ends[1], 0, mailbox.arrive, note=False)

        def transmit() -> None:
            self._transmit(ends, size_bytes, dscp, deliver, accepted, worked=False)

        if self.network.is_written(ends, size_bytes):  # the sender first requests the address
            self.call_later(self._request_s(ends, dscp), transmit)
        else:
            transmit()
        self._work(ends[0], 0, lambda: None, note=False)
        return accepted

    def wait_signal(self, key: Key) -> Event:
        """Return the event that happens when the next signal of this key has arrived."""
        return self._mailbox(key).receive()

    def _reply_s(self, ends: Ends, dscp: int, size_bytes: float = 0) -> float:
        """Return the latency of a reply of this size from the receiver to the sender."""
        return self.lateness.arrival_s(self.network.paths_of(ends[::-1], dscp), size_bytes)

    def _request_s(self, ends: Ends, dscp: int) -> float:
        """Return the round-trip time of a request on the message's path and its reply."""
        there_s = self.lateness.arrival_s(self.network.paths_of(ends, dscp), NOTE_BYTES)
        return there_s + self._reply_s(ends, dscp, NOTE_BYTES)

    def _mailbox(self, key: Key) -> Mailbox:
        mailbox = self.mailboxes.get(key)
        if mailbox is None:
            mailbox = self.mailboxes[key] = Mailbox()
        return mailbox

    def _transmit(
        self,
        ends: Ends,
        size_bytes: int,
        dscp: int,
        arrived: Callable[[], None],
        accepted: Event,
        *,
        note: bool = False,
        worked: bool = True,
    ) -> None:
        """Send through the sender's software, the network and, if `worked`, the receiver's software."""
        source, target = ends

        def deliver() -> None:
            if worked:
                self._work(target, size_bytes, arrived, note)
            else:
                arrived()

        def on_sent() -> None:
            self.sending[ends] -= size_bytes

        def transmit() -> None:
            self.sending[ends] = burst_bytes = self.sending.get(ends, 0) + size_bytes
            self.burst_bytes = max(self.burst_bytes, burst_bytes)
            self.connections.send(ends, dscp, size_bytes, accepted, on_sent, deliver)

        if note and not worked:  # sent by the NIC itself
            transmit()
        elif self.network.needs_grants:
            # the pair's earlier data would delay it by as much anyway
            self._work(
                source, size_bytes, lambda: self.call_later(self._request_s(ends, dscp), transmit), note
            )
        else:
            self._work(source, size_bytes, transmit, note)

    def _work(self, rank: int, size_bytes: float, action: Callable[[], None], note: bool) -> None:
        """Handle a message in a rank's software, one at a time; the hand-over delays no other message."""
        software, now_s, until_s = self.software, self.now_s, self.busy_until_s[rank]
        cost_s = size_bytes * software.byte_s + (software.note_cost_s if note else software.message_s)
        self.worked_s[rank] += cost_s
        self.busy_until_s[rank] = until_s = (until_s if until_s > now_s else now_s) + cost_s
        self.call_later(until_s + (0.0 if note else software.handover_s) - now_s, action)

    # ---- in chunks

    def _stage(self, key: Key, ends: Ends, size_bytes: int, dscp: int, accepted: Event) -> None:
        most = self.software.slots.chunk_bytes
        chunks = [most] * (size_bytes // most)
        if size_bytes % most or not chunks:
            chunks.append(size_bytes % most)
        slots, queue = self.software.slots, self._staged_queue(key)
        message = _Staged(ends, dscp, chunks, accepted, 0)
        if not slots.announced:
            message.granted = slots.count
        elif queue.announced:
            queue.announced -= 1
            message.granted = len(chunks)
        else:
            queue.unannounced.append(message)
        queue.sends.append(message)
        queue.unreceived.append(message)
        self._match(queue)
        self._fill_slots(queue)

    def _unstage(self, key: Key, ends: Ends, dscp: int) -> Event:
        queue, received = self._staged_queue(key), Event()
        queue.receives.append(received)
        if self.software.slots.announced:
            self._transmit(ends[::-1], NOTE_BYTES, dscp, lambda: self._announce(queue), Event(), note=True)
        self._match(queue)
        return received

    def _announce(self, queue: _StagedQueue) -> None:
        """Notify the sender that the receiver is waiting for a message."""
        if queue.unannounced:
            message = queue.unannounced.popleft()
            message.granted = len(message.chunks)
            self._fill_slots(queue)
        else:
            queue.announced += 1

    def _staged_queue(self, key: Key) -> _StagedQueue:
        return self.staged_queues.setdefault(key, _StagedQueue())

    def _match(self, queue: _StagedQueue) -> None:
        """Match messages and receives in order; copy chunks that have arrived out of their slots."""
        while queue.unreceived and queue.receives:
            message = queue.unreceived.popleft()
            message.received = queue.receives.popleft()
            arrived, message.waiting = message.waiting, 0
            for _ in range(arrived):
                self._take_out(queue, message)

    def _fill_slots(self, queue: _StagedQueue) -> None:
        """Send chunks of the first message in all free slots; the next message follows its last chunk.

        Messages with announced receives share the slots.
        """
        slots = self.software.slots
        while queue.sends:
            message = queue.sends[0]
            while message.begun < min(len(message.chunks), message.granted):
                if slots.announced:
                    if queue.full == slots.count:
                        return
                    queue.full += 1
                self._send_chunk(queue, message)
            if message.begun < len(message.chunks):
                return
            queue.sends.popleft()

    def _send_chunk(self, queue: _StagedQueue, message: _Staged) -> None:
        size_bytes = message.chunks[message.begun]
        message.begun += 1

        def deliver() -> None:
            if message.received is None:
                message.waiting += 1
            else:
                self._take_out(queue, message)

        accepted = message.accepted if message.begun == len(message.chunks) else Event()
        self._transmit(message.ends, size_bytes, message.dscp, deliver, accepted, worked=False)

    def _take_out(self, queue: _StagedQueue, message: _Staged) -> None:
        """Copy the next chunk out of its slot."""
        size_bytes, slots = message.chunks[message.leaving], self.software.slots
        message.leaving += 1

        def out() -> None:
            message.done += 1
            # a slot that nobody waits for needs no note, since a later announcement reports it as free
            if wanted():
                self._transmit(message.ends[::-1], NOTE_BYTES, message.dscp, free, Event(), note=True)
            elif slots.announced:
                queue.full -= 1
            if message.done == len(message.chunks):
                assert message.received is not None
                message.received.trigger()

        def wanted() -> bool:
            if slots.announced:
                return queue.full == slots.count
            return message.done <= len(message.chunks) - slots.count

        def free() -> None:
            if slots.announced:
                queue.full -= 1
            else:
                message.granted += 1
            self._fill_slots(queue)

        self._work(message.ends[1], size_bytes, out, note=False)
