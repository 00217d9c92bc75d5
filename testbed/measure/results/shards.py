"""The shards of a run, each measured in its own network, and the records that they write.

The split of a run depends only on the scenario and the clock, so results do not depend on the number of shards that run
in parallel. A shard's record is a directory that can be read on its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from testbed.measure.fidelity.link_invariants import DroppingPort
from testbed.measure.fidelity.similarity import DimensionlessNumber
from testbed.measure.fidelity.verdict import Verdict
from testbed.measure.result_model import ResultModel
from testbed.measure.results.link_summary import PausedLink
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.records import EVENTS, LINKS, SAMPLES
from testbed.measure.results.replication import Replication
from testbed.measure.results.result import Control, Events, ScaleRecord, Training
from testbed.measure.results.run_directory import write_json, write_lines
from testbed.measure.results.serving_result import DecodedSteps
from testbed.prediction.request_metrics import ServedStep
from testbed.spec.scenario import Scenario

TRIALS = 10
SEED_STEP = 1_000_003
CONTROLLER, RULES, SOCKETS = "controller.jsonl", "rules.jsonl", "sockets.jsonl"
CAPTURES, MONITORS = "captures", "monitor*.jsonl"
FIGURES = "shard.json"
Record = dict[str, Any]
STREAMS = {
    "samples": SAMPLES,
    "links": LINKS,
    "sockets": SOCKETS,
    "events": EVENTS,
    "controller": CONTROLLER,
    "rules": RULES,
}
"""The file of each of a shard's records."""


@dataclass(frozen=True)
class Shard:
    """Several consecutive trials of one variant, or of the whole scenario, with a separate seed.

    `variant` is None for a whole scenario; its algorithms alternate trial by trial in one network.
    """

    number: int
    variant: str | None
    first_trial: int
    trials: int
    seed: int

    @property
    def name(self) -> str:
        """The shard's name in messages."""
        variant = self.variant or "all algorithms"
        return variant + (f", trials from {self.first_trial}" if self.first_trial else "")

    @property
    def folder(self) -> str:
        """The subdirectory of its captures in the run directory: the variant, and the first trial unless it is 0."""
        assert self.variant is not None
        return f"{self.variant}-{self.first_trial}" if self.first_trial else self.variant

    def scenario(self, whole: Scenario) -> Scenario:
        """Return the scenario that this shard runs, derived from the whole one."""
        own = whole if self.variant is None else whole.variant(self.variant)
        return own.model_copy(update={"trials": self.trials, "seed": self.seed})

    def mark(self, record: Record) -> Record:
        """Return a record with the shard's variant added, if the shard has one."""
        return record if self.variant is None else {"variant": self.variant, **record}


def whole_run_shard(scenario: Scenario) -> list[Shard]:
    """Return a scenario without variants as a single shard: its algorithms alternate on the same network."""
    return [Shard(0, None, 0, scenario.trials, scenario.seed)]


def split_into_shards(scenario: Scenario) -> list[Shard]:
    """Split a scenario into shards.

    - Without variants, a shard has one algorithm and at most `TRIALS` of its trials. With events or elastic replicas it
      has all trials, since events happen once, at their set times.
    - With variants, a shard has one variant and one trial, seeded by trial, and variants alternate. With elastic
      replicas it has one variant and all trials.
    """
    names, trials = scenario.variant_names, scenario.trials
    if scenario.variants is not None and not scenario.has_faults:
        parts = [
            (name, trial, 1, trial)
            for trial in range(trials)
            for name in (names if trial % 2 == 0 else names[::-1])
        ]
    else:
        is_whole = scenario.variants is not None or scenario.all_events or scenario.has_faults
        most = trials if is_whole else TRIALS
        parts = [
            (name, first, min(most, trials - first), block)
            for name in names
            for block, first in enumerate(range(0, trials, most))
        ]
    return [
        Shard(number, name, first, count, scenario.seed + block * SEED_STEP)
        for number, (name, first, count, block) in enumerate(parts)
    ]


class ShardVariant(ResultModel):
    """The figures of one algorithm in a shard that cannot be derived from its records.

    `step_time_s` is the median of the measured steps. `predicted_s` is the model's prediction, or None if the model
    does not cover the scenario. Both are in real seconds. `expected_wan_bytes` is an emulated figure.
    """

    algorithm: str
    step_time_s: float
    expected_wan_bytes: float
    predicted_s: float | None
    verdict: Verdict
    control: Control
    training: Training
    events: Events | None = None
    replication: Replication | None = None
    served: tuple[ServedStep, ...] = ()
    decoded: DecodedSteps | None = None
    pauses: tuple[PausedLink, ...] = ()
    port_drops: tuple[DroppingPort, ...] = ()


class ShardFigures(ResultModel):
    """The content of a shard's `shard.json`."""

    clock: Literal["real", "virtual"]
    scale: ScaleRecord
    dimensionless: tuple[DimensionlessNumber, ...]
    variants: tuple[ShardVariant, ...]
    manifest: Manifest


@dataclass(frozen=True)
class ShardRecord:
    """The record of a finished shard. Its captures and host monitor files stay in `folder`.

    Times count from the shard's first measured step; sizes and times are emulated. The variant of a sample is its
    algorithm.
    """

    shard: Shard
    folder: Path
    figures: ShardFigures
    samples: Sequence[Record]
    links: Sequence[Record]
    sockets: Sequence[Record] = ()
    events: Sequence[Record] = ()
    controller: Sequence[Record] = ()
    rules: Sequence[Record] = ()

    def variant(self, name: str) -> ShardVariant | None:
        """Return the figures of one of the run's variants, or None if the shard did not measure it."""
        if self.shard.variant is not None:
            return self.figures.variants[0] if self.shard.variant == name else None
        return next((entry for entry in self.figures.variants if entry.algorithm == name), None)

    def write(self) -> None:
        """Write the record into its directory."""
        for field, name in STREAMS.items():
            write_lines(self.folder / name, getattr(self, field))
        write_json(self.folder / FIGURES, {"shard": asdict(self.shard), **self.figures.document()})

    @classmethod
    def read(cls, folder: Path) -> ShardRecord:
        """Read the record from a directory that `write` filled."""
        document = json.loads((folder / FIGURES).read_text())
        shard = Shard(**document.pop("shard"))
        streams = {
            field: [json.loads(line) for line in (folder / name).read_text().splitlines()]
            for field, name in STREAMS.items()
        }
        return cls(shard, folder, ShardFigures.model_validate(document), **streams)
