"""What a pipeline stage computes and sends, from a model's parameters and the degrees of parallelism. Real figures.

Computing takes 2 floating-point operations per token and parameter that works on it forward, as many for the gradients
of its input and of its weights (arXiv:2001.08361, section 2.1). Attention's scores are left out there, and here unless
they are asked for: products of each token's queries with all keys, and of what comes of these with all values, are then
2 operations each forward and 4 for the gradients of their inputs; 12 L s d per token in L layers of width d with
sequences of s (PaLM's appendix B, arXiv:2204.02311; as much by Megatron-LM's appendix, arXiv:2104.04473), half of that
where kernels skip what a causal mask hides, 14 where they find the scores once more for backward and that counts
(FlashAttention; PyTorch's FLOP counter). Values that travel have two bytes (bf16), gradients those of `gradient_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from testbed.workload.models import (
    Parameter,
    dimensions,
    experts_per_token,
    key_value_dim,
    parameters,
    score_products,
)
from testbed.workload.parallelism import CONTEXT, EXPERT, REPLICATE, SHARD, TENSOR, Mesh, ParallelismError

if TYPE_CHECKING:
    from testbed.spec.transformer import ModelSpec
    from testbed.spec.workload import WorkloadSpec

VALUE_BYTES = 2
SCORE_FACTORS = {"left_out": (0.0, 0.0), "causal": (0.5, 1.0), "full": (1.0, 2.0), "recomputed": (1.0, 2.5)}
"""Forward and backward, in what two products of all pairs of tokens take."""
_LAYER = re.compile(r"(?:layers|h)\.(\d+)\.")


@dataclass(frozen=True)
class Layer:
    """A block of the model, or what stands before and after all blocks: parameters, and those at work on a token.

    experts: of the parameters, those of routed experts; active_experts: of those at work, likewise.
    """

    parameters: int
    active: float
    experts: int = 0
    active_experts: float = 0.0
    block: bool = True


@dataclass(frozen=True)
class InnerSizes:
    """Bytes of the arrays of one accelerator that those of a rank share, each as large as it is once it is whole.

    tensor: a partial sum; gathered, reduced: sharded parameters, gradients; expert_gathered, expert_reduced: likewise,
    of the experts that it has; expert: tokens on their way to all experts.
    """

    tensor: float = 0.0
    gathered: float = 0.0
    reduced: float = 0.0
    expert_gathered: float = 0.0
    expert_reduced: float = 0.0
    expert: float = 0.0


@dataclass(frozen=True)
class Part:
    """A layer on one rank, for one microbatch: seconds of computing, and bytes that a whole rank has of each kind.

    gathered: of parameters that are sharded, once they are together; reduced: of their gradients. expert_gathered,
    expert_reduced: likewise, of routed experts. tensor: of a partial sum, and of the sequence that it stands for.
    context: of one rank's keys and values. expert: of tokens on their way to all experts together. routed: part of the
    computing, attention's scores aside, that experts do once tokens are there. scores_s, scores_input_s: of forward_s
    and input_s what is those scores. inner: of what goes on within a rank. rows: tokens that products
    work on together.
    """

    forward_s: float
    input_s: float
    weight_s: float
    gathered: float = 0.0
    reduced: float = 0.0
    expert_gathered: float = 0.0
    expert_reduced: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    routed: float = 0.0
    scores_s: float = 0.0
    scores_input_s: float = 0.0
    inner: InnerSizes = InnerSizes()
    rows: float = 0.0


@dataclass(frozen=True)
class Stage:
    """What a pipeline stage does for one microbatch.

    activation: bytes of its output, and of the gradient of its input. kept: bytes alive from forward to backward.
    """

    parts: tuple[Part, ...]
    activation: float
    kept: float

    @cached_property
    def seconds(self) -> tuple[float, float, float]:
        """Of computing: forward, for the gradient of its input, for that of its weights."""
        return (
            sum(part.forward_s for part in self.parts),
            sum(part.input_s for part in self.parts),
            sum(part.weight_s for part in self.parts),
        )


@lru_cache(16)  # searches ask for the same model's thousands of times
def layers_of(model: str | ModelSpec) -> tuple[tuple[Layer, ...], Layer, Layer]:
    """(blocks, embeddings, what comes after the last block)."""
    blocks: dict[int, list[Parameter]] = {}
    before: list[Parameter] = []
    after: list[Parameter] = []
    for parameter in parameters(model):
        number = block_of(parameter)
        if number is not None:
            blocks.setdefault(number, []).append(parameter)
        else:
            (after if blocks else before).append(parameter)
    return (
        tuple(_layer(blocks[number]) for number in sorted(blocks)),
        _layer(before, False),
        _layer(after, False),
    )


def block_of(parameter: Parameter) -> int | None:
    """The number of its block; None for what stands before and after all of them."""
    found = _LAYER.match(parameter.name)
    return int(found[1]) if found else None


def _layer(own: Sequence[Parameter], block: bool = True) -> Layer:
    return Layer(
        sum(p.numel for p in own),
        sum(p.active for p in own if p.matmul),
        sum(p.numel for p in own if p.share < 1),
        sum(p.active for p in own if p.share < 1),
        block,
    )


class Scores(NamedTuple):
    """Multiplications of attention's scores per token and block, as far as they count."""

    forward: float = 0.0
    backward: float = 0.0

    @property
    def parameters(self) -> float:
        """How many parameters at work would take as many, which have one forward and two backward."""
        return (self.forward + self.backward) / 3


NO_SCORES = Scores()


def scores_of(workload: WorkloadSpec) -> Scores:
    """Of a workload's model, in its sequences."""
    assert workload.model is not None
    products = workload.sequence_length * score_products(workload.model)
    forward, backward = SCORE_FACTORS[workload.attention_scores]
    return Scores(forward * products, backward * products)


def layer_counts(
    model: str | ModelSpec,
    stages: int,
    speeds: Sequence[float] = (),
    counts: Sequence[int] = (),
    scores: Scores = NO_SCORES,
) -> tuple[int, ...]:
    """How many blocks each stage has: evenly, as quick as stages are where `speeds` says it, or as `counts` has them.

    Embeddings are the first stage's, the output layer the last one's. Where stages do not divide blocks, or differ in
    speed, each next block goes to the stage that is done with it first, of equal ones to the last, which keeps the
    fewest microbatches alive: so the slowest is as quick as can be. ParallelismError where there are too few blocks, or
    counts do not add up to them.
    """
    blocks, before, after = layers_of(model)
    if len(blocks) < stages:
        raise ParallelismError(
            got=f"{len(blocks)} layers on {stages} stages", expected="at least one layer for each stage"
        )
    if counts:
        if len(counts) != stages or sum(counts) != len(blocks):
            found = f"{len(counts)} stages with {sum(counts)} layers"
            raise ParallelismError(got=found, expected=f"{stages} with the model's {len(blocks)}")
        return tuple(counts)
    if not speeds and len(blocks) % stages == 0:
        return (len(blocks) // stages,) * stages
    if stages == 1:
        return (len(blocks),)
    own = [1] * stages
    beyond = [before.active, *[0.0] * (stages - 2), after.active]
    block, paces = blocks[0].active + scores.parameters, speeds or [1.0] * stages

    def done(stage: int) -> float:
        return ((own[stage] + 1) * block + beyond[stage]) / paces[stage]

    for _ in range(len(blocks) - stages):
        own[min(range(stages), key=lambda stage: (done(stage), -stage))] += 1
    return tuple(own)


def split_layers(model: str | ModelSpec, stages: int, counts: Sequence[int] = ()) -> list[tuple[Layer, ...]]:
    """Blocks shared out (`layer_counts`), embeddings to the first stage, the output layer to the last.

    ParallelismError where there are too few.
    """
    blocks, before, after = layers_of(model)
    counts = counts or layer_counts(model, stages)
    ends = list(accumulate(counts))
    parts = [blocks[end - count : end] for count, end in zip(counts, ends, strict=True)]
    parts[0] = (before, *parts[0])
    parts[-1] = (*parts[-1], after)
    return parts


@dataclass(frozen=True)
class Sizes:
    """What a model is trained on.

    Width, width of keys and values together, experts per token; tokens of a sequence, sequences of a microbatch;
    flop/s of one accelerator; bytes of a gradient; attention's scores.
    """

    dim: int
    kv_dim: int
    experts_per_token: int
    sequence_length: int
    microbatch_size: int
    flops: float
    gradient_bytes: int
    scores: Scores = NO_SCORES

    @classmethod
    def of(cls, workload: WorkloadSpec, gradient_bytes: int) -> Sizes:
        """Of a workload with a model."""
        assert workload.model is not None
        return cls(
            dimensions(workload.model).dim,
            key_value_dim(workload.model),
            experts_per_token(workload.model),
            workload.sequence_length,
            workload.local_batch_size,
            workload.flops,
            gradient_bytes,
            scores_of(workload),
        )


def model_stages(
    model: str | ModelSpec, stages: int, mesh: Mesh, sizes: Sizes, counts: Sequence[int] = ()
) -> list[Stage]:
    """All stages of a model, each with so many blocks (`split_layers`). ParallelismError where something does not fit.

    What several accelerators of one rank share goes over the network once; what each has of its own is added up.
    """
    mappings = (tuple(own.items()) for own in (mesh.degrees, mesh.inside, mesh.outside))
    return list(_model_stages(model, stages, *mappings, sizes, tuple(counts)))


Degrees = tuple[tuple[str, int], ...]  # by dimension


@lru_cache(64)  # searches ask for the same ones again and again
def _model_stages(
    model: str | ModelSpec,
    stages: int,
    of_degrees: Degrees,
    of_inside: Degrees,
    of_outside: Degrees,
    sizes: Sizes,
    counts: tuple[int, ...],
) -> tuple[Stage, ...]:
    degrees, inside, outside = dict(of_degrees), dict(of_inside), dict(of_outside)
    context, tensor, expert = degrees[CONTEXT], degrees[TENSOR], degrees[EXPERT]
    tokens = sizes.sequence_length * sizes.microbatch_size / context  # of one accelerator
    # of all those in a rank that have tokens of their own; each tensor rank has a part of a token's values
    own = inside[REPLICATE] * inside[SHARD] * inside[CONTEXT]
    values = tokens * own * sizes.dim / outside[TENSOR]
    kept = VALUE_BYTES * values
    sharded = outside[SHARD] * outside[CONTEXT] > 1
    expert_ranks = max(1, expert // inside[SHARD])

    def inner(layer: Layer) -> InnerSizes:
        dense, experts = (layer.parameters - layer.experts) / tensor, layer.experts / expert / tensor
        gathered = VALUE_BYTES if degrees[SHARD] * context > 1 else 0
        return InnerSizes(
            tensor=VALUE_BYTES * tokens * sizes.dim if layer.block else 0.0,
            gathered=gathered * dense,
            reduced=sizes.gradient_bytes * dense,
            expert_gathered=gathered * experts,
            expert_reduced=sizes.gradient_bytes * experts,
            expert=VALUE_BYTES * tokens * sizes.dim / tensor * sizes.experts_per_token
            if layer.experts
            else 0.0,
        )

    @lru_cache(None)  # most blocks are alike
    def part(layer: Layer) -> Part:
        dense_s = 2 * layer.active * tokens / tensor / sizes.flops
        scores = sizes.scores if layer.block else NO_SCORES
        scores_s, scores_input_s = (2 * count * tokens / tensor / sizes.flops for count in scores)
        dense = (layer.parameters - layer.experts) / outside[TENSOR]
        routed = layer.experts / outside[TENSOR] / expert_ranks
        gathers = VALUE_BYTES if sharded else 0
        return Part(
            dense_s + scores_s,
            dense_s + scores_input_s,
            dense_s,
            gathered=gathers * dense,
            reduced=sizes.gradient_bytes * dense,
            expert_gathered=gathers * routed,
            expert_reduced=sizes.gradient_bytes * routed,
            tensor=VALUE_BYTES * tokens * own * sizes.dim if layer.block and outside[TENSOR] > 1 else 0.0,
            context=VALUE_BYTES * tokens * own * sizes.kv_dim / outside[TENSOR]
            if layer.block and outside[CONTEXT] > 1
            else 0.0,
            expert=VALUE_BYTES * values * sizes.experts_per_token
            if layer.experts and expert_ranks > 1
            else 0.0,
            routed=layer.active_experts / layer.active if layer.experts else 0.0,
            scores_s=scores_s,
            scores_input_s=scores_input_s,
            inner=inner(layer),
            rows=tokens * own,
        )

    return tuple(
        Stage(tuple(map(part, layers)), VALUE_BYTES * values, kept * sum(layer.block for layer in layers))
        for layers in split_layers(model, stages, counts or layer_counts(model, stages, scores=sizes.scores))
    )
