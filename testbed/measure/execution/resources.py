"""Resources of a run under the virtual clock: ranks per process, wall time, guest memory.

Both are laws with constants fitted to guests of 8 to 128 ranks on a machine of two cores, which they meet to a
tenth (memory) and to a third (time); `benchmarks/virtual_forecast.py` holds them against guests again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from testbed.comm.collectives.baseline_ring import TIMES, baseline_rounds, baseline_times
from testbed.comm.transport.kinds import transport_kind
from testbed.measure.results.shards import split_into_shards
from testbed.net.paths.alpha_beta import TRANSFER_S
from testbed.net.paths.hops import packet_payload_bytes
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.events import KILL_EVENTS, EventSpec
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.transport import DISTANCES
from testbed.workload.job.endpoint_resolution import options_of
from testbed.workload.job.job import Workload
from testbed.workload.plan_volume import plan_load

MIB, GIB = 1 << 20, 1 << 30
# of wall time
BOOT_S, RANK_S = 3.8, 0.04
MESSAGE_S, BYTE_S = 0.22e-3, 3.0e-9
PACKET_S = 0.65e-3  # of one that ranks carry and acknowledge themselves, beside what its bytes cost
TWICE_AS_DEAR_RANKS = 256  # a message and a byte among so many, beside those among few
# of memory
SYSTEM_BYTES, PROCESS_BYTES = 295 << 20, 6 << 20
PAGE_TABLE_SHARE = 1 / 64  # of all memory that a guest may use, which its kernel keeps books of
ARRAY_SHARE, ALONE_SHARE = 1.2, 1.4
SPARE = 1.25


@dataclass(frozen=True)
class GuestLoad:
    """What one guest carries. Figures are emulated: of a step, and of the ring all-reduce alone before and after.

    array_bytes: of all ranks; alone_bytes: of a message of the ring that is done alone, alone_times. packets_per_byte:
    that ranks carry themselves; none where the kernel does.
    """

    ranks: int
    processes: int
    messages: float
    sent_bytes: float
    array_bytes: float
    alone_bytes: float
    steps: int = 1
    packets_per_byte: float = 0.0
    alone_times: int = 2 * TIMES

    @property
    def wall_s(self) -> float:
        """Of a guest that has a core of its own."""
        alone = self.alone_times * self.ranks * baseline_rounds(self.ranks)
        messages = self.steps * self.messages + alone
        sent_bytes = self.steps * self.sent_bytes + alone * self.alone_bytes
        dearer = 1 + self.ranks / TWICE_AS_DEAR_RANKS
        carried_s = messages * MESSAGE_S + sent_bytes * (BYTE_S + self.packets_per_byte * PACKET_S)
        return BOOT_S + self.ranks * RANK_S + dearer * carried_s

    def memory_bytes(self, ceiling_bytes: float) -> int:
        """What it uses of as much as it may."""
        return round(min(self._needed_bytes(ceiling_bytes), ceiling_bytes))

    def roomy_bytes(self, least_bytes: int) -> int:
        """What it may use, so that what it is expected to leaves room: at least so much."""
        return max(least_bytes, -(-round(SPARE * self._needed_bytes(least_bytes)) // MIB) * MIB)

    def _needed_bytes(self, ceiling_bytes: float) -> float:
        needed = SYSTEM_BYTES + self.processes * PROCESS_BYTES + ceiling_bytes * PAGE_TABLE_SHARE
        return needed + ARRAY_SHARE * self.array_bytes + ALONE_SHARE * self.ranks**2 * self.alone_bytes

    def resized(self, factor: float) -> GuestLoad:
        """With arrays and messages so many times as large, all in as many pieces."""
        sizes = ("sent_bytes", "array_bytes", "alone_bytes")
        return replace(self, **{name: getattr(self, name) * factor for name in sizes})


def guest_loads(
    scenario: Scenario, workloads: Mapping[str, Workload], scale: Scale, together: int | None
) -> dict[str, GuestLoad]:
    """Of a guest of each variant, for one step.

    workloads: of each, or of all, in real figures. together: ranks to a process that were asked for.
    """
    found = {}
    for name in scenario.variant_names:
        workload = workloads.get(name) or next(iter(workloads.values()))
        found[name] = _guest_load(workload, scenario.variant(name), scale, together)
    return found


def _guest_load(workload: Workload, own: Scenario, scale: Scale, together: int | None) -> GuestLoad:
    topology, algorithm = own.topology.resolve(scale), own.algorithms[0]
    load = plan_load(workload.plan.with_algorithm(algorithm), workload.itemsize, scale.size_scale)
    ranks = len(workload.plan.ranks)
    ways = [way for link in topology.wan for way in (link.a_to_b, link.b_to_a)]
    slowest_bps = min(way.rate_bps for way in (*ways, *(entry.nic for entry in topology.hosts)))
    most_bytes = TRANSFER_S * slowest_bps / 8 / max(1, baseline_rounds(ranks))
    carried = ranks_per_process(
        together,
        ranks,
        scale.emulated_bytes(workload.rank_bytes),
        exact=True,
        apart=bool(stopping(own.happenings)),
    )
    kind = transport_kind(own.transport.kind, options_of(own.transport, scale))
    by_ranks = (
        (1 + kind.overhead(DISTANCES[-1])) / packet_payload_bytes(topology) if kind.protocol == "udp" else 0.0
    )
    return GuestLoad(
        ranks,
        -(-ranks // carried),
        load.messages,
        scale.emulated_bytes(load.sent_bytes),
        scale.emulated_bytes(workload.array_bytes),
        min(scale.emulated_bytes(workload.message_bytes), most_bytes),
        packets_per_byte=by_ranks,
        alone_times=2 * baseline_times(exact=True, lossy=topology.lossy, warms_up=kind.warms_up),
    )


@dataclass(frozen=True)
class Forecast:
    """Of a run whose guests carry these loads, so many at once, each of which may use so much memory."""

    loads: tuple[GuestLoad, ...]
    jobs: int
    ceiling_bytes: int

    @property
    def wall_s(self) -> float:
        """Of all of them."""
        each = [load.wall_s for load in self.loads]
        return max(*each, sum(each) / self.jobs)

    @property
    def memory_bytes(self) -> int:
        """That the largest guest uses."""
        return max(load.memory_bytes(self.ceiling_bytes) for load in self.loads)


def forecast(scenario: Scenario, loads: Mapping[str, GuestLoad], jobs: int, ceiling_bytes: int) -> Forecast:
    """Of a run of this scenario. loads: by variant, of one step."""
    shards = [(shard.variant, shard.trials + scenario.warmup) for shard in split_into_shards(scenario)]
    each = tuple(replace(loads[variant], steps=steps) for variant, steps in shards if variant is not None)
    return Forecast(each, min(jobs, len(each)), ceiling_bytes)


def halving_option(scenario: Scenario, scale: Scale, loads: Mapping[str, GuestLoad], whole: Forecast) -> str:
    """The setting that halves the time, as a command line has it; empty where none does.

    Fewer trials, if that is enough: what they measure stays what it was. Else sizes that are divided by more.
    """
    most_s = whole.wall_s / 2
    for trials in range(scenario.trials - 1, 0, -1):
        fewer = scenario.model_copy(update={"trials": trials})
        if forecast(fewer, loads, whole.jobs, whole.ceiling_bytes).wall_s <= most_s:
            return f"--trials {trials}"
    for factor in (2, 5, 10):
        smaller = tuple(load.resized(1 / factor) for load in whole.loads)
        if replace(whole, loads=smaller).wall_s <= most_s:
            return f"--set scale.size_scale={scale.size_scale * factor:g}"
    return ""


def room_for(expected: Forecast) -> int:
    """Bytes that must be free for each guest: what it may use at most, or what it is expected to, and a quarter."""
    return min(expected.ceiling_bytes, round(SPARE * expected.memory_bytes))


def memory_words(size_bytes: int) -> str:
    """As rough as it is known: "390 MiB", "4.4 GiB"."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{round(size_bytes / MIB, -1):g} MiB"


def forecast_text(expected: Forecast, hint: str) -> str:
    """For people: "about 15 s, and 390 MiB of memory for each guest; in half the time with --trials 2"."""
    wall_s, used = expected.wall_s, expected.memory_bytes
    took = f"{wall_s:.0f} s" if wall_s < 90 else f"{wall_s / 60:.0f} min"
    if wall_s > 5400:
        took = f"{wall_s / 3600:.1f} h"
    each = "the guest" if len(expected.loads) == 1 else "each guest"
    said = f"about {took}, and {memory_words(used)} of memory for {each}"
    return said + (f"; in half the time with {hint}" if hint else "")


OPTION = "--ranks-per-process"
ALL = "all"
# From so many ranks on one process was the quicker (benchmarks/virtual_start.py): 2 ranks took as long either way,
# 4 a twentieth less, 8 a fifth less, 64 and 128 half as long.
LEAST_TOGETHER = 4
# More gain next to nothing: 64 ranks started in 10.5, 9.8 and 8.9 s by 8, 16 and 64 to a process.
MOST_TOGETHER = 64
# Of what a step reduces or sends, for the ranks of one process together: in pages, as many as the host's kernel allows
# a process pieces of memory (65,530). Seen: a ring of 64 ranks with 32 MB each came to 18,551 pieces, two levels of 64
# with 29 MiB each, and of 32 of them, to too many.
MOST_BYTES = 256 << 20
STOPS_A_PROCESS = ("host_pause", *KILL_EVENTS)


def ranks_per_process(
    asked: int | None, ranks: int, rank_bytes: float, *, exact: bool, apart: bool = False
) -> int:
    """What was asked for, else what was measured to be quickest: 1 to `ranks`.

    rank_bytes: emulated bytes of a rank's arrays. exact: under the virtual clock; by this machine's, ranks of one
    process would wait for each other's Python. apart: each rank needs a process of its own.
    """
    if asked is not None:
        return min(asked, ranks)
    if not exact or apart or ranks < LEAST_TOGETHER:
        return 1
    return max(1, min(ranks, MOST_TOGETHER, int(MOST_BYTES / max(1.0, rank_bytes))))


def ranks_asked(text: str | None, ranks: int, scenario: Scenario | None = None) -> int | None:
    """From a command line's word: a number of ranks, or all of them; None where nothing was asked.

    ConfigError for other words, and for several ranks to a process where an event stops one of them.
    """
    if text is None:
        return None
    if text != ALL and not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise ConfigError([Problem("command line", None, OPTION, text, f"a number from 1 on, or {ALL}")])
    count = ranks if text == ALL else min(int(text), ranks)
    if scenario is not None and count > 1 and (found := stopping(scenario.happenings)):
        expected = f"1, since {' and '.join(found)} stop the process of one rank"
        raise ConfigError([Problem("command line", None, OPTION, text, expected)])
    return count


def stopping(events: Iterable[EventSpec]) -> list[str]:
    """What among these events stops or ends the process of one rank."""
    return sorted({event.action for event in events} & set(STOPS_A_PROCESS))
