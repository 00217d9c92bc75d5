"""A run as a list of shards, each of which is measured in a network of its own, and what each leaves behind.

How a run is cut depends on the scenario and the clock alone, so that the results are the same however many shards are
carried out at once. A shard's record is a folder that can be read by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from testbed.measure.results.base_model import ResultModel
from testbed.measure.results.link_summary import DroppingPort, PausedLink
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.records import EVENTS, LINKS, SAMPLES
from testbed.measure.results.replication import Replication
from testbed.measure.results.result import Control, Events, Number, ScaleRecord, Training, VerdictRecord
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


@dataclass(frozen=True)
class Shard:
    """So many trials from `first_trial` on, with a seed of its own: of one variant, or of the whole scenario.

    variant: None for a whole scenario whose algorithms alternate, trial by trial, in one network.
    """

    number: int
    variant: str | None
    first_trial: int
    trials: int
    seed: int

    @property
    def name(self) -> str:
        """For people."""
        of = self.variant or "all algorithms"
        return of + (f", trials from {self.first_trial}" if self.first_trial else "")

    @property
    def folder(self) -> str:
        """The folder that its captures have among the others of its run: variant, and first trial but for the first."""
        assert self.variant is not None
        return f"{self.variant}-{self.first_trial}" if self.first_trial else self.variant

    def scenario(self, whole: Scenario) -> Scenario:
        """What this shard runs."""
        own = whole if self.variant is None else whole.variant(self.variant)
        return own.model_copy(update={"trials": self.trials, "seed": self.seed})

    def mark(self, record: Record) -> Record:
        """A record of this shard among those of all, with its variant, where there are others."""
        return record if self.variant is None else {"variant": self.variant, **record}


def whole_run_shard(scenario: Scenario) -> list[Shard]:
    """The scenario in one piece: its algorithms alternate, and see the same network. One without variants."""
    return [Shard(0, None, 0, scenario.trials, scenario.seed)]


def split_into_shards(scenario: Scenario) -> list[Shard]:
    """All shards, those of one algorithm one after the other, those of variants alternating from trial to trial.

    A shard has one algorithm and at most `TRIALS` of its trials; with events, or where replicas come and go, it has
    all: they happen once, at their times. Where a scenario names variants, a shard has one variant and one trial, with
    a seed of the trial's; or, where replicas come and go, all trials.
    """
    shards: list[Shard] = []
    if scenario.variants is not None and scenario.has_faults:
        return [
            Shard(number, name, 0, scenario.trials, scenario.seed)
            for number, name in enumerate(scenario.variant_names)
        ]
    if scenario.variants is not None:
        for trial in range(scenario.trials):
            names = scenario.variant_names
            for name in names if trial % 2 == 0 else names[::-1]:
                shards.append(Shard(len(shards), name, trial, 1, scenario.seed + trial * SEED_STEP))
        return shards
    most = scenario.trials if scenario.all_events or scenario.has_faults else TRIALS
    for name in scenario.variant_names:
        for block, first in enumerate(range(0, scenario.trials, most)):
            trials = min(most, scenario.trials - first)
            shards.append(Shard(len(shards), name, first, trials, scenario.seed + block * SEED_STEP))
    return shards


class ShardVariant(ResultModel):
    """What a shard says of one of its algorithms beside what its records hold.

    algorithm: as results call it. step_time_s: the median of its measured steps, predicted_s: the model's, None where
    it says nothing; both in real seconds. expected_wan_bytes: emulated.
    """

    algorithm: str
    step_time_s: float
    expected_wan_bytes: float
    predicted_s: float | None
    verdict: VerdictRecord
    control: Control
    training: Training
    events: Events | None = None
    replication: Replication | None = None
    served: tuple[ServedStep, ...] = ()
    decoded: DecodedSteps | None = None
    pauses: tuple[PausedLink, ...] = ()
    port_drops: tuple[DroppingPort, ...] = ()


class ShardFigures(ResultModel):
    """What a shard's `shard.json` holds."""

    clock: Literal["real", "virtual"]
    scale: ScaleRecord
    dimensionless: tuple[Number, ...]
    variants: tuple[ShardVariant, ...]
    manifest: Manifest


@dataclass(frozen=True)
class ShardRecord:
    """All that a shard leaves behind; its captures, and what watched the machine, stay files of `folder`.

    Times count from its first measured step; sizes and times are emulated. A sample's variant is its algorithm.
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
        """What it says of one of the run's variants, if it measured that."""
        if self.shard.variant is not None:
            return self.figures.variants[0] if self.shard.variant == name else None
        return next((entry for entry in self.figures.variants if entry.algorithm == name), None)

    def write(self) -> None:
        """Into its folder."""
        for name, lines in self._streams():
            write_lines(self.folder / name, lines)
        write_json(self.folder / FIGURES, {"shard": asdict(self.shard), **self.figures.document()})

    @classmethod
    def read(cls, folder: Path) -> ShardRecord:
        """From a folder that `write` made."""
        document = json.loads((folder / FIGURES).read_text())
        shard = Shard(**document.pop("shard"))

        def lines(name: str) -> list[Record]:
            return [json.loads(line) for line in (folder / name).read_text().splitlines()]

        names = (SAMPLES, LINKS, SOCKETS, EVENTS, CONTROLLER, RULES)
        return cls(shard, folder, ShardFigures.model_validate(document), *map(lines, names))

    def _streams(self) -> Iterator[tuple[str, Sequence[Record]]]:
        yield SAMPLES, self.samples
        yield LINKS, self.links
        yield SOCKETS, self.sockets
        yield EVENTS, self.events
        yield CONTROLLER, self.controller
        yield RULES, self.rules
