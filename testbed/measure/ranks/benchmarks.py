"""Ranks of the benchmarks: one collective at many sizes, or only the bootstrap of a job."""

from __future__ import annotations

import gc
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
from testbed.prediction.startup_cost import SoftwareCosts, StartupMethod
from testbed.workload.job.endpoints import JobEndpoints, RankEndpoint, join_job
from testbed.workload.uniform_plans import uneven_rows


@dataclass(frozen=True)
class Case:
    """One row of the benchmark: an algorithm, and the number of elements in a rank's whole array (emulated)."""

    algorithm: str
    numel: int


@dataclass(frozen=True)
class BenchSpec:
    """The specification of a collective benchmark, as sent to ranks."""

    wiring: JobEndpoints
    collective: str
    cases: tuple[Case, ...]
    dtype: str
    op: str
    iterations: int
    warmup: int
    tuning: TuningTable = field(default_factory=TuningTable)
    ranks_per_process: int = 1


def numel_for(collective: str, size_bytes: int, itemsize: int, ranks: int) -> int:
    """Return the number of elements in a rank's whole array, a multiple of the ranks if it is split by ranks."""
    cut = collective_of(collective).parts(ranks)
    return max(1, size_bytes // (itemsize * cut)) * cut


def sent_elements(collective: str, numel: int, ranks: int) -> float:
    """Return the elements that count for the bandwidth: those of the array, or the mean of the real rows if uneven."""
    if not collective_of(collective).uneven:
        return numel
    most = numel // ranks
    return sum(map(sum, uneven_rows(ranks, most))) / ranks


class BenchRank:
    """A rank of a collective benchmark; it calls `emit(event)` with a result for each case."""

    def __init__(self, spec: BenchSpec, rank: int, emit: Callable[[dict[str, Any]], None]) -> None:
        self.spec = spec
        self.rank = rank
        self.emit = emit
        self.size = len(spec.wiring.ranks)

    def run(self) -> None:
        """Connect and run all cases."""
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
        # one more run to check the result: filling and checking are not timed
        arrays.fill()
        arrays.start(communicator, case.algorithm)
        wrong = arrays.count_wrong()
        result = {"time_s": took_s, "wrong": wrong, "sent_bytes": sent / self.spec.iterations}
        self.emit({"event": "result", "case": index, "rank": self.rank, **result})


FIRST_PORT = 20_000
PORTS_EACH = 2  # per rank and kind of group: one for connections, one for the bootstrap at its rank 0


@dataclass(frozen=True)
class GroupKind:
    """Groups of `size` ranks that are `stride` apart: all ranks, or the groups of one parallelism dimension."""

    name: str
    size: int
    stride: int

    def members(self, rank: int) -> range:
        """Return the members of a rank's group, in order."""
        first = rank - self.place(rank) * self.stride
        return range(first, first + self.size * self.stride, self.stride)

    def place(self, rank: int) -> int:
        """Return a rank's index in its group."""
        return rank // self.stride % self.size


def group_kinds(ranks: int, dimensions: Sequence[tuple[str, int]]) -> tuple[GroupKind, ...]:
    """Return the group of all ranks, then those of each parallelism dimension; the first has consecutive ranks."""
    found, stride = [GroupKind("all", ranks, 1)], 1
    for name, size in dimensions:
        found.append(GroupKind(name, size, stride))
        stride *= size
    return tuple(found)


@dataclass(frozen=True)
class BootstrapSpec:
    """The specification of a bootstrap benchmark, as sent to ranks. Times are those of CLOCK_MONOTONIC.

    `slots` is each rank's index on its host. `begin_s` is the common start.
    """

    ranks: tuple[RankEndpoint, ...]
    slots: tuple[int, ...]
    kinds: tuple[GroupKind, ...]
    token: str
    begin_s: float
    timeout_s: float
    way: StartupMethod
    costs: SoftwareCosts
    ranks_per_process: int = 1

    def address(self, rank: int, kind: int, *, door: bool = False) -> Address:
        """Return where a rank listens for a kind of group; `door` is the bootstrap address of the group's rank 0."""
        slot = self.slots[rank] * len(self.kinds) + kind
        return self.ranks[rank].ip, FIRST_PORT + slot * PORTS_EACH + int(door)

    def topology_s(self, size: int) -> float:
        """Return the time to compute the topology of a group on each of its ranks, in seconds."""
        costs = self.costs
        return costs.pair_s * size * size if self.way.by_pairs else costs.rank_s * size


class BootstrapRank:
    """A rank of a bootstrap benchmark; it calls `emit(event)` with its times by activity, sockets, bytes and memory."""

    def __init__(self, spec: BootstrapSpec, rank: int, emit: Callable[[dict[str, Any]], None]) -> None:
        self.spec = spec
        self.rank = rank
        self.emit = emit
        self.transports: list[TcpTransport] = []
        self.doors: dict[int, socket.socket] = {}
        self.listeners: list[socket.socket] = []
        self.seconds: dict[str, float] = {}
        self.bytes_sent = 0

    def run(self) -> None:
        """Run the bootstrap and report its figures."""
        spec = self.spec
        before_bytes = resident_bytes()
        self._listen()
        late_s = time.monotonic() - spec.begin_s
        time.sleep(max(0.0, -late_s))
        try:
            time.sleep(spec.costs.base_s)
            for kind, group in enumerate(spec.kinds):
                self._group(kind, group)
            ended_s = time.monotonic()
            gc.collect()
            sockets = sum(transport.connections for transport in self.transports)
            event = {"event": "result", "rank": self.rank, "time_s": ended_s - spec.begin_s, "late_s": late_s}
            memory = {"before_bytes": before_bytes, "after_bytes": resident_bytes()}
            self.emit(
                {**event, **memory, "parts": self.seconds, "sockets": sockets, "bytes_sent": self.bytes_sent}
            )
            Communicator(
                self.transports[0], timeout_s=spec.timeout_s
            ).barrier()  # wait until all ranks have reported
        finally:
            for transport in self.transports:
                transport.close()
            for sock in (*self.doors.values(), *self.listeners):
                sock.close()

    def _listen(self) -> None:
        """Open all listeners before any rank connects, so that none has to retry."""
        for kind, group in enumerate(self.spec.kinds):
            self.listeners.append(open_listener(self.spec.address(self.rank, kind), group.size))
            if group.place(self.rank) == 0:
                door = self.spec.address(self.rank, kind, door=True)
                self.doors[kind] = open_listener(door, group.size)

    def _group(self, kind: int, group: GroupKind) -> None:
        """Find the group's members unless they are already known, connect, and use the group once."""
        spec, members, place = self.spec, group.members(self.rank), group.place(self.rank)
        own = spec.address(self.rank, kind)
        if kind > 0 and spec.way.reuses:
            addresses = Addresses.of([spec.address(member, kind) for member in members])
        else:
            begun_s = time.monotonic()
            costs = BootstrapCosts(spec.costs.caller_s, spec.costs.entry_s)
            door = spec.address(members[0], kind, door=True)
            token, size = f"{spec.token}/{kind}/{members[0]}", group.size
            addresses, report = bootstrap(
                spec.way.bootstrap, place, size, door, own, token, spec.timeout_s, self.doors.get(kind), costs
            )
            self.bytes_sent += report.bytes_sent
            self._spent("finding", begun_s)
            begun_s = time.monotonic()
            time.sleep(spec.topology_s(group.size))
            self._spent("topology", begun_s)
        begun_s = time.monotonic()
        settings = MeshSettings(f"{spec.token}/{kind}", bootstrap_timeout_s=spec.timeout_s)
        listener = self.listeners[kind]
        transport = TcpTransport(place, addresses, settings, eager=spec.way.eager, listener=listener)
        self.transports.append(transport)
        self._first_use(transport)
        # the set-up cost of a connection is the same on both sides
        time.sleep(transport.connections * spec.costs.connection_s)
        self._spent("connecting", begun_s)

    def _first_use(self, transport: TcpTransport) -> None:
        """Send a byte to all peers of ring and recursive-doubling algorithms, which opens the lazy connections."""
        communicator = Communicator(transport, timeout_s=self.spec.timeout_s)
        for send_to, receive_from in exchange_peers(transport.rank, transport.size):
            sent, received = np.zeros(1, np.int8), np.zeros(1, np.int8)
            operations = [P2POp("isend", sent, peer) for peer in send_to]
            operations += [P2POp("irecv", received, peer) for peer in receive_from]
            for work in communicator.batch_isend_irecv(operations):
                work.wait()

    def _spent(self, on: str, begun_s: float) -> None:
        self.seconds[on] = self.seconds.get(on, 0.0) + time.monotonic() - begun_s


def exchange_peers(rank: int, size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield, by round, the peers that a rank sends to and receives from: first a ring, then recursive doubling."""
    if size > 1:
        yield ((rank + 1) % size,), ((rank - 1) % size,)
    distance = 2
    while distance < size:
        peer = rank ^ distance
        if peer < size:
            yield (peer,), (peer,)
        distance *= 2


def resident_bytes() -> int:
    """Return the private resident memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0
