"""Computation, memory and traffic of pipeline stages, from a model's parameters and the degrees of parallelism.

All figures are real. Forward takes 2 floating-point operations per token and active parameter. The gradients of the
inputs and those of the weights take the same number each (arXiv:2001.08361, section 2.1).

Attention scores are left out there, and also here unless they are requested. If they are, two products count: that of
each token's query with all keys, and that of the result with all values. Each takes 2 operations in forward, and 4 for
the gradients of its inputs. This is 12 L s d per token in L layers of width d with sequences of length s (PaLM's
appendix B, arXiv:2204.02311; Megatron-LM's appendix, arXiv:2104.04473, gives the same). It is half of that if kernels
skip the part that a causal mask hides. It is 14 L s d if backward recomputes the scores and the recomputation is
counted (FlashAttention; PyTorch's FLOP counter).

Values on the wire have two bytes (bf16), and gradients have `gradient_bytes`.
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
"""Forward and backward factors, relative to two products of all pairs of tokens."""
_LAYER = re.compile(r"(?:layers|h)\.(\d+)\.")


@dataclass(frozen=True)
class Layer:
    """A block of the model, or all layers before or after the blocks.

    Attributes:
        parameters: Number of parameters.
        active: Number of parameters that a token uses.
        experts: Number of the parameters that belong to routed experts.
        active_experts: Number of the active parameters that belong to routed experts.
        block: Whether it is a block.
    """

    parameters: int
    active: float
    experts: int = 0
    active_experts: float = 0.0
    block: bool = True


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Bytes of a layer's arrays for one microbatch.

    Attributes:
        tensor: Partial sums, and the part of the sequence that they cover.
        gathered: Sharded parameters after the gather.
        reduced: Their gradients before reduction.
        expert_gathered: Parameters of routed experts after the gather.
        expert_reduced: Their gradients before reduction.
        expert: Tokens that are sent to all experts.
    """

    tensor: float = 0.0
    gathered: float = 0.0
    reduced: float = 0.0
    expert_gathered: float = 0.0
    expert_reduced: float = 0.0
    expert: float = 0.0


@dataclass(frozen=True)
class Part(Arrays):
    """A layer on one rank for one microbatch: real seconds of computation, and arrays of the whole rank.

    Attributes:
        forward_s: Time of the forward pass.
        input_s: Time of the gradients of the input.
        weight_s: Time of the gradients of the weights.
        context: Bytes of keys and values of one rank.
        routed: Share of the computation, excluding attention scores, that experts do after their tokens have arrived.
        scores_s: Share of `forward_s` for attention scores, in seconds.
        scores_input_s: Share of `input_s` for attention scores, in seconds.
        inner: Arrays that the rank's accelerators share, per accelerator and at full size.
        rows: Tokens that a matrix product handles at once.
    """

    forward_s: float
    input_s: float
    weight_s: float
    context: float = 0.0
    routed: float = 0.0
    scores_s: float = 0.0
    scores_input_s: float = 0.0
    inner: Arrays = Arrays()
    rows: float = 0.0


@dataclass(frozen=True)
class Stage:
    """A pipeline stage's work for one microbatch.

    Attributes:
        parts: The layers of the stage.
        activation: Bytes of the stage's output, and of the gradient of its input.
        kept: Bytes of activations kept from forward to backward.
    """

    parts: tuple[Part, ...]
    activation: float
    kept: float

    @cached_property
    def seconds(self) -> tuple[float, float, float]:
        """The compute times of forward, of the gradients of the input, and of the gradients of the weights."""
        return (
            sum(part.forward_s for part in self.parts),
            sum(part.input_s for part in self.parts),
            sum(part.weight_s for part in self.parts),
        )


@lru_cache(16)  # searches request the same model thousands of times
def layers_of(model: str | ModelSpec) -> tuple[tuple[Layer, ...], Layer, Layer]:
    """Return the blocks of a model, the embeddings, and everything after the last block."""
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
        tuple(layer_of(blocks[number]) for number in sorted(blocks)),
        layer_of(before, False),
        layer_of(after, False),
    )


def block_of(parameter: Parameter) -> int | None:
    """Return the number of a parameter's block; None if the parameter is outside the blocks."""
    found = _LAYER.match(parameter.name)
    return int(found[1]) if found else None


def layer_of(own: Sequence[Parameter], block: bool = True) -> Layer:
    """Return these parameters as a layer."""
    return Layer(
        sum(p.numel for p in own),
        sum(p.active for p in own if p.matmul),
        sum(p.numel for p in own if p.share < 1),
        sum(p.active for p in own if p.share < 1),
        block,
    )


class Scores(NamedTuple):
    """The multiplications for attention scores per token and block, as far as they are counted."""

    forward: float = 0.0
    backward: float = 0.0

    @property
    def parameters(self) -> float:
        """The number of active parameters with the same multiplications: one forward and two backward each."""
        return (self.forward + self.backward) / 3


NO_SCORES = Scores()


def scores_of(workload: WorkloadSpec) -> Scores:
    """Return the attention scores of a workload's model at its sequence length."""
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
    """Return the number of blocks of each stage.

    Embeddings belong to the first stage, and the output layer to the last. If blocks do not divide evenly, or stages
    differ in speed, each successive block is assigned to the stage that would finish it first. Ties go to the last
    stage, which keeps the fewest microbatches in memory. This minimizes the time of the slowest stage.

    Args:
        model: The model.
        stages: Number of stages.
        speeds: Relative speed of each stage, if speeds differ.
        counts: Given counts, which are returned unchanged.
        scores: Attention scores to count.

    Raises:
        ParallelismError: If there are fewer blocks than stages, or `counts` do not add up to the blocks.
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
    extra = [before.active, *[0.0] * (stages - 2), after.active]
    block, rates = blocks[0].active + scores.parameters, speeds or [1.0] * stages

    def finish_s(stage: int) -> float:
        return ((own[stage] + 1) * block + extra[stage]) / rates[stage]

    for _ in range(len(blocks) - stages):
        own[min(range(stages), key=lambda stage: (finish_s(stage), -stage))] += 1
    return tuple(own)


def split_layers(model: str | ModelSpec, stages: int, counts: Sequence[int] = ()) -> list[tuple[Layer, ...]]:
    """Return the layers of each stage: blocks as in `layer_counts`, embeddings first, the output layer last.

    ParallelismError is raised if there are fewer blocks than stages.
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
    """The values, apart from parallelism, that determine the figures of a stage.

    Attributes:
        dim: Width of the model.
        kv_dim: Values of a token's key and value together.
        experts_per_token: Routed experts that a token uses.
        sequence_length: Tokens of a sequence.
        microbatch_size: Sequences of a microbatch.
        flops: Flop/s of one accelerator.
        gradient_bytes: Bytes of a gradient value.
        scores: Attention scores to count.
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
        """Return the sizes of a workload with a model."""
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
    """Return all stages of a model, with `counts` blocks each (`split_layers`).

    An array that several accelerators of a rank share crosses the network once; separate arrays add up.
    ParallelismError is raised if the degrees do not fit.
    """
    mappings = (tuple(own.items()) for own in (mesh.degrees, mesh.inside, mesh.outside))
    return list(_model_stages(model, stages, *mappings, sizes, tuple(counts)))


Degrees = tuple[tuple[str, int], ...]  # by dimension


@lru_cache(64)  # searches request a few distinct values many times
def _model_stages(
    model: str | ModelSpec,
    stages: int,
    degree_items: Degrees,
    inside_items: Degrees,
    outside_items: Degrees,
    sizes: Sizes,
    counts: tuple[int, ...],
) -> tuple[Stage, ...]:
    degrees, inside, outside = dict(degree_items), dict(inside_items), dict(outside_items)
    context, tensor, expert = degrees[CONTEXT], degrees[TENSOR], degrees[EXPERT]
    tokens = sizes.sequence_length * sizes.microbatch_size / context  # of one accelerator
    # accelerators of a rank with separate tokens; each tensor-parallel rank has a part of a token's values
    own = inside[REPLICATE] * inside[SHARD] * inside[CONTEXT]
    values = tokens * own * sizes.dim / outside[TENSOR]
    kept = VALUE_BYTES * values
    sharded = outside[SHARD] * outside[CONTEXT] > 1
    expert_ranks = max(1, expert // inside[SHARD])

    def arrays(
        layer: Layer,
        tokens: float,
        tensor: int,
        expert: tuple[int, int],
        sharded: bool,
        sums: bool,
        routes: bool,
    ) -> dict[str, float]:
        dense, experts = (layer.parameters - layer.experts) / tensor, layer.experts / expert[0] / expert[1]
        gathered, sequence = VALUE_BYTES if sharded else 0, VALUE_BYTES * tokens * sizes.dim
        return {
            "tensor": sequence if layer.block and sums else 0.0,
            "gathered": gathered * dense,
            "reduced": sizes.gradient_bytes * dense,
            "expert_gathered": gathered * experts,
            "expert_reduced": sizes.gradient_bytes * experts,
            "expert": sequence / tensor * sizes.experts_per_token if layer.experts and routes else 0.0,
        }

    @lru_cache(None)  # most blocks are equal
    def part(layer: Layer) -> Part:
        dense_s = 2 * layer.active * tokens / tensor / sizes.flops
        scores = sizes.scores if layer.block else NO_SCORES
        scores_s, scores_input_s = (2 * count * tokens / tensor / sizes.flops for count in scores)
        has_context = layer.block and outside[CONTEXT] > 1
        inner = arrays(layer, tokens, tensor, (expert, tensor), degrees[SHARD] * context > 1, True, True)
        spread = outside[TENSOR], (outside[TENSOR], expert_ranks)
        return Part(
            dense_s + scores_s,
            dense_s + scores_input_s,
            dense_s,
            context=VALUE_BYTES * tokens * own * sizes.kv_dim / outside[TENSOR] if has_context else 0.0,
            routed=layer.active_experts / layer.active if layer.experts else 0.0,
            scores_s=scores_s,
            scores_input_s=scores_input_s,
            inner=Arrays(**inner),
            rows=tokens * own,
            **arrays(layer, tokens * own, *spread, sharded, outside[TENSOR] > 1, expert_ranks > 1),
        )

    return tuple(
        Stage(tuple(map(part, layers)), VALUE_BYTES * values, kept * sum(layer.block for layer in layers))
        for layers in split_layers(model, stages, counts or layer_counts(model, stages, scores=sizes.scores))
    )
