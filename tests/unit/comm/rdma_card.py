"""A card in memory: queue pairs that are ordered each, and not among each other; writes go where their key allows."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable

from testbed.comm.transport import TransportError
from testbed.comm.transport.rdma.card import Card, QueuePair, Region
from testbed.comm.transport.rdma.verbs import (
    RECEIVED,
    SENT,
    WRITTEN,
    Address,
    CardCounts,
    Completion,
)

SLOT_BYTES, SLOTS = 8192 + 64, 64


class MemoryFabric:
    """Cards that reach each other."""

    def __init__(self, seed: int) -> None:
        self.lock = threading.RLock()
        self.draw = random.Random(seed)
        self.queue_pairs: dict[int, MemoryQueuePair] = {}
        self.reordered = 0


class MemoryRegion(Region):
    def __init__(self, card: MemoryCard, address: int, size_bytes: int, writable: bool) -> None:
        self.card, self.address, self.size_bytes, self.writable = card, address, size_bytes, writable
        self.key = self.remote_key = card.next_key = card.next_key + 1
        card.regions[self.key] = self

    def close(self) -> None:
        self.card.regions.pop(self.key, None)

    def holds(self, address: int, size_bytes: int) -> bool:
        return self.address <= address <= address + size_bytes <= self.address + self.size_bytes


class MemoryCard(Card):
    """What comes is taken when completions are looked at, a queue pair after another in any order."""

    def __init__(self, fabric: MemoryFabric) -> None:
        self.fabric = fabric
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.regions: dict[int, MemoryRegion] = {}
        self.next_key = 0
        self.slots = [memoryview(bytearray(SLOT_BYTES)) for _ in range(SLOTS)]
        self.free_slots = deque(range(SLOTS))
        self.coming: defaultdict[int, deque[Callable[[], Completion | None]]] = defaultdict(deque)
        self.sent: deque[Completion] = deque()
        # completions of writes, told when all else is looked at once more
        self.late: deque[Completion] = deque()
        self.sending = 0
        self.told: CardCounts | None = None

    def fileno(self) -> int:
        return self.bell

    def ring(self) -> None:
        if self.bell >= 0:
            os.eventfd_write(self.bell, 1)

    def queue_pair(self, fast: bool, depth: int, port: int, dscp: int) -> MemoryQueuePair:
        return MemoryQueuePair(self)

    def send(self, queue_pair: QueuePair, header: bytes, body: bytes | memoryview) -> bool:
        assert isinstance(queue_pair, MemoryQueuePair)
        with self.fabric.lock:
            if self.sending == SLOTS:
                return False
            self.sending += 1
            data = header + bytes(body)
            assert len(data) <= SLOT_BYTES
            peer = queue_pair.peer

            def arrive() -> Completion | None:
                card = peer.card
                if not card.free_slots:
                    return None
                number = card.free_slots.popleft()
                card.slots[number][: len(data)] = data
                self.sending -= 1
                queue_pair.tell(Completion(SENT, queue_pair.number, 0))
                return Completion(RECEIVED, peer.number, number, 0, len(data))

            peer.card.coming[peer.number].append(arrive)
            peer.card.ring()
        return True

    def register(self, address: int, size_bytes: int, writable: bool) -> MemoryRegion:
        if not size_bytes:
            raise TransportError("no memory")
        return MemoryRegion(self, address, size_bytes, writable)

    def slot(self, number: int) -> memoryview:
        return self.slots[number]

    def free(self, number: int) -> None:
        self.free_slots.append(number)
        self.ring()

    def completions(self) -> list[Completion]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)
        with self.fabric.lock:
            found = [self.sent.popleft() for _ in range(len(self.sent))]
            if any(self.coming.values()):
                if self.late:
                    self.ring()
            else:
                found += [one for one in self.late if self.fabric.queue_pairs[one.queue_pair].open]
                self.late.clear()
            waiting = [queue for queue in self.coming.values() if queue]
            self.fabric.reordered += len(waiting) > 1
            self.fabric.draw.shuffle(waiting)
            for queue in waiting:
                while queue and (one := queue[0]()) is not None:
                    queue.popleft()
                    found.append(one)
            return found

    def counts(self) -> CardCounts | None:
        return self.told

    def close(self) -> None:
        with self.fabric.lock:
            if self.bell >= 0:
                os.close(self.bell)
                self.bell = -1


class MemoryQueuePair(QueuePair):
    def __init__(self, card: MemoryCard) -> None:
        self.card = card
        with card.fabric.lock:
            self.number = len(card.fabric.queue_pairs) + 1
            card.fabric.queue_pairs[self.number] = self
        self.open = True

    @property
    def address(self) -> Address:
        return Address("here", self.number)

    def connect(self, peer: Address) -> None:
        self.peer = self.card.fabric.queue_pairs[peer.number]

    def tell(self, completion: Completion) -> None:
        if self.open:
            self.card.sent.append(completion)
            self.card.ring()

    def write(
        self, number: int, address: int, size_bytes: int, key: int, to: int, remote_key: int, immediate: int
    ) -> None:
        with self.card.fabric.lock:
            peer = self.peer
            assert self.card.regions[key].holds(address, size_bytes)

            def arrive() -> Completion:
                region = peer.card.regions.get(remote_key)
                assert region is not None
                assert region.writable
                assert region.holds(to, size_bytes)
                ctypes.memmove(to, address, size_bytes)
                self.card.late.append(Completion(SENT, self.number, number))
                self.card.ring()
                return Completion(WRITTEN, peer.number, 0, immediate, size_bytes)

            peer.card.coming[peer.number].append(arrive)
            peer.card.ring()

    def close(self) -> None:
        with self.card.fabric.lock:
            self.open = False
            peer = getattr(self, "peer", None)
            if peer is not None:
                peer.card.coming[peer.number].clear()
