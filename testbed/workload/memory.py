"""The accelerator memory of a training step: weights, gradients, optimizer state and activations, in real figures.

Adam in mixed precision keeps 2 bytes of weights per parameter, the gradient's bytes, and 12 bytes of optimizer state:
32-bit weights, momentum and variance (Rajbhandari et al. 2020, "ZeRO", section 3.1, arXiv:1910.02054). Sharded
parameters (FSDP) are divided among all ranks of the group, except one layer that is gathered at a time. Activations are
the inputs of each block; the rest is recomputed from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from testbed.workload.parallelism import CONTEXT, EXPERT, SHARD, TENSOR, Mesh
from testbed.workload.stages import VALUE_BYTES, Layer, split_layers

if TYPE_CHECKING:
    from testbed.spec.transformer import ModelSpec

OPTIMIZER_BYTES = 12


def accelerator_bytes(
    model: str | ModelSpec,
    mesh: Mesh,
    owners: Sequence[int],
    peaks: Sequence[float],
    gradient_bytes: int,
    positions: Sequence[int],
    counts: Sequence[int] = (),
) -> list[float]:
    """Return the bytes of memory of one accelerator of each rank.

    Args:
        model: The model.
        mesh: The mesh of ranks.
        owners: Pipeline position of each stage.
        peaks: Peak bytes of activations of each rank, over all its accelerators.
        gradient_bytes: Bytes of a gradient value.
        positions: Pipeline position of each rank.
        counts: Blocks of each stage, if they are not divided evenly.
    """
    degrees = tuple((name, mesh.degrees[name]) for name in (TENSOR, EXPERT, SHARD, CONTEXT))
    states = _by_position(model, degrees, tuple(owners), gradient_bytes, tuple(counts))
    return [states[position] + peak / mesh.per_rank for position, peak in zip(positions, peaks, strict=True)]


@lru_cache(256)  # searches request a few distinct values many times
def _by_position(
    model: str | ModelSpec,
    degrees: tuple[tuple[str, int], ...],
    owners: tuple[int, ...],
    gradient_bytes: int,
    counts: tuple[int, ...],
) -> Mapping[int, float]:
    layers = split_layers(model, len(owners), counts)
    own: dict[int, list[Layer]] = {}
    for stage, owner in enumerate(owners):
        own.setdefault(owner, []).extend(layers[stage])
    return {position: _states(mine, dict(degrees), gradient_bytes) for position, mine in own.items()}


def _states(layers: Sequence[Layer], degrees: Mapping[str, int], gradient_bytes: int) -> float:
    """Return the bytes of weights, gradients and optimizer state of one accelerator with these layers."""
    tensor, expert = degrees[TENSOR], degrees[EXPERT]
    shards = degrees[SHARD] * degrees[CONTEXT]
    each = VALUE_BYTES + gradient_bytes + OPTIMIZER_BYTES
    whole = sum((layer.parameters - layer.experts) / tensor for layer in layers)
    # experts are spread over the shards; the remaining degree shards each expert
    routed = sum(layer.experts / tensor for layer in layers)
    largest = max((layer.parameters - layer.experts + layer.experts / expert) / tensor for layer in layers)
    return each * (whole + routed) / shards + (VALUE_BYTES * largest if shards > 1 else 0.0)
