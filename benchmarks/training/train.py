"""A small transformer, trained for some steps in one of the ways that PyTorch has; says losses, weights and times.

    testbed launch -t topologies/two-buildings.yaml -- python benchmarks/training/train.py --way ddp --backend testbed

An ordinary program of torch.distributed: nothing in it knows of the testbed but the backend's name. Rank 0 prints one
line of JSON: loss of every step, a hash of all weights at the end, seconds per step (the first one apart).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY, BATCH = 64, 4, 4, 32, 256, 8
RATE = 0.05
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, length, width)."""
        y = self.norm_1(x)
        parts = (
            layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_2(x))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The feed-forward layer."""
        return self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):  # type: ignore[misc]
    """A language model of bytes; a pipeline's stage has some of its parts only."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(LAYERS)})
        self.head: nn.Module | None = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Bytes, or what the stage before made of them."""
        x = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if self.head is not None else x


def loss_of(predicted: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, per byte."""
    return nn.functional.cross_entropy(predicted.flatten(0, -2), wanted.flatten())


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Forward, backward, update."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def ddp(model: Model) -> tuple[nn.Module, Step]:
    """Distributed data parallel, in several buckets."""
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.2)
    return model, plain(wrapped, torch.optim.SGD(wrapped.parameters(), RATE))


def fsdp(model: Model, dtype: torch.dtype | None = None) -> tuple[nn.Module, Step]:
    """Fully sharded (FSDP2), block by block."""
    policy = MixedPrecisionPolicy(param_dtype=dtype) if dtype else MixedPrecisionPolicy()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model, plain(model, torch.optim.SGD(model.parameters(), RATE))


def hsdp(model: Model) -> tuple[nn.Module, Step]:
    """Sharded within halves of the ranks, replicated between them."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards"))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, plain(model, torch.optim.SGD(model.parameters(), RATE))


def tensor(model: Model) -> tuple[nn.Module, Step]:
    """Tensor parallel (DTensor): every rank has the same batch, and a part of every layer."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    rows = {name: RowwiseParallel() for name in ("out", "down")}
    for block in model.blocks.values():
        parallelize_module(block, mesh, {**columns, **rows})
    return model, plain(model, torch.optim.SGD(model.parameters(), RATE))


def pipeline(model: Model) -> tuple[nn.Module, Step]:
    """Pipeline parallel (torch.distributed.pipelining, 1F1B): a stage on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for name in list(model.blocks):
        if int(name) * size // LAYERS != rank:
            del model.blocks[name]
    if rank:
        model.embedding = None
    if rank < size - 1:
        model.head = None
    stage = PipelineStage(model, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=size, loss_fn=loss_of)
    optimizer = torch.optim.SGD(model.parameters(), RATE)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        schedule.step(*([x] if rank == 0 else []), target=y, losses=losses)
        optimizer.step()
        mean = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(mean, size - 1)
        return mean

    return model, step


class Experts(nn.Module):  # type: ignore[misc]
    """A feed-forward layer on every rank: the i-th share of a rank's bytes goes to the expert of rank i, and back."""

    def __init__(self, dense: Block) -> None:
        super().__init__()
        self.up, self.down = dense.up, dense.down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, length, width); shares differ in size."""
        flat, size, rank = x.flatten(0, 1), dist.get_world_size(), dist.get_rank()
        sent = [len(flat) * (i + 1) // size - len(flat) * i // size for i in range(size)]
        come = [sent[rank]] * size
        there = all_to_all_single_autograd(flat, come, sent, dist.group.WORLD)
        done = self.down(nn.functional.gelu(self.up(there)))
        return all_to_all_single_autograd(done, sent, come, dist.group.WORLD).view_as(x)


def experts(model: Model) -> tuple[nn.Module, Step]:
    """Expert parallel: all-to-alls there and back; the other weights are replicated."""
    for block in model.blocks.values():
        block.experts = Experts(block)
        block.feed = block.experts.forward
    inside = {id(weight) for block in model.blocks.values() for weight in block.experts.parameters()}
    others = [weight for weight in model.parameters() if id(weight) not in inside]
    optimizer = torch.optim.SGD(model.parameters(), RATE)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        for weight in others:
            dist.all_reduce(weight.grad, dist.ReduceOp.SUM)
            weight.grad /= dist.get_world_size()
        optimizer.step()
        return loss.detach()

    return model, step


WAYS: dict[str, Callable[[Model], tuple[nn.Module, Step]]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "fsdp-bf16": lambda model: fsdp(model, torch.bfloat16),
    "hsdp": hsdp,
    "tensor": tensor,
    "pipeline": pipeline,
    "experts": experts,
}
SAME_BATCH = ("tensor", "pipeline")


def weights_hash(model: nn.Module) -> str:
    """Of all weights of all ranks, whole ones of those that are cut."""
    digest = hashlib.sha256()
    for _, weight in sorted(model.state_dict().items()):
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        digest.update(whole.float().numpy().tobytes())
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, digest.hexdigest())
    return hashlib.sha256("".join(found).encode()).hexdigest()[:16]


def run(way: str, steps: int) -> dict[str, object]:
    """Train; the same data and first weights in every run."""
    torch.manual_seed(0)
    model, step = WAYS[way](Model())
    data = torch.Generator().manual_seed(1 if way in SAME_BATCH else 1 + dist.get_rank())
    losses, times_s = [], []
    for _ in range(steps):
        batch = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=data)
        dist.barrier()
        began_s = time.monotonic()
        losses.append(step(batch[:, :-1], batch[:, 1:]).item())
        dist.barrier()
        times_s.append(time.monotonic() - began_s)
    return {
        "way": way,
        "losses": losses,
        "weights": weights_hash(model),
        "first_s": times_s[0],
        "step_s": sorted(times_s[1:])[len(times_s[1:]) // 2],
    }


def main() -> None:
    """One line of JSON for each backend and way, from rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--backend", action="append", help="several: in turns")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    for backend in options.backend or [None]:
        dist.init_process_group(backend)
        for way in options.way or WAYS:
            found = run(way, options.steps)
            if dist.get_rank() == 0:
                print(json.dumps({"backend": dist.get_backend(), **found}), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
