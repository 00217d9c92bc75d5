"""A job of TP x PP x DP groups played on a network of events, with faults, whose ranks keep real flight recorders.

Ranks run 1F1B-like steps: messages between stages, a tensor-parallel ring all-reduce per layer, gradient buckets of the
data-parallel ring beside computing, a barrier of all at the end. Each rank's clock is off by up to `clock_error_s`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from testbed.comm.flight_recorder import (
    COMPLETED,
    FAILED,
    NetworkPaths,
    PairPath,
    RankDump,
    Record,
    Recorder,
    read_ring,
)
from testbed.comm.flight_recorder.ring_buffer import ring_bytes

NIC_BPS, WAN_BPS = 8e9, 16e9
LAN_S, WAN_S = 20e-6, 3e-3
COMPUTE_S, CONTROL_S = 8e-3, 50e-6
TENSOR_BYTES, STAGE_BYTES, BUCKET_BYTES = 4 << 20, 8 << 20, 32 << 20
TIMEOUT_S = 3.0
HOPELESS_S = 0.5  # after the first rank gave up, the run is ended
PLANES = 4
BUCKETS = 2
STEP_S = 0.15

Going = Generator[Any, None, None]


@dataclass(frozen=True)
class Fault:
    """kind, from at_s on; rank, or component of the network; factor: of times or rates; operation: of the rank's."""

    kind: str
    at_s: float = 0.0
    rank: int = -1
    component: str = ""
    factor: float = 1.0
    operation: str = ""


@dataclass
class _Rank:
    offset_s: float
    memory: bytearray
    recorder: Recorder
    stopped: bool = False
    ended: str = ""
    gave_up: bool = False
    sequences: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    under_way: dict[int, Record] = field(default_factory=dict)
    calls: int = 0


class World:
    """Of tensor x pipeline x data ranks, one per host, replicas divided between two buildings."""

    def __init__(
        self,
        tensor: int = 2,
        pipeline: int = 4,
        data: int = 4,
        *,
        steps: int = 4,
        seed: int = 0,
        fault: Fault | None = None,
        buildings: int = 2,
        clock_error_s: float = 1e-3,
        detect_loss: bool = True,
        times_out: bool = True,
    ) -> None:
        self.tensor, self.pipeline, self.data, self.steps = tensor, pipeline, data, steps
        self.fault = fault
        self.buildings = buildings
        self.times_out, self.detect_loss = times_out, detect_loss
        self.draw = random.Random(seed)
        self.size = tensor * pipeline * data
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._inbox: dict[tuple[Any, ...], deque[bool]] = defaultdict(deque)
        self._waiting: dict[tuple[Any, ...], Callable[[], None]] = {}
        self._ended_s: float | None = None
        self.groups = dict(enumerate(self._groups()))
        pairs = tuple(self._pairs())
        links = {name for own in pairs for name in own.components if name.startswith("link")}
        rates = dict.fromkeys(sorted(links), WAN_BPS)
        self.paths = NetworkPaths({rank: self.host(rank) for rank in range(self.size)}, pairs, rates)
        self._path = {(own.source, own.target): own for own in self.paths.pairs}
        self._free_s: dict[tuple[int, int], float] = defaultdict(float)
        self.ranks = []
        for rank in range(self.size):
            memory = bytearray(ring_bytes())
            own = _Rank(self.draw.uniform(-1, 1) * clock_error_s, memory, Recorder(memory, rank))
            self.ranks.append(own)
            for number, (name, members) in self.groups.items():
                if rank in members:
                    own.recorder.group(number, name, members)

    # ---- who is where

    def rank_of(self, data: int, stage: int, tensor: int) -> int:
        """Its number."""
        return (data * self.pipeline + stage) * self.tensor + tensor

    def place(self, rank: int) -> tuple[int, int, int]:
        """The inverse of `rank_of`."""
        return (
            rank // self.tensor // self.pipeline,
            rank // self.tensor % self.pipeline,
            rank % self.tensor,
        )

    def building(self, rank: int) -> str:
        """Where it is."""
        return "abcd"[self.buildings * self.place(rank)[0] // self.data]

    def host(self, rank: int) -> str:
        """Its host."""
        return f"{self.building(rank)}-{rank}"

    def _groups(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "everybody", tuple(range(self.size))
        for data in range(self.data):
            for stage in range(self.pipeline):
                members = tuple(self.rank_of(data, stage, tensor) for tensor in range(self.tensor))
                yield f"tensor {data * self.pipeline + stage}", members
        for stage in range(self.pipeline):
            for tensor in range(self.tensor):
                members = tuple(self.rank_of(data, stage, tensor) for data in range(self.data))
                yield f"data {stage * self.tensor + tensor}", members

    def group_of(self, rank: int, name: str) -> int:
        """The number of a rank's group whose name begins so."""
        return next(
            number
            for number, (own, members) in self.groups.items()
            if own.startswith(name) and rank in members
        )

    def _pairs(self) -> Iterator[PairPath]:
        for source in range(self.size):
            for target in range(self.size):
                if source == target:
                    continue
                here, there = self.building(source), self.building(target)
                plane = random.Random(f"{min(source, target)} {max(source, target)}").randrange(PLANES)
                across = (
                    f"switch {here}-edge",
                    f"link {min(here, there)}-{max(here, there)}-{plane}",
                    f"plane {plane}",
                    f"switch {there}-edge",
                )
                components = (
                    f"nic {self.host(source)}",
                    f"switch {here}-leaf",
                    *(across if here != there else ()),
                    *((f"switch {there}-leaf",) if here != there else ()),
                    f"nic {self.host(target)}",
                )
                delay_s = WAN_S if here != there else LAN_S
                yield PairPath(source, target, components, rate_bps=NIC_BPS, delay_s=delay_s)

    def ring_links(self) -> list[str]:
        """The WAN links that data-parallel rings cross."""
        rings = [members for name, members in self.groups.values() if name.startswith("data")]
        pairs = [pair for ring in rings for pair in zip(ring, ring[1:] + ring[:1], strict=True)]
        names = {name for pair in pairs for name in self._path[pair].components}
        return sorted(name for name in names if name.startswith("link"))

    # ---- events

    def _at(self, when_s: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_s, self._number, do))

    def clock_s(self, rank: int) -> float:
        """What a rank's clock shows."""
        return 100.0 + self.now_s + self.ranks[rank].offset_s

    def _is(self, kind: str, rank: int = -1, component: str = "") -> bool:
        own = self.fault
        if own is None or own.kind != kind or self.now_s < own.at_s:
            return False
        return (rank < 0 or own.rank == rank) and (not component or own.component == component)

    def _go(self, rank: int, going: Going) -> None:
        """Let a task of a rank go on until it waits."""
        own = self.ranks[rank]
        if own.stopped or own.gave_up:
            return
        try:
            what = next(going)
        except StopIteration:
            return
        if isinstance(what, float):
            self._at(self.now_s + what, lambda: self._go(rank, going))
        elif self._inbox[what]:
            self._inbox[what].popleft()
            self._at(self.now_s, lambda: self._go(rank, going))
        else:
            self._waiting[what] = lambda: self._go(rank, going)

    def _arrive(self, key: tuple[Any, ...], path: PairPath) -> None:
        if any(self._is("blackhole", component=name) for name in path.components):
            return
        if key in self._waiting:
            self._waiting.pop(key)()
        else:
            self._inbox[key].append(True)

    def _send(self, source: int, target: int, key: tuple[Any, ...], size_bytes: int) -> None:
        """Give a message to the network: after others of the same pair, at its path's rate, with its delay."""
        path = self._path[source, target]
        rate_bps, late_s = NIC_BPS, 0.0
        for name in path.components:
            if self._is("degrade", component=name):
                assert self.fault is not None
                rate_bps /= self.fault.factor
            if self._is("loss", component=name):
                # each message of many packets meets losses, which its connection mends one after another
                late_s += 0.02 * (1 + self.draw.randrange(4)) * size_bytes / STAGE_BYTES
        begun_s = max(self.now_s, self._free_s[source, target])
        self._free_s[source, target] = begun_s + 8 * size_bytes / rate_bps
        arrives_s = self._free_s[source, target] + (path.delay_s or 0.0) + late_s
        self._at(arrives_s, lambda: self._arrive((target, *key), path))

    # ---- what ranks do

    def _begin(self, rank: int, group: int, sequence: int, name: str, size: int, **more: Any) -> Record:
        own = self.ranks[rank]
        record = own.recorder.begin(
            group,
            sequence,
            name,
            self.clock_s(rank),
            size_bytes=size,
            dtype=more.pop("dtype", "float32"),
            **more,
        )
        assert record is not None
        own.calls += 1
        own.under_way[own.calls] = record
        if self.times_out:
            call = own.calls
            self._at(self.now_s + TIMEOUT_S, lambda: self._time_out(rank, call))
        return record

    def _end(self, rank: int, record: Record) -> None:
        own = self.ranks[rank]
        record.ended(COMPLETED, self.clock_s(rank))
        own.under_way = {call: one for call, one in own.under_way.items() if one is not record}

    def _collective(
        self, rank: int, group: int, name: str, size: int, *, op: str = "sum", dtype: str = "float32"
    ) -> Going:
        members = self.groups[group][1]
        own = self.ranks[rank]
        sequence = own.sequences[group] = own.sequences[group] + 1
        record = self._begin(rank, group, sequence, name, size, op=op, dtype=dtype)
        factor = self.fault.factor if self.fault and self._is("slow io", rank) else 1.0
        yield CONTROL_S * factor * self.draw.uniform(0.7, 1.3)
        record.started(self.clock_s(rank))
        place, count = members.index(rank), len(members)
        if name == "barrier":
            rounds = [(1 << n, 1 << n, 8) for n in range((count - 1).bit_length())]
        else:
            rounds = [(1, 1, max(1, size // count))] * (2 * count - 2)
        for number, (ahead, back, size_bytes) in enumerate(rounds):
            to, source = members[(place + ahead) % count], members[(place - back) % count]
            record.position("ring", number, len(rounds))
            record.sent(to, size_bytes, self.clock_s(rank))
            self._send(rank, to, (rank, group, sequence, number), size_bytes)
            record.expected(source, size_bytes, self.clock_s(rank))
            yield (rank, source, group, sequence, number)
            record.received(source, size_bytes, self.clock_s(rank))
        self._end(rank, record)

    def _message(self, rank: int, peer: int, tag: int, size: int, *, sends: bool) -> Going:
        record = self._begin(rank, 0, 0, "isend" if sends else "irecv", size, peer=peer, tag=tag)
        record.started(self.clock_s(rank))
        if sends:
            record.sent(peer, size, self.clock_s(rank))
            self._send(rank, peer, (rank, "message", tag), size)
        else:
            record.expected(peer, size, self.clock_s(rank))
            yield (rank, peer, "message", tag)
            record.received(peer, size, self.clock_s(rank))
        self._end(rank, record)

    def _compute(self, rank: int, seconds: float) -> Going:
        factor = self.fault.factor if self.fault and self._is("slow rank", rank) else 1.0
        yield seconds * factor * self.draw.uniform(0.97, 1.03)

    def _beside(self, rank: int, going: Going, done: tuple[Any, ...]) -> None:
        """A task of its own, which says when it is done."""

        def both() -> Going:
            yield from going
            self._arrive(done, PairPath(rank, rank, ()))

        self._go(rank, both())

    def _called(self, rank: int, which: str) -> Fault | None:
        """The fault, where it is this rank's next call of this kind; once."""
        if self.fault is None or self.fault.operation != which or not self._is(self.fault.kind, rank):
            return None
        fault, self.fault = self.fault, replace(self.fault, rank=-2)
        return fault

    def _program(self, rank: int) -> Going:
        data, stage, tensor = self.place(rank)
        before = self.rank_of(data, stage - 1, tensor) if stage else None
        after = self.rank_of(data, stage + 1, tensor) if stage + 1 < self.pipeline else None
        tensors, replicas = self.group_of(rank, "tensor"), self.group_of(rank, "data")
        for step in range(self.steps):
            for forward in (True, False):
                source, target = (before, after) if forward else (after, before)
                for batch in range(self.pipeline):
                    tag = 2 * batch + forward
                    if source is not None:
                        yield from self._message(rank, source, tag, STAGE_BYTES, sends=False)
                    for _ in range(2):
                        yield from self._compute(rank, COMPUTE_S * (1 if forward else 2))
                        yield from self._layer(rank, tensors)
                    if target is not None:
                        yield from self._message(rank, target, tag, STAGE_BYTES, sends=True)
            for number in range(BUCKETS):
                yield from self._compute(rank, COMPUTE_S)
                size, dtype, name = BUCKET_BYTES, "float32", "all_reduce"
                fault = self._called(rank, "bucket")
                if fault is not None and fault.kind == "skip":
                    self._arrive((rank, "done", step, number), PairPath(rank, rank, ()))
                    continue
                if fault is not None:
                    size = size // 2 if fault.kind == "size" else size
                    dtype = "bfloat16" if fault.kind == "dtype" else dtype
                    name = "reduce_scatter_tensor" if fault.kind == "name" else name
                going = self._collective(rank, replicas, name, size, dtype=dtype)
                self._beside(rank, going, (rank, "done", step, number))
            for number in range(BUCKETS):
                yield (rank, "done", step, number)
            if self._called(
                rank, "order"
            ):  # another barrier where the others have one of their replicas only
                yield from self._collective(rank, 0, "barrier", 8)
            yield from self._collective(rank, replicas, "all_reduce", 8)
            yield from self._collective(rank, 0, "barrier", 8)

    def _layer(self, rank: int, group: int) -> Going:
        fault = self._called(rank, "layer")
        if fault is not None and fault.kind == "skip":
            return
        if fault is not None and fault.kind == "deadlock":
            # it asks for the next of its replicas first, its tensor group for this one
            yield from self._collective(rank, self.group_of(rank, "data"), "all_reduce", BUCKET_BYTES)
        yield from self._collective(rank, group, "all_reduce", TENSOR_BYTES)

    # ---- faults, and the end

    def _time_out(self, rank: int, call: int) -> None:
        own = self.ranks[rank]
        if call in own.under_way and not own.stopped and not own.gave_up:
            self._give_up(rank, f"not done within {TIMEOUT_S:g} s", own.under_way[call])

    def _give_up(self, rank: int, why: str, first: Record | None = None) -> None:
        own = self.ranks[rank]
        own.gave_up, own.ended = True, "exit status 1"
        for record in own.under_way.values():
            record.ended(
                FAILED, self.clock_s(rank), why if first in (None, record) else f"rank {rank}: aborted"
            )
        if self._ended_s is None:
            self._ended_s = self.now_s + HOPELESS_S
        if self.detect_loss:
            for peer in range(self.size):
                if peer != rank and not self._cut(rank, peer):
                    self._at(self.now_s + 1e-3, lambda peer=peer: self._lose(peer, rank))  # type: ignore[misc]

    def _cut(self, source: int, target: int) -> bool:
        return any(self._is("blackhole", component=name) for name in self._path[source, target].components)

    def _lose(self, rank: int, peer: int) -> None:
        own = self.ranks[rank]
        if not own.stopped and not own.gave_up and own.under_way:
            self._give_up(rank, f"rank {rank}: lost peer {peer}: connection reset")

    def _stop(self) -> None:
        assert self.fault is not None
        own = self.ranks[self.fault.rank]
        own.stopped = True
        if self.fault.kind == "kill":
            own.ended = "killed by signal 9"
            if self.detect_loss:
                for peer in range(self.size):
                    if peer != self.fault.rank:
                        self._at(self.now_s + 2e-3, lambda peer=peer: self._lose(peer, self.fault.rank))  # type: ignore

    def play(self, until_s: float = math.inf) -> list[RankDump]:
        """All of it, until nothing happens any more, the run is ended, or a moment; the dumps of all ranks."""
        if self.fault is not None and self.fault.kind in ("kill", "pause"):
            self._at(self.fault.at_s, self._stop)
        for rank in range(self.size):
            self._go(rank, self._program(rank))
        while self._events:
            when_s, _, do = heapq.heappop(self._events)
            if when_s > min(until_s, self._ended_s or math.inf):
                break
            self.now_s = when_s
            do()
        return [
            read_ring(own.memory, self.host(rank), self.clock_s(rank), own.ended)
            for rank, own in enumerate(self.ranks)
        ]


def faulty(kind: str, seed: int) -> tuple[World, tuple[int, ...] | str]:
    """A world of 32 to 64 ranks in four buildings with a fault of this kind, and whose it is: ranks, or a component."""
    draw = random.Random(f"{kind} {seed}")
    shape = ((2, 4, 4), (2, 2, 8), (4, 2, 4), (2, 4, 8))[seed % 4]
    world = World(*shape, seed=seed, buildings=4)
    rank = draw.randrange(world.size)
    # in the second or third of four steps, each of which takes so long for each stage
    at_s = draw.uniform(1.2, 2.6) * STEP_S * world.pipeline
    factor = draw.uniform(1.4, 2.5)
    nic = f"nic {world.host(rank)}"
    link = draw.choice(world.ring_links())
    known: dict[str, tuple[Fault, tuple[int, ...] | str]] = {
        "kill": (Fault("kill", at_s, rank), (rank,)),
        "pause": (Fault("pause", at_s, rank), (rank,)),
        "nic down": (Fault("blackhole", at_s, component=nic), nic),
        "link blackhole": (Fault("blackhole", at_s, component=link), link),
        "plane blackhole": (Fault("blackhole", at_s, component=f"plane {link[-1]}"), f"plane {link[-1]}"),
        "nic degrade": (Fault("degrade", at_s, component=nic, factor=10), nic),
        "nic loss": (Fault("loss", at_s, component=nic), nic),
        "link degrade": (Fault("degrade", at_s, component=link, factor=10), link),
        "slow rank": (Fault("slow rank", 0, rank, factor=factor), (rank,)),
        "rank becomes slow": (Fault("slow rank", at_s / 2, rank, factor=factor), (rank,)),
        "slow io": (Fault("slow io", at_s / 2, rank, factor=100), (rank,)),
        "skip of a bucket": (Fault("skip", at_s, rank, operation="bucket"), (rank,)),
        "skip in a layer": (Fault("skip", at_s, rank, operation="layer"), (rank,)),
        "other group first": (Fault("deadlock", at_s, rank, operation="layer"), (rank,)),
        "other order": (Fault("order", at_s, rank, operation="order"), (rank,)),
        "size": (Fault("size", at_s, rank, operation="bucket"), (rank,)),
        "type": (Fault("dtype", at_s, rank, operation="bucket"), (rank,)),
        "name": (Fault("name", at_s, rank, operation="bucket"), (rank,)),
    }
    fault, whose = known[kind]
    world.fault = fault
    return world, whose
