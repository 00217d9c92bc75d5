"""How one model's training is spread over ranks, as a scenario says it: degrees, placement, schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from testbed.errors import did_you_mean
from testbed.spec.base_model import Finding, Form, StrictModel
from testbed.spec.catalogue import placements
from testbed.spec.hardware import IntraNodeSpec
from testbed.spec.replicas import FaultsSpec
from testbed.spec.value_types import (
    AUTO,
    MAX_DSCP,
    Count,
    CountOrZero,
    Duration,
    Flag,
    Fraction,
    Size,
    SizeOrNone,
    algorithm_schema,
    choice,
    expected_algorithm,
    named,
    number,
    whole,
)
from testbed.spec.yaml_loader import show

DIMENSIONS = (
    *("data_parallel_replicate", "pipeline_parallel", "data_parallel_shard"),
    *("context_parallel", "tensor_parallel"),
)
DEGREES = (*DIMENSIONS, "expert_parallel")
PLACEMENTS = tuple(placements())
TOPOLOGY_AWARE = "topology_aware"
BY_DISTANCE = "by_distance"
BY_SPEED = "by_speed"
EVEN = "even"
CONSECUTIVE = "consecutive"
MAPPINGS = (CONSECUTIVE, "scattered", TOPOLOGY_AWARE, BY_DISTANCE, BY_SPEED)
MICROBATCH_SHARES = (EVEN, BY_SPEED)
RECEIVES = ("early", "in_order")
HIERARCHIES = (BUILDINGS, LEAVES) = ("buildings", "leaves")
TENSOR_PARALLEL_MODES = ("all_reduce", "sequence_parallel", "tree", "overlapped_ring", "overlapped_tree")
BLOCKWISE_MODES = TENSOR_PARALLEL_MODES[2:]

# the collectives of each dimension; checked once more with what these really are
COLLECTIVES_OF = {
    "data_parallel_replicate": ("all_reduce",),
    "data_parallel_shard": ("all_gather", "reduce_scatter"),
    "tensor_parallel": ("all_reduce", "all_gather", "reduce_scatter"),
    "expert_parallel": ("all_to_all", "all_to_all_v"),
}


def _parse_order(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        if value in PLACEMENTS:
            return value
        raise ValueError(f"a placement ({did_you_mean(value, PLACEMENTS)}), or a list of dimensions")
    if isinstance(value, (list, tuple)) and sorted(map(str, value)) == sorted(DIMENSIONS):
        return tuple(map(str, value))
    raise ValueError(f"a placement ({', '.join(PLACEMENTS)}), or each of {', '.join(DIMENSIONS)} once")


def parse_mapping(value: object, ways: Sequence[str] = MAPPINGS) -> str | tuple[int, ...]:
    """One of these ways of mapping, or a rank for each coordinate. ValueError says what is expected."""
    if value in ways:
        return str(value)
    if isinstance(value, (list, tuple)) and sorted(map(str, value)) == sorted(map(str, range(len(value)))):
        return tuple(value)
    raise ValueError(f"{', '.join(ways)}, or a list with each rank once, such as [0, 2, 1, 3]")


def _parse_classes(value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of dimensions to DSCPs, such as {pipeline_parallel: 46}")
    classes = {}
    for name, dscp in value.items():
        if name not in DEGREES:
            raise ValueError(f"dimensions: {did_you_mean(str(name), DEGREES)}")
        try:
            classes[str(name)] = _DSCP.parse(dscp)
        except ValueError as error:
            raise ValueError(f"of {name} a DSCP, {error}") from None
    return classes


def _parse_shares(value: object) -> str | tuple[int, ...]:
    if value in MICROBATCH_SHARES:
        return str(value)
    if isinstance(value, (list, tuple)) and value and all(type(one) is int and one > 0 for one in value):
        return tuple(value)
    raise ValueError(f"{', '.join(MICROBATCH_SHARES)}, or a list of how many each has, such as [10, 6]")


def _parse_collectives(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of dimensions to algorithms, such as {data_parallel_shard: far_first}")
    for name, algorithm in value.items():
        if name not in COLLECTIVES_OF:
            raise ValueError(f"dimensions: {did_you_mean(str(name), COLLECTIVES_OF)}")
        if (expected := expected_algorithm(algorithm, COLLECTIVES_OF[name])) is not None:
            raise ValueError(f"of {name} {expected}")
    return {str(name): str(algorithm) for name, algorithm in value.items()}


_COLLECTIVES = Form(
    _parse_collectives,
    lambda: {
        "type": "object",
        "properties": {name: algorithm_schema(names) for name, names in COLLECTIVES_OF.items()},
        "additionalProperties": False,
    },
)
_DSCP = whole(0, MAX_DSCP)
_SHARES = Form(
    _parse_shares,
    {
        "anyOf": [
            {"enum": list(MICROBATCH_SHARES)},
            {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
        ]
    },
    lambda value: value if isinstance(value, str) else list(value),
)
_CLASSES = Form(
    _parse_classes,
    {"type": "object", "propertyNames": {"enum": list(DEGREES)}, "additionalProperties": _DSCP.json_schema},
)
_ORDER = Form(
    _parse_order,
    {"anyOf": [{"enum": list(PLACEMENTS)}, {"type": "array", "items": {"enum": list(DIMENSIONS)}}]},
    lambda value: value if isinstance(value, str) else list(value),
)
_MAPPING = Form(
    parse_mapping,
    {"anyOf": [{"enum": list(MAPPINGS)}, {"type": "array", "items": {"type": "integer"}}]},
    lambda value: value if isinstance(value, str) else list(value),
)


class StragglerSpec(StrictModel):
    """A rank that computes slowly, or a building all of whose ranks do."""

    rank: CountOrZero | None = Field(default=None, description="Which rank.")
    building: str | None = Field(default=None, description="In place of a rank: all ranks of that building.")
    slowdown: Annotated[float, number(1, 1000, 1.2)] = Field(
        description="By which factor its computing takes longer."
    )

    def checks(self) -> Iterator[Finding]:
        """It says one of both."""
        if (self.rank is None) == (self.building is None):
            found = "neither rank nor building" if self.rank is None else "a rank and a building"
            yield Finding(("rank",), found, "one of both")


class ParallelismSpec(StrictModel):
    """Degrees of parallelism, under torchtitan's names. Their product is the number of accelerators."""

    data_parallel_replicate_degree: Count = Field(default=1, description="Replicas of the model.")
    data_parallel_shard_degree: Count = Field(
        default=1, description="Ranks that share a replica's parameters (FSDP)."
    )
    context_parallel_degree: Count = Field(default=1, description="Ranks that share a sequence.")
    tensor_parallel_degree: Count = Field(default=1, description="Ranks that share each layer.")
    pipeline_parallel_degree: Count = Field(
        default=1, description="Ranks that have layers one after the other."
    )
    expert_parallel_degree: Count = Field(
        default=1, description="Ranks that share a layer's experts: a divisor of data_parallel_shard_degree."
    )
    accelerators_per_rank: Count = Field(
        default=1,
        description="For how many accelerators a rank stands, the innermost ones of the placement. What they send each "
        "other is not emulated; the run says what it is.",
    )
    within_rank: IntraNodeSpec | None = Field(
        default=None,
        description="What that takes, by a formula (`within_rank: {}`); by default nothing.",
    )
    tensor_communication: Annotated[str, choice("a way", TENSOR_PARALLEL_MODES)] = Field(
        default="all_reduce",
        description="What tensor-parallel ranks do twice per block and direction: an all-reduce; or, where they also "
        "share out the sequence, a reduce-scatter and an all-gather, of as many bytes (sequence_parallel, by an "
        "algorithm of `collectives`); or the same in blocks through windows: by a tree over nodes, the hosts of one "
        "leaf switch (tree), or, while matrices are multiplied block by block, as they come and go, by a ring or tree "
        "(overlapped_ring, overlapped_tree).",
    )
    routing_skew: Annotated[float, number(0, 10, 0.5)] = Field(
        default=0.0,
        description="How unevenly routers send tokens: standard deviation of what a rank of experts gets, as a share "
        "of the even part, drawn for each layer and microbatch by the scenario's seed. Experts that get more compute "
        "longer.",
    )
    placement: Annotated[str | tuple[str, ...], _ORDER] = Field(
        default="production",
        description="Dimensions, outermost first: which one crosses buildings. A name from data/placements.yaml, or a "
        "list of all.",
    )
    mapping: Annotated[str | tuple[int, ...], _MAPPING] = Field(
        default="consecutive",
        description="Which rank is at each coordinate of the mesh: consecutive, scattered (each next rank in another "
        "building), topology_aware (pairs swap as long as that lets fewer bytes cross), by_distance (buildings in the "
        "order of the shortest way through all of them, which stages of a pipeline then go), by_speed (buildings with "
        "the quickest accelerators first), or a list of ranks.",
    )

    collectives: Annotated[Mapping[str, str], _COLLECTIVES] = Field(
        default={},
        description="Algorithms of dimensions' collectives, such as {data_parallel_shard: far_first, tensor_parallel: "
        "ring}. Of those not named: the replicas' is that of `algorithms`, experts' direct, or late_counts with "
        "routing_skew (padded: each gets as much as the one that gets most), all others' ring.",
    )
    hierarchy: Annotated[str, choice("a tier", HIERARCHIES)] = Field(
        default=BUILDINGS,
        description="Whose ranks hierarchical algorithms, and auto, take to be near each other: those of a building, "
        "or those on one leaf switch, which is a node where each of its accelerators is a rank.",
    )
    dscp: Annotated[Mapping[str, int], _CLASSES] = Field(
        default={},
        description="DSCPs of what dimensions send, such as {pipeline_parallel: 46}, for policies that tell classes of "
        "traffic apart; 0 of those not named.",
    )
    compute_jitter: Fraction = Field(
        default=0.0,
        description="Standard deviation of each action's computing around its time, as a share of it; normally "
        "distributed, by the scenario's seed.",
    )
    stragglers: tuple[StragglerSpec, ...] = Field(default=(), description="Ranks that compute slowly.")
    faults: FaultsSpec | None = Field(
        default=None,
        description="What happens when a replica is lost; by default it ends the run. With it each variant is one job "
        "of all its steps.",
    )

    def checks(self) -> Iterator[Finding]:
        """Experts fit in a shard group; algorithms are of the collectives that there are."""
        if self.data_parallel_shard_degree % self.expert_parallel_degree:
            expected = f"a divisor of data_parallel_shard_degree ({self.data_parallel_shard_degree})"
            yield Finding(("expert_parallel_degree",), str(self.expert_parallel_degree), expected)
        own, in_blocks = f"{self.tensor_communication} with", self.tensor_communication in BLOCKWISE_MODES
        for name in ("context_parallel_degree", "expert_parallel_degree") if in_blocks else ():
            if (degree := getattr(self, name)) > 1:
                yield Finding(("tensor_communication",), f"{own} {name} {degree}", "1, or another way")
        tensor = "all_reduce" if self.tensor_communication == "all_reduce" else "all_gather"
        experts = "all_to_all_v" if self.routing_skew else "all_to_all"
        for name, collective, why in (
            ("tensor_parallel", tensor, f"tensor_communication {self.tensor_communication}"),
            ("expert_parallel", experts, "routing_skew" if self.routing_skew else "no routing_skew"),
        ):
            if (algorithm := self.collectives.get(name)) is None:
                continue
            wanted = expected_algorithm(algorithm, [collective])
            if wanted is None and collective == "all_to_all_v" and algorithm == AUTO:
                wanted = "late_counts, padded or another by name"  # no table is kept of these
            if in_blocks and name == "tensor_parallel":
                wanted = "none, or another way"
            if wanted is not None:
                yield Finding(("collectives",), f"{name}: {algorithm} with {why}", wanted)

    @property
    def degrees(self) -> dict[str, int]:
        """By dimension, experts included."""
        return {name: getattr(self, f"{name}_degree") for name in DEGREES}

    @property
    def order(self) -> tuple[str, ...]:
        """Dimensions, outermost first."""
        if isinstance(self.placement, str):
            return tuple(placements()[self.placement]["order"])
        return self.placement


class ScheduleSpec(StrictModel):
    """In which order each rank of a pipeline computes."""

    renamed: ClassVar[Mapping[str, str]] = {"wan_turns": "wan_send_tokens"}

    name: Annotated[str, named("schedules")] = Field(
        default="1F1B",
        description="Which schedule, under PyTorch's and CrossPipe's names; optimal, which is searched for; or one of "
        "your own as FILE.py:FUNCTION.",
    )
    file: str | None = Field(
        default=None,
        description="In place of a name: a CSV file as PyTorch writes them, a line per rank with actions such as 0F1, "
        "relative to this file.",
    )
    microbatches: Count = Field(default=8, description="Microbatches of a step.")
    chunks: Count = Field(
        default=1,
        description="Stages per rank, for Interleaved1F1B and LoopedBFS; for optimal 2 to search with two alone.",
    )
    layers_per_stage: Annotated[str | tuple[int, ...], _SHARES] = Field(
        default=EVEN,
        description="How many of the model's blocks each stage has: as many as the others, one more where they do not "
        "divide (even); as its ranks are quick (by_speed: each next block to the stage that is done with it first), or "
        "a list.",
    )
    microbatches_per_replica: Annotated[str | tuple[int, ...], _SHARES] = Field(
        default=EVEN,
        description="How many of all replicas' microbatches each replica has: `microbatches`; as its slowest rank is "
        "quick (by_speed: each next one to the replica that is done with it first), or a list that adds up to as many.",
    )
    memory: Annotated[float, number(0.001, 1000, 1.5)] = Field(
        default=1.0,
        description="What CrossUD, CrossUDSub, CrossWave and optimal may keep alive of activations, in multiples of "
        "what 1F1B keeps at the most.",
    )
    time_limit_s: Duration = Field(
        default=60.0,
        alias="time_limit",
        description="How long optimal may search, in seconds of a core, roughly: the effort is counted, so that every "
        "machine finds the same. What was found is kept. 0: it takes the best that is known, and tells a bound.",
    )
    memory_limit_bytes: SizeOrNone = Field(
        default=None,
        alias="memory_limit",
        description="Activations that a rank can keep alive; a schedule that needs more is refused.",
    )
    receives: Annotated[str, choice("a way", RECEIVES)] = Field(
        default="early",
        description="early: receives are posted in the order in which messages come, which leave at once. in_order: a "
        "receive is posted when its computing is next, and the message leaves then, as with NCCL.",
    )
    prefetch: CountOrZero = Field(
        default=1, description="How many layers ahead sharded parameters are gathered."
    )
    prefetch_first: Flag = Field(
        default=False,
        description="Whether, of what sharded ranks have to send in backward, a next layer's parameters go before a "
        "layer's gradients, as with FSDP2; otherwise after them.",
    )

    wan_send_tokens: Flag = Field(
        default=False,
        description="Replicas of a pipeline send to another building one after the other, as a token goes round, each "
        "with the whole link, in place of all at once (Atlas, arXiv:2411.14458).",
    )

    def checks(self) -> Iterator[Finding]:
        """The file is there; send tokens are of messages that leave as soon as they may, of replicas that are alike."""
        if self.microbatches_per_replica != EVEN:
            for field, value in (("wan_send_tokens", self.wan_send_tokens), ("file", self.file)):
                if value:
                    yield Finding((field,), show(value), f"none with microbatches_per_replica {EVEN}")
        if self.wan_send_tokens and self.receives != "early":
            yield Finding(("wan_send_tokens",), "true", "receives: early")
        if self.file is not None and not Path(self.file).is_file():
            yield Finding(("file",), show(self.file), "a CSV file with a line per rank")


class StageSpec(StrictModel):
    """What one stage takes for one microbatch, in place of a model. Of several stages per rank each takes its part."""

    forward_s: Duration = Field(alias="forward", description="Forward.")
    backward_input_s: Duration = Field(alias="backward_input", description="Gradient of its input.")
    backward_weight_s: Duration = Field(alias="backward_weight", description="Gradient of its weights.")
    activation_bytes: Size = Field(
        alias="activation",
        description="Of its output, and of the gradient of its input: what goes to the next rank.",
    )
    gradient_bytes: Size = Field(
        default=1, alias="gradients", description="Of its gradients, where there are replicas."
    )
