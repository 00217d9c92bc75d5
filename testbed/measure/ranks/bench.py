"""One collective at many sizes, over and over: what `testbed bench` has its ranks do, after nccl-tests."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from testbed.comm.collectives import Communicator, TuningTable, collective_of
from testbed.measure.ranks.benchmark_arrays import CollectiveArrays
from testbed.workload.job.endpoints import JobEndpoints, join_job
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
