"""Lies planted into one run in a guest, one after the other: `python -m tests.virtual.changes_inside OUT [NAME...]`.

Runs a small job of many steps on two buildings. Each lie is planted in a step, undone after a while, and what the
fingerprint has said of it until then is written to OUT/changes.json, beside the run's own directory OUT/run. All lies
without names, each for 20 ms and for longer; `none` plants nothing. A name such as `2/3` is the second third of all.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from testbed.measure.execution.event_player import EventPlayer
from testbed.measure.execution.job_run import JobRun
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.run import LocalBackend, PreparedRun, Request
from testbed.measure.execution.shard_run import ShardRun
from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.measure.results.shards import Shard, ShardRecord
from testbed.net.fabric.network import Fabric
from testbed.net.links import LinkError
from testbed.net.links.netns import run_script
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from tests.virtual.changes import Lie, all_lies

SCENARIO = """
name: lies
topology:
  name: lies
  mtu: 9000
  buildings:
    east: {{hosts: 2, nic: {{rate: 100 Mbit/s}}}}
    west: {{hosts: 2, nic: {{rate: 100 Mbit/s}}}}
  wan:
    - {{a: east, b: west, rate: 50 Mbit/s, delay: 2 ms, planes: 2}}
ranks: 4
workload:
  model: {{dim: 64, n_layers: 1, n_heads: 2, n_kv_heads: 2, ffn_dim: 128, vocab_size: 256}}
  bucket_cap: 1 MiB
  sequence_length: 64
  peak_flops: 20 Gflop/s
algorithms: [ring]
trials: {trials}
warmup: 1
"""
BLINK_S, LONG_S = 0.02, 0.15
QUIET_STEPS = 4  # at the beginning, to know how long a step takes
AFTER_S = 0.005


class Planter(EventPlayer):
    """Plants lies in the place of a scenario's events."""

    def __init__(self, fabric: Fabric, job: JobRun, planned: list[tuple[Lie, float]]) -> None:
        self.fabric, self.job = fabric, job
        self.planned = planned
        self.results: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.killed_s = None
        self._due_s: float | None = None
        self._stage = 0
        self._steps = 0

    @property
    def due_s(self) -> float | None:
        return self._due_s

    def step(self, variant: str, trial: int, start_s: float) -> None:
        self._steps += 1
        if self._due_s is None and self.planned and self._steps > QUIET_STEPS:
            self._due_s = start_s + AFTER_S

    def play(self) -> None:
        if self._due_s is None or time.monotonic() < self._due_s:
            return
        assert self.job.watch is not None
        lie, for_s = self.planned[0]
        if self._stage == 0:
            self._before = len(self.job.watch.changes)
            self._do(lie, lie.plant)
            if lie.unheard:  # before the controller puts it right
                self.job.watch.look(thorough=True)
            self._due_s = time.monotonic() + for_s
        elif self._stage == 1:
            if for_s > BLINK_S:
                self.job.watch.look(thorough=True)
            self._do(lie, lie.undo)
            self._due_s = time.monotonic() + AFTER_S
        else:
            self.job.watch.look(thorough=True)
            said = [change.words for change in self.job.watch.changes[self._before :]]
            named = any(lie.named in words for words in said)
            self.results.append({"lie": lie.name, "for_s": for_s, "named": named, "said": said})
            self.planned.pop(0)
            self._due_s = None
        self._stage = (self._stage + 1) % 3

    def _do(self, lie: Lie, command: str) -> None:
        pid = self.fabric.pids[lie.where] if lie.where else None
        try:
            run_script(pid, [command])
        except LinkError as error:
            self.refused.append(f"{lie.name}: {error}")

    def finish(self) -> None:
        """Nothing is left to undo."""


class Saboteur(ShardRun):
    """A shard with lies in it."""

    names: tuple[str, ...] = ()
    planter: Planter

    def _player(self, fabric: Fabric, job: JobRun) -> EventPlayer | None:
        chosen = [lie for lie in all_lies(fabric) if not self.names or lie.name in self.names]
        if self.names and "/" in self.names[0]:
            part, parts = map(int, self.names[0].split("/"))
            chosen = all_lies(fabric)[part - 1 :: parts]
        planned = [
            (lie, for_s)
            for lie in chosen
            for for_s in (BLINK_S, LONG_S)
            if for_s > BLINK_S or not lie.unheard
        ]
        self.planter = Planter(fabric, job, planned)
        return self.planter


class SabotagedMachine(LocalBackend):
    """Where lies are told in the only shard."""

    names: tuple[str, ...] = ()
    planter: Planter

    def _measure(
        self, shard: Shard, scenario: Scenario, scale: Scale, folder: Path, progress: Progress
    ) -> ShardRecord:
        run = Saboteur(shard, scenario, self.network_backend, scale, folder, progress)
        run.names = self.names
        record = run.measure()
        self.planter = run.planter
        return record


def main() -> None:
    """Run, and write down what was said."""
    folder, names = Path(sys.argv[1]), tuple(sys.argv[2:])
    file = folder / "changes.yaml"
    trials = 10 if names == ("none",) else 140 if names else 280  # a lie takes one to two
    file.write_text(SCENARIO.format(trials=trials))
    progress = Progress(phase=lambda line: print(line, flush=True), step=lambda done, total: None)
    machine = SabotagedMachine(NetworkBackend("netem", "system"))
    machine.names = names
    request = Request(load_scenario(file), folder / "run")
    result = PreparedRun(request, Scale(), machine).execute(progress)
    (variant,) = result.variants
    told = {
        "results": machine.planter.results,
        "missing": [lie.name for lie, _ in machine.planter.planned],
        "refused": machine.planter.refused,
        "verdict": variant.verdict.document(),
        "steps": variant.step_time_s.samples,
    }
    (folder / "changes.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
