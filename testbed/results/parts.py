"""A run cut into parts that can be measured apart, and their results put together again. Pure.

Each part is one variant and at most `TRIALS` of its trials, in a network of its own; where a scenario names variants,
one trial, which has a seed of its own, and the variants take turns. How a run is cut depends on the scenario alone, so
that the results are the same however many parts run at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.config import Scenario
from testbed.fidelity import worst
from testbed.results.socket_use import socket_use
from testbed.results.summary import (
    LinkSeries,
    StepResult,
    gather_steps,
    held_against,
    middle_step,
    summarise_variant,
)
from testbed.results.training_summary import limited_words
from testbed.scale import Scale

TRIALS = 10
GAP_S = 0.1  # between the parts, where they are shown one after the other
SEED_STEP = 1_000_003
Record = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One variant, so many trials from `first_trial` on, with a seed of its own."""

    number: int
    variant: str
    first_trial: int
    trials: int
    seed: int

    @property
    def name(self) -> str:
        """For people."""
        return self.variant + (f", trials from {self.first_trial}" if self.first_trial else "")

    @property
    def folder(self) -> str:
        """Its place among the others of its run."""
        return f"{self.variant}-{self.first_trial}" if self.first_trial else self.variant

    def scenario(self, whole: Scenario) -> Scenario:
        """What this part runs."""
        changes = {"trials": self.trials, "seed": self.seed}
        return whole.variant(self.variant).model_copy(update=changes)


@dataclass(frozen=True)
class PartResult:
    """What a part's run directory holds."""

    part: Part
    summary: Record
    manifest: Record
    samples: Sequence[Record]
    links: Sequence[Record]
    events: Sequence[Record] = ()
    sockets: Sequence[Record] = ()


@dataclass(frozen=True)
class Records:
    """What a whole run wrote down while it measured."""

    samples: list[Record] = field(default_factory=list)
    links: list[Record] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    sockets: list[Record] = field(default_factory=list)


def cut(scenario: Scenario) -> list[Part]:
    """All parts, those of one algorithm one after the other, those of variants by turns, which turn round each trial.

    An algorithm with events stays whole: they happen once, at their times.
    """
    parts: list[Part] = []
    if scenario.variants is not None:
        for trial in range(scenario.trials):
            names = scenario.variant_names
            for name in names if trial % 2 == 0 else names[::-1]:
                parts.append(Part(len(parts), name, trial, 1, scenario.seed + trial * SEED_STEP))
        return parts
    most = scenario.trials if scenario.events else TRIALS
    for algorithm in scenario.algorithms:
        for block, first in enumerate(range(0, scenario.trials, most)):
            trials = min(most, scenario.trials - first)
            parts.append(Part(len(parts), algorithm, first, trials, scenario.seed + block * SEED_STEP))
    return parts


def merge_records(results: Sequence[PartResult]) -> Records:
    """The whole run's: the parts one after the other in time, trials numbered through."""
    found = Records()
    samples, links, events = found.samples, found.links, found.events
    shift_s, steps = 0.0, 0
    carried: dict[tuple[str, ...], int] = {}
    for result in results:
        end_s = max(sample["end_s"] for sample in result.samples)
        begin_s = min([0.0, *(link["time_s"] for link in result.links)])
        offset_s = shift_s - begin_s
        variant = result.part.variant
        for sample in result.samples:
            samples.append(
                {
                    **sample,
                    "variant": variant,
                    "trial": sample["trial"] + result.part.first_trial,
                    "step": sample["step"] + steps,
                    "start_s": sample["start_s"] + offset_s,
                    "end_s": sample["end_s"] + offset_s,
                }
            )
        last: dict[tuple[str, ...], int] = {}
        for link in result.links:
            moved = {**link, "time_s": link["time_s"] + offset_s}
            for counter in ("bytes", "packets", "drops", "marks"):
                key = (*_link(link), counter)
                moved[counter] = link[counter] + carried.get(key, 0)
                last[key] = moved[counter]
            links.append(moved)
        for event in result.events:
            time_s = event["time_s"]
            moment = None if time_s is None else time_s + offset_s
            events.append({**event, "variant": variant, "time_s": moment})
        for reading in result.sockets:
            found.sockets.append({"variant": variant, **reading, "time_s": reading["time_s"] + offset_s})
        carried |= last
        steps += 1 + max(sample["step"] for sample in result.samples)
        shift_s = max(end_s, *(link["time_s"] for link in result.links)) + offset_s + GAP_S
    return found


def merge_summaries(
    scenario: Scenario,
    scale: Scale,
    results: Sequence[PartResult],
    records: Records,
) -> list[Record]:
    """The variants' entries; `records` as `merge_records` gives them."""
    series: dict[tuple[str, str], LinkSeries] = {}
    for link in records.links:
        key = (f"{link['a']}-{link['b']}-{link['plane']}", link["direction"])
        figures = (link[name] for name in ("bytes", "queue_bytes", "drops", "marks"))
        series.setdefault(key, LinkSeries()).add(link["time_s"], *figures)
    variants = []
    for name in scenario.variant_names:
        variant = scenario.variant(name)
        own = [result for result in results if result.part.variant == name]
        steps = gather_steps(
            [sample for sample in records.samples if sample["variant"] == name], scenario.ranks
        )
        first = own[0].summary["variants"][0]
        expected = first["wan_bytes"]["expected"]
        topology = variant.topology.resolve(scale)
        hosts = variant.rank_hosts(topology)
        readings = [reading for reading in records.sockets if reading["variant"] == name]
        variants.append(
            summarise_variant(
                topology,
                scale,
                name=name,
                algorithm=variant.algorithms[0],
                policy=variant.policy.label,
                hosts=hosts,
                steps=steps,
                series=series,
                connections=socket_use(readings, steps, [host.building for host in hosts], scale),
                expected_wan_bytes=scale.emulated_bytes(expected),
                verdict=merge_verdicts([result.summary["variants"][0]["verdict"] for result in own]),
                predicted_s=_predicted_s([result.summary["variants"][0]["predicted"] for result in own]),
            )
            | {key: first[key] for key in ("control", "events") if key in first}
            | _training(own, steps)
        )
    return variants


def _predicted_s(predictions: Sequence[Mapping[str, float] | None]) -> float | None:
    """The median: each part has a seed of its own, which draws hashes anew."""
    found = [prediction["step_time_s"] for prediction in predictions if prediction is not None]
    return statistics.median(found) if found else None


def _training(own: Sequence[PartResult], steps: Sequence[StepResult]) -> Record:
    """Of the part whose step took the median, if ranks had plans; its prediction held against all of them."""
    entries = [result.summary["variants"][0] for result in own]
    if "training" not in entries[0]:
        return {}
    entry = sorted(entries, key=lambda entry: entry["step_time_s"]["median"])[(len(entries) - 1) // 2]
    training: Record = dict(entry["training"])
    measured_s = statistics.median(value for one in entries for value in one["step_time_s"]["samples"])
    predicted = training["predicted"]
    training["predicted"] = {**predicted, **held_against(predicted["step_time_s"], measured_s)}
    training["median_step"] = middle_step(steps).index
    return {"training": training, "limited_by": limited_words(training["measured"])}


def merge_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> Record:
    """As bad as the worst; each invariant as in the part where it held least."""
    rows: dict[str, Record] = {}
    by_badness = sorted(
        verdicts, key=lambda verdict: verdict["status"] != worst([v["status"] for v in verdicts])
    )
    for verdict in by_badness:
        for row in verdict["invariants"]:
            if row["name"] not in rows or (row["ok"] is False and rows[row["name"]]["ok"] is not False):
                rows[row["name"]] = dict(row)
    return {"status": worst([verdict["status"] for verdict in verdicts]), "invariants": list(rows.values())}


def _link(record: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(record[key]) for key in ("a", "b", "plane", "direction"))
