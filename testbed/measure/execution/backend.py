"""What carries out the shards of a run: this machine, with others beside it where they are named, or guests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from testbed.measure.execution.progress import Progress
from testbed.measure.execution.shard_run import ShardRun
from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.measure.results.parts import Parts
from testbed.measure.results.shards import Shard, ShardRecord, cut, whole
from testbed.measure.results.writer import Carried
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario


class Backend(Protocol):
    """Carries out shards, each in a network of its own."""

    @property
    def words(self) -> str:
        """For people: with what."""

    def shards(self, scenario: Scenario) -> list[Shard]:
        """How a run is cut."""

    def identity(self, scenario: Scenario, scale: Scale) -> str | None:
        """Names all that a shard's record depends on; None where it would not be the same again."""

    def carry_out(
        self, scenario: Scenario, shards: Sequence[Shard], scale: Scale, parts: Parts, progress: Progress
    ) -> Carried:
        """Measure all that are not finished, each in `parts.folder`/NUMBER. RunError, FabricError, VirtualClockError.

        When one fails, or the user stops it, nothing of it runs on; records of those that are done stay where they are.
        """


class ThisMachine:
    """One shard after the other in this process, as root.

    machines: those of the buildings, through SSH. ranks_per_process: None for what is quickest.
    """

    def __init__(
        self,
        network_backend: NetworkBackend,
        machines: Sequence[str] = (),
        ranks_per_process: int | None = None,
    ) -> None:
        self.network_backend = network_backend
        self.machines = machines
        self.ranks_per_process = ranks_per_process

    @property
    def words(self) -> str:
        """Link engine and datapath."""
        return f"link engine {self.network_backend.link_engine}, datapath {self.network_backend.datapath}"

    def shards(self, scenario: Scenario) -> list[Shard]:
        """Variants have networks of their own; algorithms alternate in one, which building it anew would cost time."""
        return whole(scenario) if scenario.variants is None else cut(scenario)

    def identity(self, scenario: Scenario, scale: Scale) -> str | None:
        """None: what this machine measures is never quite the same again."""
        return None

    def carry_out(
        self, scenario: Scenario, shards: Sequence[Shard], scale: Scale, parts: Parts, progress: Progress
    ) -> Carried:
        """See `Backend`."""
        began_s = time.monotonic()
        records = []
        for shard in shards:
            own = shard.scenario(scenario)
            if len(shards) > 1:
                progress.phase(f"{shard.variant}, trial {shard.first_trial + 1} of {scenario.trials}")
            target = parts.folder / str(shard.number)
            target.mkdir(parents=True)
            records.append(self._measured(shard, own, scale, target, _among(shards, shard, own, progress)))
        return Carried(records, time.monotonic() - began_s)

    def _measured(
        self, shard: Shard, scenario: Scenario, scale: Scale, folder: Path, progress: Progress
    ) -> ShardRecord:
        backend, machines = self.network_backend, self.machines
        together = self.ranks_per_process
        return ShardRun(shard, scenario, backend, scale, folder, progress, machines, together).measure()


def _among(shards: Sequence[Shard], shard: Shard, scenario: Scenario, progress: Progress) -> Progress:
    """What one of them tells, as told of all; scenario: its own."""
    each = scenario.trials + scenario.warmup
    if len(shards) == 1:
        return progress

    def phase(line: str) -> None:
        if shard.number == 0:  # the others do the same
            progress.phase(line)

    def step(number: int, total: int) -> None:
        progress.step(shard.number * each + number, len(shards) * each)

    return Progress(phase, step)
