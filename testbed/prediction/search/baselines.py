"""The baselines of a search: common practice, the best of one dimension alone, and the value of each choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from testbed.prediction.closed_form import Changes
from testbed.prediction.search.evaluation import Configuration, Evaluation, Infeasible, short_name
from testbed.prediction.search.space import Space, Values, space_around, tuned_space
from testbed.spec.catalogue import baselines
from testbed.spec.scenario import Scenario
from testbed.spec.search_space import ExploreSpec

Kind = Literal["baseline", "single", "random", "best"]
"""A baseline, the best of one dimension alone, the best of as many random tries, or the best of all."""

Entry = Mapping[str, Any]
"""An entry of `data/baselines.yaml`."""

# Path prefixes of each dimension; a search of one dimension takes all others from the first baseline.
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "placement": ("workload.parallelism",),
    "schedule": ("workload.schedule", "workload.bucket_cap", "algorithms"),
    "network": ("policy", "transport", "topology"),
}
RECORDED_DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "placement": ("workload.placement", "workload.mapping"),
    "collectives": ("workload.algorithms", "workload.tuning", "algorithms"),
    "network": DIMENSIONS["network"],
}
AS_GIVEN = "as given"
# for a recorded job, its script fixes what planners choose
_RECORDED_ENTRY: Entry = {"changes": {}, "tunes": {}}


@dataclass(frozen=True)
class Baseline:
    """A search space whose fastest configuration is compared with the best one."""

    name: str
    kind: Kind
    tuned: bool
    space: Space


def first_of(scenario: Scenario, explore: ExploreSpec) -> Changes | None:
    """Return the changes of the first baseline; None if there is none."""
    entry = next(iter(_baseline_entries(scenario, explore).values()), None)
    return None if entry is None else entry["changes"]


def list_baselines(scenario: Scenario, explore: ExploreSpec) -> list[Baseline]:
    """List the baselines, each as given and, if it tunes anything, tuned; then the best of each dimension."""
    given = _baseline_entries(scenario, explore)
    dimensions = RECORDED_DIMENSIONS if scenario.workload.is_recorded else DIMENSIONS
    return [*_baselines(explore.space, given), *_singles(explore.space, given, dimensions)]


def _baseline_entries(scenario: Scenario, explore: ExploreSpec) -> dict[str, Entry]:
    if scenario.workload.is_recorded:
        return {AS_GIVEN: _RECORDED_ENTRY} if explore.baselines else {}
    return {name: baselines()[name] for name in explore.baselines}


def _baselines(values: Values, given: Mapping[str, Entry]) -> Iterator[Baseline]:
    for name, entry in given.items():
        yield Baseline(name, "baseline", False, Space({}, entry["changes"]))
        if entry["tunes"]:
            yield Baseline(name, "baseline", True, tuned_space(entry, values))


def _singles(
    values: Values, given: Mapping[str, Entry], dimensions: Mapping[str, tuple[str, ...]]
) -> Iterator[Baseline]:
    """Yield spaces that vary one dimension of the first baseline, then spaces that also vary its tuned paths."""
    for entry in list(given.values())[:1]:
        chosen = tuned_space(entry, values)
        for dimension, beginnings in dimensions.items():
            own = {
                path: some
                for path, some in values.items()
                if any(path == prefix or path.startswith(f"{prefix}.") for prefix in beginnings)
            }
            name, with_chosen = f"only {dimension}", {**chosen.values, **own}
            if own:
                yield Baseline(name, "single", False, space_around(entry["changes"], own))
            if own and with_chosen.keys() != own.keys():
                yield Baseline(name, "single", True, space_around(entry["changes"], with_chosen))


DEGREES = "degrees"  # these change together, since their product is the number of accelerators
_WITH_DEGREES = ("workload.schedule.microbatches", "workload.local_batch_size")

Pair = tuple[str, str]
"""Two choices; the same one twice for a single choice."""


@dataclass(frozen=True)
class Sensitivity:
    """The value of each choice, alone and in pairs; step times are in seconds, None if a configuration does not fit.

    `choices` has the differences between the best configuration and the first baseline. `taken` is the baseline with
    the best's choices, and `given_back` the best with the baseline's choices.
    """

    choices: tuple[str, ...]
    first_s: float
    best_s: float
    taken: Mapping[Pair, float | None]
    given_back: Mapping[Pair, float | None]


def sensitivity(
    first: Changes,
    best: Changes,
    evaluate: Callable[[Sequence[Configuration]], Sequence[Evaluation | Infeasible]],
) -> Sensitivity | None:
    """Compare two configurations choice by choice; None if they are equal or one does not fit."""
    choices = choices_of(first, best)
    pairs = list(itertools.combinations_with_replacement(choices, 2))

    def mixed(base: Changes, other: Changes, pair: Pair) -> Configuration:
        paths = {path for choice in pair for path in choices[choice]}
        own = {path: value for path, value in base.items() if path not in paths}
        return Configuration({**own, **{path: other[path] for path in paths if path in other}})

    configurations = [Configuration(first), Configuration(best)]
    configurations += [mixed(first, best, pair) for pair in pairs]
    configurations += [mixed(best, first, pair) for pair in pairs]
    found = [one.step_time_s if isinstance(one, Evaluation) else None for one in evaluate(configurations)]
    first_s, best_s, *others = found
    if not choices or first_s is None or best_s is None:
        return None
    taken, given_back = others[: len(pairs)], others[len(pairs) :]
    return Sensitivity(
        tuple(choices),
        first_s,
        best_s,
        dict(zip(pairs, taken, strict=True)),
        dict(zip(pairs, given_back, strict=True)),
    )


def choices_of(first: Changes, best: Changes) -> dict[str, list[str]]:
    """Return the paths in which two configurations differ, under a short name for each choice."""
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys((*first, *best)):
        if first.get(path) != best.get(path):
            is_degree = path.endswith("_degree") or path in _WITH_DEGREES
            found.setdefault(DEGREES if is_degree else short_name(path), []).append(path)
    return found


def document(found: Sensitivity | None) -> dict[str, Any] | None:
    """Return the form stored in `exploration.json`."""
    if found is None:
        return None
    return {
        "choices": list(found.choices),
        "first_s": found.first_s,
        "best_s": found.best_s,
        **{
            name: [
                {"choices": list(dict.fromkeys(pair)), "step_time_s": step_s} for pair, step_s in some.items()
            ]
            for name, some in (("taken", found.taken), ("given_back", found.given_back))
        },
    }
