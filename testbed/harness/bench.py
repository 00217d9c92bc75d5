"""One collective at many sizes, over and over: what `testbed bench` has its ranks do, after nccl-tests."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.collectives import (
    ALGORITHMS,
    AUTO,
    Array,
    Communicator,
    TuningTable,
    count_wrong,
    dtype_named,
    expect,
    fill,
)
from testbed.collectives.late_counts import ALGORITHMS as LATE_ALGORITHMS
from testbed.collectives.tuning import Entry
from testbed.harness.wiring import Wiring, join

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "sendrecv")


def algorithms_of(collective: str) -> tuple[str, ...]:
    """The algorithms that a benchmark of this collective may use."""
    if collective == "all_to_all_v":
        return LATE_ALGORITHMS
    return (AUTO, *ALGORITHMS[collective]) if collective in ALGORITHMS else (AUTO,)


@dataclass(frozen=True)
class Case:
    """One line of the benchmark: an algorithm, and how many elements a rank's whole array has (emulated)."""

    algorithm: str
    numel: int


@dataclass(frozen=True)
class BenchSpec:
    """A whole benchmark."""

    wiring: Wiring
    collective: str
    cases: tuple[Case, ...]
    dtype: str
    op: str
    iterations: int
    warmup: int
    tuning: tuple[Entry, ...] = ()

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"task": "bench", **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> BenchSpec:
        """The inverse of `to_json`."""
        document: dict[str, Any] = json.loads(text)
        del document["task"]
        document["wiring"] = Wiring.from_document(document["wiring"])
        document["cases"] = tuple(Case(**item) for item in document["cases"])
        document["tuning"] = tuple(Entry(**item) for item in document["tuning"])
        return cls(**document)


def numel_for(collective: str, size_bytes: int, itemsize: int, ranks: int) -> int:
    """Elements of a rank's whole array, which the number of ranks divides where it is cut for them."""
    cut = ranks if collective not in ("all_reduce", "sendrecv") else 1
    return max(1, size_bytes // (itemsize * cut)) * cut


def split_counts(source: int, ranks: int, most: int) -> list[int]:
    """What a rank has for each in a benchmark of all_to_all_v: anything up to the most, the same in every run."""
    rng = random.Random(f"{source}/{ranks}/{most}")
    return [rng.randint(0, most) for _ in range(ranks)]


def sent_elements(collective: str, numel: int, ranks: int) -> float:
    """Elements that the bandwidth of a case is reckoned with: the array's, or those of its real rows on the average."""
    if collective != "all_to_all_v":
        return numel
    most = numel // ranks
    return sum(sum(split_counts(rank, ranks, most)) for rank in range(ranks)) / ranks


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
        transport = join(wiring, self.rank).transport
        tuning = TuningTable(self.spec.tuning)
        self.communicator = Communicator(transport, wiring.buildings, wiring.timeout_s, tuning=tuning)
        try:
            self.communicator.barrier()
            for index, case in enumerate(self.spec.cases):
                self._case(index, case)
            self.communicator.barrier()
        finally:
            transport.close()

    def _case(self, index: int, case: Case) -> None:
        arrays = Arrays(self.spec, case, self.rank, self.size)
        communicator = self.communicator
        for _ in range(self.spec.warmup):
            arrays.start(communicator)
        communicator.barrier()
        counters = communicator.transport.counters
        sent = sum(entry.bytes_sent for entry in counters.values())
        begun_s = time.monotonic()
        for _ in range(self.spec.iterations):
            arrays.start(communicator)
        took_s = (time.monotonic() - begun_s) / self.spec.iterations
        sent = sum(entry.bytes_sent for entry in communicator.transport.counters.values()) - sent
        communicator.barrier()
        # one more, whose result is checked: filling and checking are not timed
        arrays.fill()
        arrays.start(communicator)
        wrong = arrays.count_wrong()
        result = {"time_s": took_s, "wrong": wrong, "sent_bytes": sent / self.spec.iterations}
        self.tell({"event": "result", "case": index, "rank": self.rank, **result})


class Arrays:
    """The memory of one case, the collective on it, and whether its result is right."""

    def __init__(self, spec: BenchSpec, case: Case, rank: int, size: int) -> None:
        self.spec = spec
        self.case = case
        self.rank = rank
        self.size = size
        dtype = dtype_named(spec.dtype)
        numel, part = case.numel, case.numel // size
        self.input = np.ones(numel, dtype)
        self.output = self.input
        if spec.collective == "all_gather":
            self.input, self.output = np.ones(part, dtype), np.empty(numel, dtype)
        elif spec.collective == "reduce_scatter":
            self.output = np.empty(part, dtype)
        elif spec.collective in ("all_to_all", "sendrecv"):
            self.output = np.empty(numel, dtype)
        elif spec.collective == "all_to_all_v":
            self.counts = split_counts(rank, size, part)
            self.input = np.ones(sum(self.counts), dtype)
            self.output = np.zeros((size, part), dtype)
        self.come: list[int] = []

    def start(self, communicator: Communicator) -> None:
        """The collective, once."""
        collective, algorithm = self.spec.collective, self.case.algorithm
        if collective == "all_reduce":
            communicator.all_reduce(self.output, self.spec.op, algorithm)
        elif collective == "all_gather":
            communicator.all_gather_into_tensor(self.output, self.input, algorithm)
        elif collective == "reduce_scatter":
            communicator.reduce_scatter_tensor(self.output, self.input, self.spec.op, algorithm)
        elif collective == "all_to_all":
            communicator.all_to_all_single(self.output, self.input, algorithm=algorithm)
        elif collective == "all_to_all_v":
            work = communicator.all_to_all_v_dynamic(self.output, self.input, self.counts, algorithm)
            self.come = work.result
        else:
            right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
            receive = communicator.irecv(self.output, left)
            communicator.send(self.input, right)
            receive.wait()

    def fill(self) -> None:
        """Data with a known answer."""
        fill(self.input, self.rank, op=self.spec.op)

    def count_wrong(self) -> int:
        """Elements of the result that are not what they should be."""
        collective, size, op = self.spec.collective, self.size, self.spec.op
        if collective == "all_reduce":
            return count_wrong(self.output, size, op=op)
        if collective == "reduce_scatter":
            expected = np.empty(self.case.numel, self.output.dtype)
            expect(expected, size, op=op)
            part = self.output.size
            return _differing(self.output, expected[self.rank * part : (self.rank + 1) * part])
        if collective == "sendrecv":
            return _differing(self.output, self._filled(self.output.size, (self.rank - 1) % size))
        wrong = 0
        part = self.case.numel // size
        for peer in range(size):
            got = self.output.reshape(size, part)[peer]
            if collective == "all_gather":
                expected = self._filled(part, peer)
            elif collective == "all_to_all":
                expected = self._filled(self.case.numel, peer)[self.rank * part : (self.rank + 1) * part]
            else:
                counts = split_counts(peer, size, part)
                first = sum(counts[: self.rank])
                expected = self._filled(sum(counts), peer)[first : first + counts[self.rank]]
                wrong += abs(self.come[peer] - counts[self.rank])
                got = got[: counts[self.rank]]
            wrong += _differing(got, expected)
        return wrong

    def _filled(self, numel: int, rank: int) -> Array:
        array = np.empty(numel, self.input.dtype)
        fill(array, rank, op=self.spec.op)
        return array


def _differing(got: Array, expected: Array) -> int:
    return int(np.count_nonzero(got != expected))
