"""What a step has to send, by the scenario: collectives by their formulas, messages as they are."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import yaml

from tests.oracle.flops import DATA, counts_of
from tests.oracle.quantities import quantity
from tests.oracle.raw import LOADER, Record, Step, get
from tests.oracle.variant import MeasuredVariant
from tests.oracle.wire import payload

ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
COLLECTIVES = frozenset(
    {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v"),
        *("broadcast", "reduce", "gather", "scatter", "sendrecv"),
    }
)
ORDER = (
    "data_parallel_replicate",
    "pipeline_parallel",
    "data_parallel_shard",
    "context_parallel",
    "tensor_parallel",
)


class Expected(NamedTuple):
    """Emulated bytes of a step inside buildings and between them, and by how much these may be off."""

    inside: float
    across: float
    within: float


class Group(NamedTuple):
    """Ranks that do a collective together, and what its algorithm is where it names none."""

    members: tuple[int, ...]
    algorithm: str


@functools.lru_cache(maxsize=64)
def expected(own: MeasuredVariant) -> Expected | None:
    """Of one step; None where the scenario alone does not say who sends what."""
    workload = own.settings["workload"]
    if any(workload.get(key) for key in ("plan", "trace", "chakra", "inference", "tuning")):
        return None
    step = own.whole_steps[0]
    if get(workload, "parallelism.hierarchy") == "leaves" or len(step.parts) < own.ranks or step.disturbed:
        return None
    itemsize = ITEMSIZES[workload.get("gradient_dtype", "float32")]
    inside = across = within = 0.0
    for entry in step.operations:
        if entry["operation"] == "send":
            here, there = (int(rank) for rank in entry["message"].partition("/")[0].split(">"))
            if own.buildings[here] == own.buildings[there]:
                inside += entry["bytes"]
            else:
                across += entry["bytes"]
    for entry, group in _collectives(own, step):
        buildings = [_number(own, member) for member in group.members]
        if entry["operation"] == "all_to_all_v" and workload.get("parallelism"):
            return None  # who gets how many tokens is drawn as the plan is made
        found = payload(entry["operation"], group.algorithm, entry["bytes"], buildings, itemsize)
        if found is None:
            return None
        inside, across = inside + found.inside, across + found.across
        # channels cut an array, and blocks cut a channel: at most an element more or less for each message
        within += found.messages * itemsize * 16
    return Expected(inside, across, within)


def gradient_bytes(own: MeasuredVariant) -> tuple[float, float] | None:
    """What each rank has to reduce in a step by the model's tensors, and what it did; emulated. None of other work."""
    workload = own.settings["workload"]
    if workload.get("model") is None or workload.get("parallelism") or workload.get("plan"):
        return None
    itemsize = ITEMSIZES[workload.get("gradient_dtype", "float32")]
    asked = counts_of(workload["model"]).total * itemsize / own.run.size_scale
    done = sum(
        entry["bytes"]
        for entry in own.whole_steps[0].operations
        if entry["operation"] == "all_reduce" and entry["rank"] == 0
    )
    return asked, done


def _number(own: MeasuredVariant, rank: int) -> int:
    return sorted(set(own.buildings)).index(own.buildings[rank])


def _collectives(own: MeasuredVariant, step: Step) -> Iterator[tuple[Record, Group]]:
    """Each collective of a step once, with who takes part."""
    for entry in step.operations:
        if entry["operation"] in COLLECTIVES:
            group = _group(own, entry)
            if entry["rank"] == group.members[0]:
                yield entry, group


def _group(own: MeasuredVariant, entry: Record) -> Group:
    workload = own.settings["workload"]
    chosen = (own.settings.get("algorithms") or ["ring"])[0]
    if workload.get("collectives"):
        asked = next(
            one
            for number, one in enumerate(workload["collectives"])
            if one["collective"] == entry["operation"] and _is(entry, one, number, own.run.size_scale)
        )
        return Group(tuple(range(own.ranks)), asked.get("algorithm", "auto"))
    parallelism = workload.get("parallelism")
    if parallelism is None:
        return Group(tuple(range(own.ranks)), chosen)
    dimension, dimensions = _dimension(entry)
    algorithm = (parallelism.get("collectives") or {}).get(dimension)
    if algorithm is None:
        usual = "direct" if entry["operation"] == "all_to_all" else "ring"
        algorithm = chosen if dimension == "data_parallel_replicate" else usual
    return Group(_members(parallelism, own.ranks, entry["rank"], dimensions), algorithm)


def _is(entry: Record, asked: Record, number: int, size_scale: float) -> bool:
    """Whether an operation is that collective of the scenario: the size tells equal ones apart."""
    return math.isclose(entry["bytes"], quantity(asked["size"]) / size_scale, rel_tol=0.05, abs_tol=256)


def _dimension(entry: Record) -> tuple[str, tuple[str, ...]]:
    """By which dimension of parallelism a collective is, from its name; and which dimensions its members differ in."""
    name = entry["name"]
    if name == "gradients":
        return "data_parallel_replicate", ("data_parallel_replicate",)
    if name.endswith((" parameters", " gradients")):
        return "data_parallel_shard", ("data_parallel_shard", "context_parallel")
    if name.endswith((" dispatch", " combine")):
        return "expert_parallel", ("data_parallel_shard",)
    return "tensor_parallel", ("tensor_parallel",)


def degrees_of(parallelism: Record) -> tuple[list[str], dict[str, int], dict[str, int]]:
    """The order of dimensions, the innermost last; how many ranks each has; how many of it are within a rank."""
    placement = parallelism.get("placement", "production")
    if isinstance(placement, str):
        placement = yaml.load((DATA / "placements.yaml").read_text(), Loader=LOADER)[placement]["order"]
    left = parallelism.get("accelerators_per_rank", 1)
    outside, within = {}, {}
    for name in reversed(placement):
        degree = parallelism.get(f"{name}_degree", 1)
        within[name] = math.gcd(degree, left)
        left //= within[name]
        outside[name] = degree // within[name]
    return placement, outside, within


def _members(parallelism: Record, ranks: int, rank: int, dimensions: Sequence[str]) -> tuple[int, ...]:
    """The ranks that differ from this one in these dimensions alone, of a mesh whose last dimension is innermost."""
    placement, degrees, _ = degrees_of(parallelism)
    places = list(itertools.product(*(range(degrees[name]) for name in placement)))
    mapping = parallelism.get("mapping")
    numbers = list(mapping) if isinstance(mapping, list) else list(range(ranks))
    own = places[numbers.index(rank)]
    return tuple(
        number
        for number, place in zip(numbers, places, strict=True)
        if all(
            mine == theirs or name in dimensions
            for name, mine, theirs in zip(placement, own, place, strict=True)
        )
    )
