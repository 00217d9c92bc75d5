"""All schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.workload.schedules import static
from testbed.workload.schedules.actions import Order, ScheduleError, check_orders
from testbed.workload.schedules.greedy import Costs, Rules, greedy

SUB_BLOCKS = 4  # of CrossUDSub: parts of a weight gradient


@dataclass(frozen=True)
class Ask:
    """What a schedule is for. memory: in multiples of the most that a rank keeps alive under 1F1B."""

    ranks: int
    microbatches: int
    chunks: int
    memory: float
    costs: Costs

    @property
    def loop(self) -> list[int]:
        """Owners of stages that go round."""
        return list(range(self.ranks)) * self.chunks

    @property
    def there_and_back(self) -> list[int]:
        """Owners of two stages per rank, of which the last rank's follow each other."""
        return [*range(self.ranks), *reversed(range(self.ranks))]

    @property
    def nearer(self) -> tuple[int, ...]:
        """How many microbatches rank after rank has under way in 1F1B."""
        return tuple(range(self.ranks, 0, -1))


@dataclass(frozen=True)
class Kept:
    """One schedule that there is. chunks: stages per rank, None where the user says; split: backward in two."""

    make: Callable[[Ask], Sequence[Order]]
    chunks: int | None = 1
    split: bool = False
    by_costs: bool = False

    def takes(self, chunks: int) -> bool:
        """Whether it can have so many stages per rank; one says nothing."""
        return self.chunks is None or chunks in (1, self.chunks)


def _zbh1(ask: Ask) -> Sequence[Order]:
    """As far ahead as 1F1B, but weight gradients wait as long as rank 0's memory would do on every rank."""
    free = Costs(ask.costs.forward_s, ask.costs.input_s, ask.costs.weight_s)
    return greedy(ask.loop, ask.microbatches, free, Rules((ask.ranks,) * ask.ranks, ask.nearer))


def _cross_ud(ask: Ask, parts: int = 1) -> Sequence[Order]:
    room = tuple(max(1, round(ask.memory * slots)) for slots in ask.nearer)
    return greedy(ask.loop, ask.microbatches, ask.costs, Rules(room, parts=parts))


def _cross_wave(ask: Ask) -> Sequence[Order]:
    room = max(2, round(2 * ask.memory * ask.ranks))  # a stage is half of what it is elsewhere
    return greedy(ask.there_and_back, ask.microbatches, ask.costs, Rules((room,) * ask.ranks))


SCHEDULES: Mapping[str, Kept] = {
    "GPipe": Kept(lambda ask: static.gpipe(ask.ranks, ask.microbatches)),
    "1F1B": Kept(lambda ask: static.one_f_one_b(ask.ranks, ask.microbatches)),
    "Interleaved1F1B": Kept(
        lambda ask: static.interleaved_1f1b(ask.ranks, ask.microbatches, ask.chunks), None
    ),
    "LoopedBFS": Kept(lambda ask: static.looped_bfs(ask.ranks, ask.microbatches, ask.chunks), None),
    "ZBH1": Kept(_zbh1, split=True, by_costs=True),
    "ZBVZeroBubble": Kept(lambda ask: static.zb_v(ask.ranks, ask.microbatches), 2, split=True),
    "CrossUD": Kept(_cross_ud, split=True, by_costs=True),
    "CrossUDSub": Kept(lambda ask: _cross_ud(ask, SUB_BLOCKS), split=True, by_costs=True),
    "CrossWave": Kept(_cross_wave, 2, split=True, by_costs=True),
}


@dataclass(frozen=True)
class Schedule:
    """Every rank's order, and the rank of every stage."""

    name: str
    orders: tuple[Order, ...]
    owners: tuple[int, ...]
    microbatches: int


def make_schedule(
    name: str, ranks: int, microbatches: int, costs: Costs, chunks: int = 1, memory: float = 1.0
) -> Schedule:
    """One of SCHEDULES. ScheduleError. costs: of a stage; chunks: stages per rank where the schedule leaves it open."""
    kept = SCHEDULES[name]
    if not kept.takes(chunks):
        raise ScheduleError(where=name, got=f"{chunks} chunks", expected=str(kept.chunks))
    ask = Ask(ranks, microbatches, kept.chunks or chunks, memory, costs)
    return schedule_of(name, kept.make(ask), microbatches)


def schedule_of(name: str, orders: Sequence[Order], microbatches: int) -> Schedule:
    """Orders from anywhere, as a schedule. ScheduleError where they are none."""
    return Schedule(name, tuple(orders), check_orders(orders, microbatches), microbatches)
