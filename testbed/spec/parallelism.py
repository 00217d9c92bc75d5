"""How a scenario spreads a job over ranks: degrees, placement and schedule of training, places of a recorded job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from testbed.errors import did_you_mean
from testbed.plugins import registry
from testbed.spec.base_model import Finding, StrictModel, ValueFormat
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
    integer,
    number,
    registered_name,
    word_or_list,
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

# the collectives of each dimension; later checks use the collectives a job really has
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


def mapping_format(words: Sequence[str]) -> ValueFormat:
    """Return the format of a named mapping, or of the rank at each coordinate."""
    return word_or_list(
        words,
        {"type": "integer"},
        lambda ranks: sorted(map(str, ranks)) == sorted(map(str, range(len(ranks)))),
        "a list with each rank once, such as [0, 2, 1, 3]",
    )


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
            raise ValueError(f"for {name} a DSCP, {error}") from None
    return classes


def _parse_collectives(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of dimensions to algorithms, such as {data_parallel_shard: far_first}")
    for name, algorithm in value.items():
        if name not in COLLECTIVES_OF:
            raise ValueError(f"dimensions: {did_you_mean(str(name), COLLECTIVES_OF)}")
        if (expected := expected_algorithm(algorithm, COLLECTIVES_OF[name])) is not None:
            raise ValueError(f"for {name} {expected}")
    return {str(name): str(algorithm) for name, algorithm in value.items()}


_COLLECTIVES = ValueFormat(
    _parse_collectives,
    lambda: {
        "type": "object",
        "properties": {name: algorithm_schema(names) for name, names in COLLECTIVES_OF.items()},
        "additionalProperties": False,
    },
)
_DSCP = integer(0, MAX_DSCP)
_SHARES = word_or_list(
    MICROBATCH_SHARES,
    {"type": "integer", "minimum": 1},
    lambda counts: bool(counts) and all(type(one) is int and one > 0 for one in counts),
    "a list with the number of each, such as [10, 6]",
    minItems=1,
)
_CLASSES = ValueFormat(
    _parse_classes,
    {"type": "object", "propertyNames": {"enum": list(DEGREES)}, "additionalProperties": _DSCP.json_schema},
)
_ORDER = ValueFormat(
    _parse_order,
    {"anyOf": [{"enum": list(PLACEMENTS)}, {"type": "array", "items": {"enum": list(DIMENSIONS)}}]},
    lambda value: value if isinstance(value, str) else list(value),
)
_MAPPING = mapping_format(MAPPINGS)


class StragglerSpec(StrictModel):
    """A rank that computes slowly, or a building whose ranks all do."""

    rank: CountOrZero | None = None
    """The rank that is slow."""
    building: str | None = None
    """In place of a rank: all ranks in this building are slow."""
    slowdown: Annotated[float, number(1, 1000, 1.2)]
    """Factor by which computing takes longer."""

    def checks(self) -> Iterator[Finding]:
        """Check that either a rank or a building is given."""
        if (self.rank is None) == (self.building is None):
            found = "neither rank nor building" if self.rank is None else "a rank and a building"
            yield Finding(("rank",), found, "only one of the two")


class ParallelismSpec(StrictModel):
    """Degrees of parallelism, under torchtitan's names. Their product is the number of accelerators."""

    data_parallel_replicate_degree: Count = 1
    """Replicas of the model."""
    data_parallel_shard_degree: Count = 1
    """Ranks over which a replica's parameters are sharded (FSDP)."""
    context_parallel_degree: Count = 1
    """Ranks over which a sequence is split."""
    tensor_parallel_degree: Count = 1
    """Ranks over which each layer is split."""
    pipeline_parallel_degree: Count = 1
    """Pipeline ranks, which hold successive layers."""
    expert_parallel_degree: Count = 1
    """Ranks over which a layer's experts are spread: a divisor of data_parallel_shard_degree."""
    accelerators_per_rank: Count = 1
    """Accelerators that one rank represents, the innermost ones of the placement. Traffic between them is not emulated;
    the run reports its bytes.
    """
    within_rank: IntraNodeSpec | None = None
    """Cost of traffic between the accelerators of a rank, from a formula; `within_rank: {}` takes its defaults.
    Default: no cost.
    """
    tensor_communication: Annotated[str, choice("a mode", TENSOR_PARALLEL_MODES)] = "all_reduce"
    """Communication of tensor-parallel ranks, twice per block and direction. all_reduce: an all-reduce.
    sequence_parallel: the sequence is split, too; a reduce-scatter and an all-gather send the same number of bytes,
    with an algorithm of `collectives`. tree: the same in blocks through windows, along a tree over nodes (a node is the
    hosts of one leaf switch). overlapped_ring, overlapped_tree: blocks along a ring or tree, overlapped with the matrix
    products block by block.
    """
    routing_skew: Annotated[float, number(0, 10, 0.5)] = 0.0
    """Imbalance of expert routing: standard deviation of the tokens per expert rank, as a share of the mean, drawn for
    each layer and microbatch with the scenario's seed. Experts with more tokens compute longer.
    """
    placement: Annotated[str | tuple[str, ...], _ORDER] = "production"
    """Order of the dimensions, outermost first: the outermost crosses buildings. A name from data/placements.yaml, or a
    list of all dimensions.
    """
    mapping: Annotated[str | tuple[int, ...], _MAPPING] = "consecutive"
    """Which rank sits at each coordinate of the mesh: consecutive; scattered (successive ranks in different buildings);
    topology_aware (pairs swap while that reduces the bytes between buildings); by_distance (buildings in the order of
    the shortest path through all of them, which pipeline stages follow); by_speed (buildings with the fastest
    accelerators first); or a list of ranks.
    """

    collectives: Annotated[Mapping[str, str], _COLLECTIVES] = {}
    """Algorithms of the collectives of each dimension, such as {data_parallel_shard: far_first, tensor_parallel: ring}.
    Defaults: `algorithms` for replicas; direct for experts, or late_counts with routing_skew (padded: every rank
    receives as many tokens as the busiest one); ring for all others.
    """
    hierarchy: Annotated[str, choice("a tier", HIERARCHIES)] = BUILDINGS
    """Which ranks hierarchical algorithms and auto consider near: those of a building, or those on one leaf switch,
    which is a node if each of its accelerators is a rank.
    """
    dscp: Annotated[Mapping[str, int], _CLASSES] = {}
    """DSCP of each dimension's traffic, such as {pipeline_parallel: 46}, for policies with traffic classes; default: 0.
    """
    compute_jitter: Fraction = 0.0
    """Standard deviation of the compute time of each action, as a share of it; normally distributed, drawn with the
    scenario's seed.
    """
    stragglers: tuple[StragglerSpec, ...] = ()
    """Ranks that compute slowly."""
    faults: FaultsSpec | None = None
    """Fault tolerance: the reaction to the loss of a replica; default: the run ends. With this key, each variant is one
    job over all its steps.
    """

    def checks(self) -> Iterator[Finding]:
        """Check that experts fit in a shard group, and that algorithms fit the collectives in use."""
        if self.data_parallel_shard_degree % self.expert_parallel_degree:
            expected = f"a divisor of data_parallel_shard_degree ({self.data_parallel_shard_degree})"
            yield Finding(("expert_parallel_degree",), str(self.expert_parallel_degree), expected)
        own, in_blocks = f"{self.tensor_communication} with", self.tensor_communication in BLOCKWISE_MODES
        for name in ("context_parallel_degree", "expert_parallel_degree") if in_blocks else ():
            if (degree := getattr(self, name)) > 1:
                yield Finding(("tensor_communication",), f"{own} {name} {degree}", "1, or another mode")
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
                wanted = "late_counts, padded or another by name"  # there is no tuning table for these
            if in_blocks and name == "tensor_parallel":
                wanted = "none, or another mode"
            if wanted is not None:
                yield Finding(("collectives",), f"{name}: {algorithm} with {why}", wanted)

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees by dimension, experts included."""
        return {name: getattr(self, f"{name}_degree") for name in DEGREES}

    @property
    def order(self) -> tuple[str, ...]:
        """Dimensions, outermost first."""
        if isinstance(self.placement, str):
            return tuple(placements()[self.placement]["order"])
        return self.placement


class ScheduleSpec(StrictModel):
    """The order in which each rank of a pipeline computes."""

    renamed: ClassVar[Mapping[str, str]] = {"wan_turns": "wan_send_tokens"}

    name: Annotated[str, registered_name("schedules")] = "1F1B"
    """A schedule, under PyTorch's or CrossPipe's name; optimal, which is found by search; or your own as
    FILE.py:FUNCTION.
    """
    file: str | None = None
    """In place of a name: a CSV file in PyTorch's format, one line per rank with actions such as 0F1, relative to this
    file.
    """
    microbatches: Count = 8
    """Microbatches per step."""
    chunks: Count = 1
    """Stages per rank, for Interleaved1F1B and LoopedBFS; for optimal: 2 to search with two stages only."""
    layers_per_stage: Annotated[str | tuple[int, ...], _SHARES] = EVEN
    """Number of the model's blocks in each stage: even (some stages have one more if the number is not divisible);
    by_speed (each next block goes to the stage that would finish it first); or a list.
    """
    microbatches_per_replica: Annotated[str | tuple[int, ...], _SHARES] = EVEN
    """Number of microbatches for each replica: even (`microbatches` each); by_speed (each next one goes to the replica
    that would finish it first, by its slowest rank); or a list with the same total.
    """
    memory: Annotated[float, number(0.001, 1000, 1.5)] = 1.0
    """Activation memory that CrossUD, CrossUDSub, CrossWave and optimal may use, as a multiple of 1F1B's peak."""
    time_limit_s: Duration = 60.0
    """Search budget of optimal, in approximate seconds of one core. It is counted in search steps, so that every
    machine finds the same schedule. Results are cached. 0: take the best known schedule and report a bound.
    """
    memory_limit_bytes: SizeOrNone = None
    """Activation memory of a rank; a schedule that needs more is rejected."""
    receives: Annotated[str, choice("a mode", RECEIVES)] = "early"
    """early: receives are posted in the order of the messages, which are sent at once. in_order: a receive is posted
    when its computation is next, and only then is the message sent, as with NCCL.
    """
    prefetch: CountOrZero = 1
    """Number of layers by which sharded parameters are gathered ahead."""
    prefetch_first: Flag = False
    """In the backward pass, send the next layer's parameters before a layer's gradients, as FSDP2 does; default: after
    them.
    """

    wan_send_tokens: Flag = False
    """Replicas of a pipeline take turns in sending to another building, instead of sending all at once. The replica
    with the token uses the whole link (Atlas, arXiv:2411.14458).
    """

    def checks(self) -> Iterator[Finding]:
        """Check that the file exists, and that options do not exclude each other."""
        if self.microbatches_per_replica != EVEN:
            for field, value in (("wan_send_tokens", self.wan_send_tokens), ("file", self.file)):
                if value:
                    yield Finding((field,), show(value), f"none with microbatches_per_replica {EVEN}")
        if self.wan_send_tokens and self.receives != "early":
            yield Finding(("wan_send_tokens",), "true", "receives: early")
        if self.file is not None and not Path(self.file).is_file():
            yield Finding(("file",), show(self.file), "a CSV file with a line per rank")


class StageSpec(StrictModel):
    """Times and sizes of a pipeline stage per microbatch, in place of a model. Several stages of one rank share these
    values.
    """

    forward_s: Duration
    """Time of the forward pass."""
    backward_input_s: Duration
    """Time of the input's gradient in the backward pass."""
    backward_weight_s: Duration
    """Time of the weights' gradient in the backward pass."""
    activation_bytes: Size
    """Size of the output and of the input's gradient, which are sent to the next and the previous rank."""
    gradient_bytes: Size = Field(default=1, alias="gradients")
    """Size of the weights' gradients, which replicas reduce."""


AS_RECORDED = "as_recorded"
# compute times are as recorded, on any accelerator: speed is no criterion
RECORDED_MAPPINGS = tuple(name for name in MAPPINGS if name != BY_SPEED)
RECORDED_JOB_KEYS = ("placement", "mapping", "algorithms")  # keys of a workload with a trace


def _default_word(word: str, form: ValueFormat) -> ValueFormat:
    """Return a format in which a word stands for the default, None."""
    return replace(form, parse=lambda value: None if value == word else form.parse(value))


def _parse_algorithms(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of kinds to algorithms, such as {shard: hierarchical}")
    for kind, algorithm in value.items():
        if (expected := expected_algorithm(algorithm, tuple(registry("collectives")))) is not None:
            raise ValueError(f"for {kind} {expected}")
    return {str(kind): str(algorithm) for kind, algorithm in value.items()}


PLACEMENT = _default_word(
    AS_RECORDED,
    word_or_list(
        (AS_RECORDED,),
        {"type": "string"},
        lambda kinds: (
            0 < len(kinds) == len(set(map(str, kinds))) and all(isinstance(one, str) for one in kinds)
        ),
        "kinds of communication, outermost first, such as [replicate, shard]",
        minItems=1,
    ),
)
MAPPING = _default_word(CONSECUTIVE, mapping_format(RECORDED_MAPPINGS))
KIND_ALGORITHMS = ValueFormat(
    _parse_algorithms,
    lambda: {"type": "object", "additionalProperties": algorithm_schema(tuple(registry("collectives")))},
)
