"""What the best of a search is held against: what people run today, and the best of one dimension alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from testbed.prediction.closed_form import Changes
from testbed.prediction.search.space import Space, Values, chosen_by, varied
from testbed.spec.catalogue import baselines
from testbed.spec.scenario import Scenario
from testbed.spec.search_space import ExploreSpec

Kind = Literal["baseline", "single", "random", "best"]
"""What is compared: a baseline, the best of one dimension alone, of as many at random, of all."""

Entry = Mapping[str, Any]
"""Of `data/baselines.yaml`."""

# What paths belong to; searches of one dimension alone take the others from the first baseline.
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
# of a job that was recorded: planners choose what is its script's
_GIVEN: Entry = {"changes": {}, "tunes": {}}


@dataclass(frozen=True)
class Rival:
    """Whose quickest the best is held against."""

    name: str
    kind: Kind
    tuned: bool
    space: Space


def first_of(scenario: Scenario, explore: ExploreSpec) -> Changes | None:
    """The changes of the first baseline; None where there is none."""
    entry = next(iter(_given(scenario, explore).values()), None)
    return None if entry is None else entry["changes"]


def rivals_of(scenario: Scenario, explore: ExploreSpec) -> list[Rival]:
    """Baselines, each as given and, where it chooses something by itself, tuned; then the best of each dimension."""
    given = _given(scenario, explore)
    dimensions = RECORDED_DIMENSIONS if scenario.workload.recorded else DIMENSIONS
    return [*_baselines(explore.space, given), *_singles(explore.space, given, dimensions)]


def _given(scenario: Scenario, explore: ExploreSpec) -> dict[str, Entry]:
    if scenario.workload.recorded:
        return {AS_GIVEN: _GIVEN} if explore.baselines else {}
    return {name: baselines()[name] for name in explore.baselines}


def _baselines(values: Values, given: Mapping[str, Entry]) -> Iterator[Rival]:
    for name, entry in given.items():
        yield Rival(name, "baseline", False, Space({}, entry["changes"]))
        if entry["tunes"]:
            yield Rival(name, "baseline", True, chosen_by(entry, values))


def _singles(
    values: Values, given: Mapping[str, Entry], dimensions: Mapping[str, tuple[str, ...]]
) -> Iterator[Rival]:
    """What differs in one dimension alone from the first baseline; then that with what that one chooses by itself."""
    for entry in list(given.values())[:1]:
        chosen = chosen_by(entry, values)
        for dimension, beginnings in dimensions.items():
            own = {
                path: some
                for path, some in values.items()
                if any(path == prefix or path.startswith(f"{prefix}.") for prefix in beginnings)
            }
            name, with_chosen = f"only {dimension}", {**chosen.values, **own}
            if own:
                yield Rival(name, "single", False, varied(entry["changes"], own))
            if own and with_chosen.keys() != own.keys():
                yield Rival(name, "single", True, varied(entry["changes"], with_chosen))
