"""Memory of a training step, against figures that follow from the papers' own."""

from __future__ import annotations

import pytest

from testbed.workload.memory import accelerator_bytes
from testbed.workload.parallelism import DIMENSIONS, EXPERT, make_mesh

LLAMA_8B, MIXTRAL = 8_030_261_248, 46_702_792_704


def bytes_of(model: str, ranks: int, stages: int = 1, peak: float = 0.0, **degrees: int) -> list[float]:
    all_degrees = {**dict.fromkeys((*DIMENSIONS, EXPERT), 1), **degrees}
    mesh = make_mesh(all_degrees, ranks, 1)
    positions = [coordinate["pipeline_parallel"] for coordinate in mesh.coordinates]
    return accelerator_bytes(model, mesh, range(stages), [peak] * ranks, 2, positions)


def test_a_whole_model_takes_sixteen_bytes_per_parameter() -> None:
    assert bytes_of("llama3-8b", 1) == [16 * LLAMA_8B]
    assert bytes_of("llama3-8b", 1, peak=1e9) == [16 * LLAMA_8B + 1e9]


def test_tensor_ranks_and_shards_share_it() -> None:
    assert bytes_of("llama3-8b", 8, tensor_parallel=8)[0] == pytest.approx(16 * LLAMA_8B / 8)
    sharded = bytes_of("llama3-8b", 8, data_parallel_shard=8)[0]
    embeddings = 128_256 * 4096
    assert sharded == pytest.approx(16 * LLAMA_8B / 8 + 2 * embeddings, rel=0.001)  # one layer gathered


def test_stages_have_their_own_layers() -> None:
    found = bytes_of("llama3-8b", 4, stages=4, pipeline_parallel=4)
    assert sum(found) == pytest.approx(16 * LLAMA_8B)
    assert found[0] > found[1] == found[2]


def test_experts_are_shared_by_the_shards_like_all_else() -> None:
    apart = bytes_of("mixtral-8x7b", 8, data_parallel_shard=8, expert_parallel=8)[0]
    together = bytes_of("mixtral-8x7b", 8, data_parallel_shard=8)[0]
    assert apart < together  # of the layer that is gathered only the rank's own experts
    assert apart > 16 * MIXTRAL / 8
