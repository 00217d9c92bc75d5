"""A language model of bytes trained over distance: data parallel, DiLoCo and streaming DiLoCo, in 32, 8 or 4 bits.

    testbed launch -t TOPOLOGY -- python benchmarks/training/outer.py --method diloco --steps 48

Every rank is a building with a replica. Text: the topics of Python's own `help`, the last tenth held out. Rank 0 prints
a line of JSON for each method: (step, seconds of the modelled cluster, held-out loss of a byte in nats) along the way.

Sources: DiLoCo, arXiv:2311.08105 (inner AdamW, outer Nesterov of 0.9 with rate 0.7); Streaming DiLoCo, arXiv:2501.18512
(parts in turns, overlapped, mixed half and half with what came meanwhile, outer rate 0.4, few bits).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import pydoc_data.topics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from testbed.contrib.torch import Roofline, computing

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 144, 4, 4, 64, 4
STEP_S = 0.1  # of the accelerator, forward and backward
RATE, WARM_STEPS, HELD_OUT = 2e-3, 10, 16
INNER_STEPS, PARTS, LATE_STEPS, LOOK_STEPS = 12, 4, 2, 6
OUTER_RATE, STREAMED_RATE, MOMENTUM, KEPT = 0.7, 0.4, 0.9, 0.5
CHUNK = 256  # elements with one scale
PROBE_BYTES = 4_000_000
SEEDS_APART = 1000  # more than there are ranks, so that no two draw the same text


class Model(nn.Module):  # type: ignore[misc]
    """A causal transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, length) bytes."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.embedding(x) + self.places.weight
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def loss_of(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Of predicting each byte from those before it."""
    predicted = model(rows[:, :-1])
    return nn.functional.cross_entropy(predicted.flatten(0, 1), rows[:, 1:].flatten())


class Text:
    """Rows of bytes: random ones to train on, other for every rank, and held-out ones, the same for all."""

    def __init__(self, rank: int, seed: int) -> None:
        words = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
        text = torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8).long()
        cut = len(text) * 9 // 10
        self._train, held = text[:cut], text[cut:]
        self.held_out = held[: HELD_OUT * 4 * (LENGTH + 1)].view(-1, LENGTH + 1)[::4]
        self._random = torch.Generator().manual_seed(1 + rank + SEEDS_APART * seed)

    def rows(self) -> torch.Tensor:
        """A batch."""
        starts = torch.randint(len(self._train) - LENGTH, (BATCH,), generator=self._random)
        return torch.stack([self._train[start : start + LENGTH + 1] for start in starts])


# ---- exchanges between replicas, in few bits


def quantised(flat: torch.Tensor, bits: int) -> torch.Tensor:
    """As bytes: whole numbers of so many bits, then a scale in float32 for each chunk."""
    chunks = nn.functional.pad(flat, (0, -len(flat) % CHUNK)).view(-1, CHUNK)
    most = 2 ** (bits - 1) - 1
    scales = chunks.abs().amax(1, keepdim=True) / most
    numbers = (chunks / scales.clamp(min=1e-30)).round().to(torch.int8).view(torch.uint8).flatten()
    if bits == 4:
        numbers = (numbers[::2] & 15) | (numbers[1::2] << 4)
    return torch.cat([numbers, scales.flatten().view(torch.uint8)])


def restored(data: torch.Tensor, numel: int, bits: int) -> torch.Tensor:
    """The inverse, as far as the bits go."""
    count = math.ceil(numel / CHUNK)
    numbers, scales = data[: -4 * count], data[-4 * count :].clone().view(torch.float32)
    if bits == 4:
        pair = torch.stack([numbers << 4, numbers & 240], 1).view(torch.int8)
        numbers = (pair >> 4).flatten()
    return (numbers.view(torch.int8).view(-1, CHUNK) * scales[:, None]).flatten()[:numel]


class Mean:
    """The mean of all ranks' vectors, under way. bits: of each number; 32 for the vectors themselves."""

    def __init__(self, flat: torch.Tensor, bits: int) -> None:
        self.bits, self.numel = bits, len(flat)
        if bits == 32:
            self.data = flat.clone()
            self.work = dist.all_reduce(self.data, dist.ReduceOp.AVG, async_op=True)
            self.sent = flat
        else:
            own = quantised(flat, bits)
            self.sent = restored(own, self.numel, bits)
            self.data = own.new_empty(dist.get_world_size() * len(own))
            self.work = dist.all_gather_into_tensor(self.data, own, async_op=True)

    def get(self) -> torch.Tensor:
        """Once it is there."""
        self.work.wait()
        if self.bits == 32:
            return self.data
        parts = self.data.view(dist.get_world_size(), -1)
        return torch.stack([restored(part, self.numel, self.bits) for part in parts]).mean(0)


# ---- the ways to train


def flat_of(model: nn.Module) -> torch.Tensor:
    """All weights in one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


class Replica:
    """A replica by itself; what others derive from. `after` is called after every step."""

    def __init__(self, model: Model, bits: int) -> None:
        self.model, self.bits = model, bits
        self.wrapped: nn.Module = model

    def after(self, step: int) -> None:
        """Nothing more."""

    def finish(self) -> None:
        """Nothing is under way."""


class DataParallel(Replica):
    """Gradients are averaged in every step: in buckets, overlapped.

    In few bits in one bucket, and what was lost is added to the next.
    """

    def __init__(self, model: Model, bits: int) -> None:
        super().__init__(model, bits)
        few = bits < 32
        self.wrapped = DistributedDataParallel(model, bucket_cap_mb=1000 if few else 1)
        self.lost: torch.Tensor | None = None
        if few:
            self.wrapped.register_comm_hook(None, lambda _, bucket: self._hook(bucket))

    def _hook(self, bucket: Any) -> Any:
        flat = bucket.buffer()
        if self.lost is not None and len(self.lost) == len(flat):
            flat = flat + self.lost
        mean = Mean(flat, self.bits)
        self.lost = flat - mean.sent
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(mean.get())
        return done


class DiLoCo(Replica):
    """Replicas train by themselves; once in INNER_STEPS the mean of what they changed is an outer step for all.

    parts: of the weights, which take turns. late_steps: inner steps meanwhile; a part is mixed half and half with what
    came of it in these.
    """

    def __init__(self, model: Model, bits: int, parts: int = 1, late_steps: int = 0) -> None:
        super().__init__(model, bits)
        self.late_steps = late_steps
        self.rate = STREAMED_RATE if late_steps else OUTER_RATE
        self.kept = KEPT if late_steps else 0.0
        self.outer = flat_of(model).clone()
        self.speed = torch.zeros_like(self.outer)
        numel = len(self.outer)
        self.parts = [slice(numel * part // parts, numel * (part + 1) // parts) for part in range(parts)]
        self.under_way: list[tuple[int, slice, Mean]] = []

    def after(self, step: int) -> None:
        """Begin the exchange of the part whose turn it is, and end those that are due."""
        every = INNER_STEPS // len(self.parts)
        if step % every == 0:
            part = self.parts[step // every % len(self.parts)]
            change = self.outer[part] - flat_of(self.model)[part]
            self.under_way.append((step + self.late_steps, part, Mean(change, self.bits)))
        while self.under_way and self.under_way[0][0] <= step:
            self._outer_step(*self.under_way.pop(0)[1:])

    def finish(self) -> None:
        """End all that is under way."""
        while self.under_way:
            self._outer_step(*self.under_way.pop(0)[1:])

    def _outer_step(self, part: slice, mean: Mean) -> None:
        change = mean.get()
        self.speed[part] = MOMENTUM * self.speed[part] + change
        self.outer[part] -= self.rate * (change + MOMENTUM * self.speed[part])
        weights = flat_of(self.model)
        weights[part] = self.kept * weights[part] + (1 - self.kept) * self.outer[part]
        nn.utils.vector_to_parameters(weights, self.model.parameters())


METHODS: dict[str, Callable[[Model], Replica]] = {
    "ddp": lambda model: DataParallel(model, 32),
    "ddp 8-bit": lambda model: DataParallel(model, 8),
    "ddp 4-bit": lambda model: DataParallel(model, 4),
    "diloco": lambda model: DiLoCo(model, 32),
    "streaming": lambda model: DiLoCo(model, 32, PARTS, LATE_STEPS),
    "streaming 4-bit": lambda model: DiLoCo(model, 4, PARTS, LATE_STEPS),
}


def train(method: str, steps: int, seed: int) -> dict[str, Any]:
    """The same text and first weights for every method and network; others for another seed."""
    torch.manual_seed(seed)
    text, model = Text(dist.get_rank(), seed), Model()
    with FlopCounterMode(display=False) as counted:
        loss_of(model, text.rows()).backward()
    roofline = Roofline(counted.get_total_flops() / STEP_S, math.inf)
    model.zero_grad()
    replica = METHODS[method](model)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    dist.barrier()
    began_s = time.monotonic()
    points = [look(model, text, 0, began_s)]
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / WARM_STEPS)
        optimizer.zero_grad()
        with computing(roofline):
            loss_of(replica.wrapped, text.rows()).backward()
        optimizer.step()
        replica.after(step)
        if step % LOOK_STEPS == 0:
            points.append(look(model, text, step, began_s))
    replica.finish()
    return {"method": method, "parameters": len(flat_of(model)), "points": mean_of(points), **alike(replica)}


def look(model: Model, text: Text, step: int, began_s: float) -> tuple[int, float, float]:
    """Step, time and held-out loss of this replica: a look from outside, which says nothing to anybody."""
    with torch.no_grad():
        return step, time.monotonic() - began_s, loss_of(model, text.held_out).item()


def mean_of(points: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Of all replicas: the latest one's time, the mean of their losses."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, points)
    return [
        (own[0][0], max(time_s for _, time_s, _ in own), sum(loss for *_, loss in own) / len(own))
        for own in zip(*found, strict=True)
    ]


def alike(replica: Replica) -> dict[str, Any]:
    """Whether all ranks have the same of what they must: weights, or those of the outer steps; and a hash of it."""
    vector = replica.outer if isinstance(replica, DiLoCo) else flat_of(replica.model)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, hashlib.sha256(vector.numpy().tobytes()).hexdigest()[:16])
    return {"alike": len(set(found)) == 1, "weights": found[0]}


def probe() -> dict[str, float]:
    """The network between ranks 0 and 1 by itself: a small message's round trip, a large one each way at once."""
    rank, small, large = dist.get_rank(), torch.zeros(1), torch.zeros(PROBE_BYTES, dtype=torch.uint8)
    here: dict[str, float] = {}
    for name, tensor in (
        ("round_trip_s", small),
        ("round_trip_s", small),
        ("large_s", large),
        ("large_s", large),
    ):
        dist.barrier()
        began_s = time.monotonic()
        came = torch.zeros_like(tensor)
        if rank > 1:
            continue
        if name == "large_s":
            works = [dist.irecv(came, 1 - rank), dist.isend(tensor, 1 - rank)]
            for work in works:
                work.wait()
        elif rank == 0:
            dist.send(tensor, 1)
            dist.recv(came, 1)
        else:
            dist.recv(came, 0)
            dist.send(came, 0)
        here[name] = time.monotonic() - began_s
    return here


def main() -> None:
    """A line of the network, then one of each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument(
        "--seed", type=int, default=0, help="of first weights and of the text that ranks draw"
    )
    options = parser.parse_args()
    dist.init_process_group("testbed")
    say({"probe": probe()})
    for method in options.method or METHODS:
        say(train(method, options.steps, options.seed))
    dist.destroy_process_group()


def say(record: dict[str, Any]) -> None:
    """From rank 0."""
    if dist.get_rank() == 0:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
