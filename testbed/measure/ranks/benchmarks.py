"""Ranks of the benchmarks: one collective at many sizes, or the start of a job alone."""

from __future__ import annotations

import dataclasses
import gc
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from testbed.comm.collectives import Communicator, P2POp, TuningTable, collective_of
from testbed.comm.transport import MeshSettings, TcpTransport
from testbed.comm.transport.bootstrap import BootstrapCosts, bootstrap, open_listener
from testbed.comm.transport.wire import Address, Addresses
from testbed.measure.ranks.collective_buffers import CollectiveArrays
from testbed.workload.job.endpoints import JobEndpoints, RankEndpoint, join_job
from testbed.workload.uniform_plans import uneven_rows


@dataclass(frozen=True)
class Case:
    """One line of the benchmark: an algorithm, and how many elements a rank's whole array has (emulated)."""

    algorithm: str
    numel: int


@dataclass(frozen=True)
class BenchSpec:
    """A whole benchmark."""

    wiring: JobEndpoints
    collective: str
    cases: tuple[Case, ...]
    dtype: str
    op: str
    iterations: int
    warmup: int
    tuning: TuningTable = field(default_factory=TuningTable)
    ranks_per_process: int = 1

    def to_json(self) -> str:
        """One line of JSON."""
        document = {**dataclasses.asdict(self), "tuning": self.tuning.to_document()}
        return json.dumps({"task": "bench", **document})

    @classmethod
    def from_json(cls, text: str) -> BenchSpec:
        """The inverse of `to_json`."""
        document: dict[str, Any] = json.loads(text)
        del document["task"]
        document["wiring"] = JobEndpoints.from_document(document["wiring"])
        document["cases"] = tuple(Case(**item) for item in document["cases"])
        document["tuning"] = TuningTable.from_document(document["tuning"])
        return cls(**document)


def numel_for(collective: str, size_bytes: int, itemsize: int, ranks: int) -> int:
    """Elements of a rank's whole array, which the number of ranks divides where it is cut for them."""
    cut = collective_of(collective).parts(ranks)
    return max(1, size_bytes // (itemsize * cut)) * cut


def sent_elements(collective: str, numel: int, ranks: int) -> float:
    """Elements that the bandwidth of a case is reckoned with: the array's, or those of its real rows on the average."""
    if not collective_of(collective).uneven:
        return numel
    most = numel // ranks
    return sum(map(sum, uneven_rows(ranks, most))) / ranks


class BenchRank:
    """Runs one rank's share. `tell(event)` gets a result for each case."""

    def __init__(self, spec: BenchSpec, rank: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self.spec = spec
        self.rank = rank
        self.tell = tell
        self.size = len(spec.wiring.ranks)

    def run(self) -> None:
        """Connect, go through all cases."""
        wiring = self.spec.wiring
        joined = join_job(wiring, self.rank)
        transport = joined.transport
        self.communicator = Communicator(
            transport, wiring.buildings, wiring.timeout_s, tuning=self.spec.tuning
        )
        self.communicator.engine.costs = joined.costs
        try:
            self.communicator.barrier()
            for index, case in enumerate(self.spec.cases):
                self._case(index, case)
            self.communicator.barrier()
        finally:
            transport.close()

    def _case(self, index: int, case: Case) -> None:
        spec = self.spec
        arrays = CollectiveArrays(spec.collective, case.numel, spec.dtype, self.rank, self.size, spec.op)
        communicator = self.communicator
        for _ in range(self.spec.warmup):
            arrays.start(communicator, case.algorithm)
        communicator.barrier()
        counters = communicator.transport.counters
        sent = sum(entry.bytes_sent for entry in counters.values())
        begun_s = time.monotonic()
        for _ in range(self.spec.iterations):
            arrays.start(communicator, case.algorithm)
        took_s = (time.monotonic() - begun_s) / self.spec.iterations
        sent = sum(entry.bytes_sent for entry in communicator.transport.counters.values()) - sent
        communicator.barrier()
        # one more, whose result is checked: filling and checking are not timed
        arrays.fill()
        arrays.start(communicator, case.algorithm)
        wrong = arrays.count_wrong()
        result = {"time_s": took_s, "wrong": wrong, "sent_bytes": sent / self.spec.iterations}
        self.tell({"event": "result", "case": index, "rank": self.rank, **result})


FIRST_PORT = 20_000
PORTS_EACH = 2  # of a rank and kind of group: where rank 0 of it is called, and where connections are


@dataclass(frozen=True)
class GroupKind:
    """Groups of so many ranks, `stride` apart: all ranks, or those that one dimension of parallelism has together."""

    name: str
    size: int
    stride: int

    def members(self, rank: int) -> range:
        """Those of the group that a rank is in, in its order."""
        first = rank - self.place(rank) * self.stride
        return range(first, first + self.size * self.stride, self.stride)

    def place(self, rank: int) -> int:
        """Of a rank in its group."""
        return rank // self.stride % self.size


def group_kinds(ranks: int, dimensions: Sequence[tuple[str, int]]) -> tuple[GroupKind, ...]:
    """All ranks, then each dimension of parallelism, the first one with ranks that follow each other."""
    found, stride = [GroupKind("all", ranks, 1)], 1
    for name, size in dimensions:
        found.append(GroupKind(name, size, stride))
        stride *= size
    return tuple(found)


@dataclass(frozen=True)
class BootstrapSpec:
    """A whole start. Seconds are those of the machine's clock.

    slots: of each rank among those of its host. begin_s: when all begin. by_pairs, reuses, eager: see StartWay.
    caller_s and so on: see StartCosts.
    """

    ranks: tuple[RankEndpoint, ...]
    slots: tuple[int, ...]
    kinds: tuple[GroupKind, ...]
    token: str
    begin_s: float
    timeout_s: float
    bootstrap: str
    by_pairs: bool
    reuses: bool
    eager: bool
    base_s: float = 0.0
    caller_s: float = 0.0
    entry_s: float = 0.0
    connection_s: float = 0.0
    pair_s: float = 0.0
    rank_s: float = 0.0
    ranks_per_process: int = 1

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"task": "start", **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> BootstrapSpec:
        """The inverse of `to_json`."""
        document: dict[str, Any] = json.loads(text)
        del document["task"]
        document["ranks"] = tuple(RankEndpoint(**item) for item in document["ranks"])
        document["slots"] = tuple(document["slots"])
        document["kinds"] = tuple(GroupKind(**item) for item in document["kinds"])
        return cls(**document)

    def address(self, rank: int, kind: int, *, door: bool = False) -> Address:
        """Where a rank listens for connections of a kind of group; door: where its rank 0 is called at first."""
        slot = self.slots[rank] * len(self.kinds) + kind
        return self.ranks[rank].ip, FIRST_PORT + slot * PORTS_EACH + int(door)

    def topology_s(self, size: int) -> float:
        """What working out the topology takes each of so many."""
        return self.pair_s * size * size if self.by_pairs else self.rank_s * size


class BootstrapRank:
    """One rank's part. `tell(event)` gets seconds by what they went to, sockets, bytes, memory of its process."""

    def __init__(self, spec: BootstrapSpec, rank: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self.spec = spec
        self.rank = rank
        self.tell = tell
        self.transports: list[TcpTransport] = []
        self.doors: dict[int, socket.socket] = {}
        self.listeners: list[socket.socket] = []
        self.seconds: dict[str, float] = {}
        self.bytes_sent = 0

    def run(self) -> None:
        """All of it."""
        spec = self.spec
        before_bytes = resident_bytes()
        self._listen()
        late_s = time.monotonic() - spec.begin_s
        time.sleep(max(0.0, -late_s))
        try:
            time.sleep(spec.base_s)
            for kind, group in enumerate(spec.kinds):
                self._group(kind, group)
            ended_s = time.monotonic()
            gc.collect()
            sockets = sum(transport.connections for transport in self.transports)
            event = {"event": "result", "rank": self.rank, "time_s": ended_s - spec.begin_s, "late_s": late_s}
            memory = {"before_bytes": before_bytes, "after_bytes": resident_bytes()}
            self.tell(
                {**event, **memory, "parts": self.seconds, "sockets": sockets, "bytes_sent": self.bytes_sent}
            )
            self._barrier(self.transports[0])  # nobody goes before all have told
        finally:
            for transport in self.transports:
                transport.close()
            for sock in (*self.doors.values(), *self.listeners):
                sock.close()

    def _listen(self) -> None:
        """Be there before anybody calls: who has to try again would wait for that."""
        for kind, group in enumerate(self.spec.kinds):
            self.listeners.append(open_listener(self.spec.address(self.rank, kind), group.size))
            if group.place(self.rank) == 0:
                door = self.spec.address(self.rank, kind, door=True)
                self.doors[kind] = open_listener(door, group.size)

    def _group(self, kind: int, group: GroupKind) -> None:
        """Find its members unless they are known, then connect, then use it for the first time."""
        spec, members, place = self.spec, group.members(self.rank), group.place(self.rank)
        own = spec.address(self.rank, kind)
        if kind > 0 and spec.reuses:
            addresses = Addresses.of([spec.address(member, kind) for member in members])
        else:
            begun_s = time.monotonic()
            costs = BootstrapCosts(spec.caller_s, spec.entry_s)
            door = spec.address(members[0], kind, door=True)
            token, size = f"{spec.token}/{kind}/{members[0]}", group.size
            addresses, report = bootstrap(
                spec.bootstrap, place, size, door, own, token, spec.timeout_s, self.doors.get(kind), costs
            )
            self.bytes_sent += report.bytes_sent
            self._spent("finding", begun_s)
            begun_s = time.monotonic()
            time.sleep(spec.topology_s(group.size))
            self._spent("topology", begun_s)
        begun_s = time.monotonic()
        settings = MeshSettings(f"{spec.token}/{kind}", bootstrap_timeout_s=spec.timeout_s)
        listener = self.listeners[kind]
        transport = TcpTransport(place, addresses, settings, eager=spec.eager, listener=listener)
        self.transports.append(transport)
        self._first_use(transport)
        # setting one up costs the same, whoever dialled
        time.sleep(transport.connections * spec.connection_s)
        self._spent("connecting", begun_s)

    def _first_use(self, transport: TcpTransport) -> None:
        """A note to those that rings and doublings send to: connections that are made when used are made now."""
        communicator = Communicator(transport, timeout_s=self.spec.timeout_s)
        for send_to, hear_from in partners(transport.rank, transport.size):
            note, heard = np.zeros(1, np.int8), np.zeros(1, np.int8)
            operations = [P2POp("isend", note, peer) for peer in send_to]
            operations += [P2POp("irecv", heard, peer) for peer in hear_from]
            for work in communicator.batch_isend_irecv(operations):
                work.wait()

    def _barrier(self, transport: TcpTransport) -> None:
        Communicator(transport, timeout_s=self.spec.timeout_s).barrier()

    def _spent(self, on: str, begun_s: float) -> None:
        self.seconds[on] = self.seconds.get(on, 0.0) + time.monotonic() - begun_s


def partners(rank: int, size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Whom a rank sends to and hears from, round by round: in a ring, then of doublings those that there are."""
    if size > 1:
        yield ((rank + 1) % size,), ((rank - 1) % size,)
    distance = 2
    while distance < size:
        peer = rank ^ distance
        if peer < size:
            yield (peer,), (peer,)
        distance *= 2


def resident_bytes() -> int:
    """Of this process, its own memory that is in use."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0
