"""Forecast of wall time and guest memory under the virtual clock, and the number of ranks per process.

The constants were fitted to guests of 8 to 128 ranks on a host with two cores. The forecast is accurate to within 10 %
for memory and within a third for time; `benchmarks/virtual_forecast.py` repeats the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from testbed.comm.collectives.baseline_ring import TIMES, baseline_rounds, baseline_times
from testbed.comm.transport.kinds import transport_kind
from testbed.measure.results.shards import split_into_shards
from testbed.net.paths.alpha_beta import TRANSFER_S
from testbed.net.paths.hops import packet_payload_bytes
from testbed.spec.errors import option_error
from testbed.spec.events import KILL_EVENTS, EventSpec
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.transport import DISTANCES
from testbed.workload.job.endpoint_resolution import options_of
from testbed.workload.job.job import Workload
from testbed.workload.plan_volume import plan_load

MIB, GIB = 1 << 20, 1 << 30
# wall time
BOOT_S, RANK_S = 3.8, 0.04
MESSAGE_S, BYTE_S = 0.22e-3, 3.0e-9
PACKET_S = 0.65e-3  # per packet that ranks send and acknowledge themselves, in addition to its bytes
TWICE_AS_DEAR_RANKS = 256  # number of ranks at which a message or byte costs twice as much as with few
# memory
SYSTEM_BYTES, PROCESS_BYTES = 295 << 20, 6 << 20
PAGE_TABLE_SHARE = 1 / 64  # share of the guest's memory limit that its kernel's page structures take
ARRAY_SHARE, ALONE_SHARE = 1.2, 1.4
SPARE = 1.25


@dataclass(frozen=True)
class GuestLoad:
    """The load of one guest, in emulated figures: a step, and the isolated ring all-reduce before and after the steps.

    `array_bytes` is the size of all ranks' arrays. `alone_bytes` is the size of a message of the isolated ring, which
    runs `alone_times` times. `packets_per_byte` is set if ranks, not the kernel, handle packets.
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
        """Wall time of a guest with its own core, in seconds."""
        alone = self.alone_times * self.ranks * baseline_rounds(self.ranks)
        messages = self.steps * self.messages + alone
        sent_bytes = self.steps * self.sent_bytes + alone * self.alone_bytes
        dearer = 1 + self.ranks / TWICE_AS_DEAR_RANKS
        traffic_s = messages * MESSAGE_S + sent_bytes * (BYTE_S + self.packets_per_byte * PACKET_S)
        return BOOT_S + self.ranks * RANK_S + dearer * traffic_s

    def memory_bytes(self, ceiling_bytes: float) -> int:
        """Return the memory that the guest uses under a limit, in bytes."""
        return round(min(self._needed_bytes(ceiling_bytes), ceiling_bytes))

    def roomy_bytes(self, least_bytes: int) -> int:
        """Return a memory limit of at least `least_bytes` that leaves room beyond the expected use."""
        return max(least_bytes, -(-round(SPARE * self._needed_bytes(least_bytes)) // MIB) * MIB)

    def _needed_bytes(self, ceiling_bytes: float) -> float:
        needed = SYSTEM_BYTES + self.processes * PROCESS_BYTES + ceiling_bytes * PAGE_TABLE_SHARE
        return needed + ARRAY_SHARE * self.array_bytes + ALONE_SHARE * self.ranks**2 * self.alone_bytes

    def resized(self, factor: float) -> GuestLoad:
        """Return the load with arrays and messages `factor` times as large, in the same number of pieces."""
        sizes = ("sent_bytes", "array_bytes", "alone_bytes")
        return replace(self, **{name: getattr(self, name) * factor for name in sizes})


def guest_loads(
    scenario: Scenario, workloads: Mapping[str, Workload], scale: Scale, together: int | None
) -> dict[str, GuestLoad]:
    """Return the load of a guest of each variant, for one step.

    Args:
        scenario: The scenario.
        workloads: Workload of each variant, or one for all, in real figures.
        scale: The scale in force.
        together: Requested ranks per process; None for the default.
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
    directions = topology.wan_directions
    slowest_bps = min(one.rate_bps for one in (*directions, *(host.nic for host in topology.hosts)))
    most_bytes = TRANSFER_S * slowest_bps / 8 / max(1, baseline_rounds(ranks))
    per_process = ranks_per_process(
        together,
        ranks,
        scale.emulated_bytes(workload.rank_bytes),
        exact=True,
        apart=bool(stopping_events(own.all_events)),
    )
    kind = transport_kind(own.transport.kind, options_of(own.transport, scale))
    packets_per_byte = (
        (1 + kind.overhead(DISTANCES[-1])) / packet_payload_bytes(topology) if kind.protocol == "udp" else 0.0
    )
    return GuestLoad(
        ranks,
        -(-ranks // per_process),
        load.messages,
        scale.emulated_bytes(load.sent_bytes),
        scale.emulated_bytes(workload.array_bytes),
        min(scale.emulated_bytes(workload.message_bytes), most_bytes),
        packets_per_byte=packets_per_byte,
        alone_times=2 * baseline_times(exact=True, lossy=topology.lossy, warms_up=kind.warms_up),
    )


@dataclass(frozen=True)
class Forecast:
    """The forecast of a run: its guests' loads, how many run in parallel, and each guest's memory limit."""

    loads: tuple[GuestLoad, ...]
    jobs: int
    ceiling_bytes: int

    @property
    def wall_s(self) -> float:
        """Wall time of the whole run, in seconds."""
        each = [load.wall_s for load in self.loads]
        return max(*each, sum(each) / self.jobs)

    @property
    def memory_bytes(self) -> int:
        """Memory that the largest guest uses, in bytes."""
        return max(load.memory_bytes(self.ceiling_bytes) for load in self.loads)


def forecast(scenario: Scenario, loads: Mapping[str, GuestLoad], jobs: int, ceiling_bytes: int) -> Forecast:
    """Return the forecast of a run; `loads` are those of one step, by variant."""
    shards = [(shard.variant, shard.trials + scenario.warmup) for shard in split_into_shards(scenario)]
    each = tuple(replace(loads[variant], steps=steps) for variant, steps in shards if variant is not None)
    return Forecast(each, min(jobs, len(each)), ceiling_bytes)


def halving_option(scenario: Scenario, scale: Scale, loads: Mapping[str, GuestLoad], whole: Forecast) -> str:
    """Return a command-line option that halves the time; empty if there is none.

    Fewer trials are preferred, since they measure the same scenario; otherwise the option is a larger size scale.
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


def required_bytes(expected: Forecast) -> int:
    """Return the bytes that must be free per guest: the expected use plus a quarter, but at most its limit."""
    return min(expected.ceiling_bytes, round(SPARE * expected.memory_bytes))


def memory_text(size_bytes: int) -> str:
    """Return a memory size with the precision of the forecast, such as "390 MiB" or "4.4 GiB"."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{round(size_bytes / MIB, -1):g} MiB"


def forecast_text(expected: Forecast, hint: str) -> str:
    """Return text such as "about 15 s, and 390 MiB of memory for each guest; in half the time with --trials 2"."""
    wall_s, used = expected.wall_s, expected.memory_bytes
    took = f"{wall_s:.0f} s" if wall_s < 90 else f"{wall_s / 60:.0f} min"
    if wall_s > 5400:
        took = f"{wall_s / 3600:.1f} h"
    each = "the guest" if len(expected.loads) == 1 else "each guest"
    said = f"about {took}, and {memory_text(used)} of memory for {each}"
    return said + (f"; in half the time with {hint}" if hint else "")


OPTION = "--ranks-per-process"
ALL = "all"
# From this number of ranks on, one process is faster (benchmarks/virtual_start.py): 2 ranks took the same time, 4 took
# 5 % less, 8 took 20 % less, 64 and 128 took half the time.
LEAST_TOGETHER = 4
# More ranks per process gain little: 64 ranks started in 10.5, 9.8 and 8.9 s with 8, 16 and 64 per process.
MOST_TOGETHER = 64
# Limit on the bytes that the ranks of one process reduce or send in a step. In pages, it is about the number of memory
# mappings that the kernel allows a process (vm.max_map_count, 65,530). A ring of 64 ranks with 32 MB each used 18,551
# mappings; two levels of 64 ranks with 29 MiB each, and of 32 such ranks, used too many.
MOST_BYTES = 256 << 20
STOPS_A_PROCESS = ("host_pause", *KILL_EVENTS)


def ranks_per_process(
    asked: int | None, ranks: int, rank_bytes: float, *, exact: bool, apart: bool = False
) -> int:
    """Return the number of ranks per process: the requested one, or else the one measured to be fastest.

    Args:
        asked: The requested number, or None to choose.
        ranks: The number of all ranks.
        rank_bytes: Emulated bytes of a rank's arrays.
        exact: Whether the virtual clock is in use; on the real clock, ranks of one process share Python's GIL.
        apart: Whether each rank needs its own process.
    """
    if asked is not None:
        return min(asked, ranks)
    if not exact or apart or ranks < LEAST_TOGETHER:
        return 1
    return max(1, min(ranks, MOST_TOGETHER, int(MOST_BYTES / max(1.0, rank_bytes))))


def parse_ranks_per_process(text: str | None, ranks: int, scenario: Scenario | None = None) -> int | None:
    """Parse the option --ranks-per-process: a number, or "all"; None if it was not given.

    Raises:
        ConfigError: For any other text, and for several ranks per process if an event stops the process of one rank.
    """
    if text is None:
        return None
    if text != ALL and not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise option_error(OPTION, text, f"a number from 1 on, or {ALL}")
    count = ranks if text == ALL else min(int(text), ranks)
    if scenario is not None and count > 1 and (found := stopping_events(scenario.all_events)):
        expected = f"1, since {' and '.join(found)} stop the process of one rank"
        raise option_error(OPTION, text, expected)
    return count


def stopping_events(events: Iterable[EventSpec]) -> list[str]:
    """Return the actions of these events that stop or kill the process of a rank."""
    return sorted({event.action for event in events} & set(STOPS_A_PROCESS))
