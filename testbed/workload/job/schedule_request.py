"""Every pipeline rank's order of actions, from a scenario's schedule and the times of stages and links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from testbed.net.paths import Network
from testbed.spec.buildings import Host
from testbed.spec.parallelism import ScheduleSpec
from testbed.spec.scale import Scale
from testbed.workload.job.errors import wrong_workload
from testbed.workload.parallelism import PIPELINE, Mesh
from testbed.workload.schedules import (
    SCHEDULES,
    Costs,
    Schedule,
    ScheduleError,
    ScheduleRequest,
    find_schedule,
    make_schedule,
    read_csv,
    schedule_of,
)
from testbed.workload.stages import Stage

ROUNDING_STEPS = 1000  # steps per forward pass to which the times in a search are rounded
# a search requests the same schedule for many policies, transports and collectives; a plug-in's file may change
_cached_schedule = lru_cache(maxsize=64)(make_schedule)


def schedule_from_file(file: Path, ranks: int, microbatches: int) -> Schedule:
    """Return the schedule of a CSV file with a line per rank; raise ConfigError if it is invalid."""
    try:
        orders = read_csv(file.read_text("utf-8"))
        if len(orders) != ranks:
            raise ScheduleError(got=f"{len(orders)} lines", expected=f"{ranks}, one per rank of the pipeline")
        return schedule_of(file.stem, orders, microbatches)
    except ScheduleError as error:
        raise wrong_workload("schedule.file", f"{file}: {error.found}", error.expected) from None
    except OSError as error:
        raise wrong_workload("schedule.file", f"{file}: {error.strerror}", "a schedule") from None
    except UnicodeDecodeError as error:
        raise wrong_workload("schedule.file", f"{file}: {error}", "a CSV file in UTF-8") from None


def owners_of(asked: ScheduleSpec, ranks: int, stages: int) -> Sequence[int]:
    """Return the pipeline rank of each stage under a named schedule; raise ConfigError if the schedule does not fit."""
    if stages == ranks:
        return range(ranks)
    if find_schedule(asked.name).searched:
        return [*range(ranks), *reversed(range(ranks))]
    costs = Costs(1.0, 1.0, 1.0, (0.0,) * (ranks - 1), (0.0,) * (ranks - 1))
    return _make(asked, ranks, costs).owners


def schedule_by_name(
    asked: ScheduleSpec,
    mesh: Mesh,
    stages: Sequence[Stage],
    slowdowns: Sequence[float],
    network: Network,
    hosts: Sequence[Host],
    scale: Scale,
    beat_s: float = math.inf,
) -> Schedule:
    """Return a named schedule for these stages and this network.

    As in CrossPipe, schedules that depend on link times use only links between buildings; a search uses all links.

    Args:
        asked: The scenario's schedule.
        mesh: The mesh of ranks.
        stages: The pipeline's stages.
        slower: Slowdown of each stage.
        network: Paths between ranks.
        hosts: Host of each rank.
        scale: Scale of the emulation.
        beat_s: See `ScheduleRequest`.

    Raises:
        ConfigError: If the schedule does not fit.
    """
    ranks, searched = mesh.outside[PIPELINE], find_schedule(asked.name).searched
    line = mesh.groups(PIPELINE)[0] if ranks > 1 else ()
    hops = [network.paths[here, there] for here, there in pairwise(line)]
    size = scale.emulated_bytes(max(stage.activation for stage in stages))
    busy_s = [size / min(network.capacities[part] for part in hop.parts) for hop in hops]
    latency_s = [hop.latency_s(size) for hop in hops]
    crossing = [hosts[a].building != hosts[b].building for a, b in pairwise(line)]
    each = [_seconds(stage, factor) for stage, factor in zip(stages, slowdowns, strict=True)]
    forward_s, input_s, weight_s = map(scale.emulated_s, each[len(stages) // 2])
    everywhere = Costs(forward_s, input_s, weight_s, tuple(latency_s), tuple(busy_s))
    costs = replace(
        everywhere, latency_s=_only_crossing(crossing, latency_s), busy_s=_only_crossing(crossing, busy_s)
    )
    named = None
    if searched:
        costs, named = _round_costs(everywhere, each, scale), _round_costs(costs, each, scale)
    return _make(asked, ranks, costs, beat_s, named)


def _make(
    asked: ScheduleSpec, ranks: int, costs: Costs, beat_s: float = math.inf, named: Costs | None = None
) -> Schedule:
    make = _cached_schedule if asked.name in SCHEDULES else make_schedule
    numbers = ranks, asked.microbatches, asked.chunks, asked.memory
    try:
        return make(asked.name, ScheduleRequest(*numbers, costs, asked.time_limit_s, beat_s, named))
    except ScheduleError as error:
        raise wrong_workload("schedule", error.found, error.expected) from None


def _only_crossing(crossing: Sequence[bool], seconds: Sequence[float]) -> tuple[float, ...]:
    """Return the times of hops between buildings; 0 for hops within one."""
    return tuple(one if crosses else 0.0 for one, crosses in zip(seconds, crossing, strict=True))


def _round_costs(costs: Costs, stages: Sequence[tuple[float, float, float]], scale: Scale) -> Costs:
    """Return costs in rounded real time, so that a search gives the same result at every scale and runs only once."""
    unit_s = float(f"{scale.real_s(costs.forward_s):.6g}") / ROUNDING_STEPS

    def real(seconds: Sequence[float]) -> tuple[float, ...]:
        return tuple(round(one / unit_s) * unit_s for one in seconds)

    forward_s, input_s, weight_s = real(
        [scale.real_s(one) for one in (costs.forward_s, costs.input_s, costs.weight_s)]
    )
    latency_s, busy_s = (
        real([scale.real_s(one) for one in hops]) for hops in (costs.latency_s, costs.busy_s)
    )
    each = tuple((f, i, w) for f, i, w in map(real, stages))
    return Costs(forward_s, input_s, weight_s, latency_s, busy_s, each)


def _seconds(stage: Stage, factor: float) -> tuple[float, float, float]:
    forward_s, input_s, weight_s = stage.seconds
    return factor * forward_s, factor * input_s, factor * weight_s
