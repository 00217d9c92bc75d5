"""Messages on a fluid network: what their ranks' software takes of them, and how protocols hand them over.

As `transport.protocols` and `transport.host_costs` do it: a rank works on one message after another, at both ends;
messages of `rendezvous` leave once a note has come that they are waited for, those of `staged` go in chunks, of which
no more are under way than there are slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from testbed.comm.transport import PROTOCOLS, Software
from testbed.comm.transport.layers import NOTE_BYTES
from testbed.net.paths.network import Ends, LossDelay, Network
from testbed.prediction.channels import NO_STATE, ConnectionState, PersistentConnections
from testbed.prediction.collective_flow import software_part
from testbed.prediction.connections import Connections
from testbed.prediction.events import Event, EventQueue, Mailbox
from testbed.prediction.fluid import Fluid
from testbed.prediction.packets.connections import PacketConnections

SOON_S = 1e-9  # as far apart two moments are two, whatever digits clocks have

Key = tuple[object, ...]


@dataclass(eq=False)
class _Staged:
    """A message in chunks: how many may leave, have, have come and wait, are leaving their slots, have left those."""

    ends: Ends
    dscp: int
    chunks: Sequence[int]
    taken: Event
    granted: int
    received: Event | None = None
    begun: int = 0
    waiting: int = 0
    leaving: int = 0
    done: int = 0


@dataclass(eq=False)
class _Line:
    """Messages of one key, in their order: those with chunks that have to begin; ends that lack the other one.

    unannounced: whose receiver has not said yet that it waits; announced: how many did of messages that are not there.
    full: slots that chunks of announced messages are in, as the sender knows.
    """

    sends: deque[_Staged] = field(default_factory=deque)
    unreceived: deque[_Staged] = field(default_factory=deque)
    receives: deque[Event] = field(default_factory=deque)
    unannounced: deque[_Staged] = field(default_factory=deque)
    announced: int = 0
    full: int = 0


MEAN = LossDelay()


class Messaging(EventQueue):
    """Time, the network, and what is sent on it. `worked_s`: of each rank's software.

    burst_bytes: the most that any pair had to send at once.
    """

    def __init__(
        self,
        network: Network,
        ranks: int,
        software: Software,
        lateness: LossDelay = MEAN,
        kept: ConnectionState = NO_STATE,
    ) -> None:
        super().__init__()
        self.network, self.software, self.lateness = network, software, lateness
        protocol = PROTOCOLS.find(software.protocol)
        self._announced, self._copied = protocol.registers, protocol.copies
        parts = {software_part(rank): 1.0 for rank in range(ranks)}
        capacities = {**network.capacities, **parts}
        self.fluid = kept.fluid or Fluid(self, capacities, network.queues, network.classes)
        self.fluid.go_on(self)
        self.busy_until_s = [0.0] * ranks
        self.worked_s = [0.0] * ranks
        self.sending: dict[Ends, int] = {}
        self.burst_bytes = 0.0
        self.soon: deque[Callable[[], None]] = deque()  # what happens in this moment, behind what else does
        self.boxes: dict[Key, Mailbox] = {}
        self.lines: dict[Key, _Line] = {}
        self.connections: Connections | PersistentConnections
        if network.packets:
            lasting: PersistentConnections = kept.packets or PacketConnections(self, network, lateness.draw)
            lasting.go_on(self)
            self.connections = lasting
        else:
            self.connections = Connections(self, network, self.fluid, lateness, kept)

    def pass_time(self) -> None:
        """Until nothing is left that will happen."""
        agenda, soon, fluid, busy = self.agenda, self.soon, self.fluid, self.fluid.busy
        while True:
            now_s = self.now_s
            while agenda and agenda[0][0] <= now_s:
                heappop(agenda)[2]()
            while soon:
                soon.popleft()()
            if not busy:
                if not agenda:
                    break
                while agenda and not soon and not busy:
                    self.now_s, _, action = heappop(agenda)
                    action()
                continue
            leaves_s = fluid.leaves_s()
            if agenda and agenda[0][0] <= leaves_s:
                # what is told of messages that leave in this very moment happens in it
                self.now_s = agenda[0][0]
                if leaves_s - self.now_s > SOON_S:  # none does, most of the time
                    continue
            elif leaves_s > now_s:
                self.now_s = leaves_s
            fluid.leave()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Act after so long."""
        if (at_s := self.now_s + seconds) > self.now_s:
            heappush(self.agenda, (at_s, next(self.number), action))
        else:
            self.soon.append(action)

    def send(self, key: Key, ends: Ends, size_bytes: int, dscp: int, held: bool = False) -> Event:
        """Begin to send; the event is that the connection has taken the last byte, or that it is known to be there."""
        taken, box = Event(), self._box(key)
        if self._copied:
            box.leave(lambda: self._stage(key, ends, size_bytes, dscp, taken), held=held)
            return taken

        if self.network.is_written(ends, size_bytes):

            def there() -> None:
                box.arrive()
                self.later(self._back_s(ends, dscp), taken.happen)

            box.leave(lambda: self._transmit(ends, size_bytes, dscp, there, Event()), held=True)
        elif held or self._announced:
            box.leave(lambda: self._transmit(ends, size_bytes, dscp, box.arrive, taken), held=True)
        else:
            self._transmit(ends, size_bytes, dscp, box.arrive, taken)
        return taken

    def receive(self, key: Key, ends: Ends, size_bytes: int, dscp: int) -> Event:
        """Wait for the next message of this key; the event is that it is there."""
        box = self._box(key)
        if self._copied:
            box.allow()
            return self._unstage(key, ends, dscp)
        if not self._announced:
            if self.network.is_written(ends, size_bytes):
                back = ends[::-1]
                self._transmit(back, NOTE_BYTES, dscp, box.allow, Event(), note=True, worked=False)
            else:
                box.allow()
        elif not box.come:
            self._transmit(ends[::-1], NOTE_BYTES, dscp, box.allow, Event(), note=True)
        return box.receive()

    def put(self, key: Key, ends: Ends, size_bytes: int, dscp: int) -> Event:
        """Begin to write into the other side's memory, and a signal behind it, whatever the protocol is.

        The event is as that of `send`. The other side's software has to do with the signal alone.
        """
        taken, box = Event(), self._box(key)

        def come() -> None:
            self._work(ends[1], 0, box.arrive, note=False)

        def begin() -> None:
            self._transmit(ends, size_bytes, dscp, come, taken, worked=False)

        if self.network.is_written(ends, size_bytes):  # it asks for its place
            self.later(self._asked_s(ends, dscp), begin)
        else:
            begin()
        self._work(ends[0], 0, lambda: None, note=False)
        return taken

    def wait_signal(self, key: Key) -> Event:
        """Wait for the next signal of this key."""
        return self._box(key).receive()

    def _back_s(self, ends: Ends, dscp: int, size_bytes: float = 0) -> float:
        """What word of so many bytes takes from where a message goes to where it comes from."""
        return self.lateness.arrival_s(self.network.paths_of(ends[::-1], dscp), size_bytes)

    def _asked_s(self, ends: Ends, dscp: int) -> float:
        """Until a question that goes where a message will has been answered."""
        there_s = self.lateness.arrival_s(self.network.paths_of(ends, dscp), NOTE_BYTES)
        return there_s + self._back_s(ends, dscp, NOTE_BYTES)

    def _box(self, key: Key) -> Mailbox:
        box = self.boxes.get(key)
        if box is None:
            box = self.boxes[key] = Mailbox()
        return box

    def _transmit(
        self,
        ends: Ends,
        size_bytes: int,
        dscp: int,
        arrived: Callable[[], None],
        taken: Event,
        *,
        note: bool = False,
        worked: bool = True,
    ) -> None:
        """Through the sender's software, the network and, where that is worked at once, the receiver's software."""
        here, there = ends

        def come() -> None:
            if worked:
                self._work(there, size_bytes, arrived, note)
            else:
                arrived()

        def left() -> None:
            self.sending[ends] -= size_bytes

        def begin() -> None:
            self.sending[ends] = burst_bytes = self.sending.get(ends, 0) + size_bytes
            self.burst_bytes = max(self.burst_bytes, burst_bytes)
            self.connections.send(ends, dscp, size_bytes, taken, left, come)

        if note and not worked:  # a card's own
            begin()
        elif self.network.needs_grants:
            # what its pair still sends meanwhile it would have waited for anyway
            self._work(here, size_bytes, lambda: self.later(self._asked_s(ends, dscp), begin), note)
        else:
            self._work(here, size_bytes, begin, note)

    def _work(self, rank: int, size_bytes: float, action: Callable[[], None], note: bool) -> None:
        """A rank's software handles one message after the other; handing it over keeps none waiting."""
        software, now_s, until_s = self.software, self.now_s, self.busy_until_s[rank]
        cost_s = size_bytes * software.byte_s + (software.note_cost_s if note else software.message_s)
        self.worked_s[rank] += cost_s
        self.busy_until_s[rank] = until_s = (until_s if until_s > now_s else now_s) + cost_s
        self.later(until_s + (0.0 if note else software.handover_s) - now_s, action)

    # ---- in chunks

    def _stage(self, key: Key, ends: Ends, size_bytes: int, dscp: int, taken: Event) -> None:
        most = self.software.slots.chunk_bytes
        chunks = [most] * (size_bytes // most)
        if size_bytes % most or not chunks:
            chunks.append(size_bytes % most)
        slots, line = self.software.slots, self._line(key)
        message = _Staged(ends, dscp, chunks, taken, 0)
        if not slots.announced:
            message.granted = slots.count
        elif line.announced:
            line.announced -= 1
            message.granted = len(chunks)
        else:
            line.unannounced.append(message)
        line.sends.append(message)
        line.unreceived.append(message)
        self._match(line)
        self._fill_slots(line)

    def _unstage(self, key: Key, ends: Ends, dscp: int) -> Event:
        line, received = self._line(key), Event()
        line.receives.append(received)
        if self.software.slots.announced:
            self._transmit(ends[::-1], NOTE_BYTES, dscp, lambda: self._announce(line), Event(), note=True)
        self._match(line)
        return received

    def _announce(self, line: _Line) -> None:
        """The sender hears that a message is waited for."""
        if line.unannounced:
            message = line.unannounced.popleft()
            message.granted = len(message.chunks)
            self._fill_slots(line)
        else:
            line.announced += 1

    def _line(self, key: Key) -> _Line:
        return self.lines.setdefault(key, _Line())

    def _match(self, line: _Line) -> None:
        """Messages and receives find each other in their order; chunks that have come go out of their slots."""
        while line.unreceived and line.receives:
            message = line.unreceived.popleft()
            message.received = line.receives.popleft()
            come, message.waiting = message.waiting, 0
            for _ in range(come):
                self._take_out(line, message)

    def _fill_slots(self, line: _Line) -> None:
        """The first message in turn has all slots; behind its last chunk the next one has them.

        Messages whose receives are announced have them together.
        """
        slots = self.software.slots
        while line.sends:
            message = line.sends[0]
            while message.begun < min(len(message.chunks), message.granted):
                if slots.announced:
                    if line.full == slots.count:
                        return
                    line.full += 1
                self._send_chunk(line, message)
            if message.begun < len(message.chunks):
                return
            line.sends.popleft()

    def _send_chunk(self, line: _Line, message: _Staged) -> None:
        size_bytes = message.chunks[message.begun]
        message.begun += 1

        def come() -> None:
            if message.received is None:
                message.waiting += 1
            else:
                self._take_out(line, message)

        taken = message.taken if message.begun == len(message.chunks) else Event()
        self._transmit(message.ends, size_bytes, message.dscp, come, taken, worked=False)

    def _take_out(self, line: _Line, message: _Staged) -> None:
        """The next chunk, which has come."""
        size_bytes, slots = message.chunks[message.leaving], self.software.slots
        message.leaving += 1

        def out() -> None:
            message.done += 1
            # of slots that nobody waits for nothing is said: a receive that is announced later says that they are free
            if wanted():
                self._transmit(message.ends[::-1], NOTE_BYTES, message.dscp, free, Event(), note=True)
            elif slots.announced:
                line.full -= 1
            if message.done == len(message.chunks):
                assert message.received is not None
                message.received.happen()

        def wanted() -> bool:
            if slots.announced:
                return line.full == slots.count
            return message.done <= len(message.chunks) - slots.count

        def free() -> None:
            if slots.announced:
                line.full -= 1
            else:
                message.granted += 1
            self._fill_slots(line)

        self._work(message.ends[1], size_bytes, out, note=False)
