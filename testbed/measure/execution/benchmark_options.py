"""Parsing and checking of the options of the collective and bootstrap benchmarks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from testbed.clock import clock_here
from testbed.comm.collectives import AUTO, COLLECTIVES, DTYPES, OPERATIONS, TuningTable, collective_of
from testbed.errors import did_you_mean
from testbed.measure.execution.bootstrap_benchmark import MOST_EAGER, BootstrapOptions
from testbed.measure.execution.collective_benchmark import COLUMNS, BenchRun, Row
from testbed.measure.execution.network_setup import (
    CLOCKS,
    check_transport,
    check_word,
    guest_settings,
    parse_size_option,
    rank_count,
)
from testbed.net.virtual.guest import DEFAULT_MEMORY_BYTES, GuestSettings
from testbed.plugins import OWN_FILE, Registry, resolve_file_names
from testbed.prediction.startup_cost import BASELINE, PUBLISHED, RING, SCALABLE, SoftwareCosts
from testbed.spec.errors import option_error
from testbed.spec.overrides import PRESETS, preset_transport
from testbed.spec.transport import TransportSpec
from testbed.workload.job.tuning_choice import tuning_of

SCHEMA = 1
USUAL_KIND, USUAL_PROTOCOL = "tcp", "eager"


def check_bench_options(dtype: str, op: str, transport: str, protocol: str, clock: str) -> None:
    """Raise ConfigError for the first option with an unknown value."""
    check_word("--datatype", dtype, DTYPES)
    check_word("--op", op, OPERATIONS)
    check_word("--clock", clock, CLOCKS)
    check_transport(transport, protocol)


def parse_transport(kind: str, protocol: str, preset: str | None) -> TransportSpec:
    """Return the transport from checked options or from a preset; raise ConfigError if both are given."""
    if preset is None:
        return TransportSpec(kind=kind, protocol=protocol)
    check_word("--preset", preset, PRESETS)
    if (kind, protocol) != (USUAL_KIND, USUAL_PROTOCOL):
        given = f"{preset} and --transport {kind} --protocol {protocol}"
        raise option_error("--preset", given, "either a preset, which sets both, or these options")
    return preset_transport(preset)


def resolve_collective(name: str) -> str:
    """Return a collective's name, with the path of a FILE.py:NAME made absolute.

    Raises:
        ConfigError: If there is no such collective.
        PluginError: If the file does not load.
    """
    return _named("COLLECTIVE", name, COLLECTIVES)


def parse_algorithms(collective: str, asked: str, tune: bool = False) -> tuple[str, ...]:
    """Parse the option --algorithm: "auto", "all" or comma-separated names. For a tuning table, "auto" means "all".

    Raises:
        ConfigError: If there is no such algorithm, or nothing to tune.
        PluginError: If a file does not load.
    """
    known = collective_of(collective).algorithms
    if tune and len(known) < 2 and not OWN_FILE.fullmatch(asked):
        several = [name for name, found in COLLECTIVES.items() if len(found.algorithms) > 1]
        raise option_error(
            "--tune", collective, f"a collective with several algorithms: {', '.join(several)}"
        )
    if asked == "all" or (tune and asked == AUTO):
        return tuple(known)
    if asked == AUTO and collective_of(collective).uneven:
        return (collective_of(collective).automatic(0, ()),)  # there is no tuning table for these
    return tuple(
        name if name == AUTO else _named("--algorithm", name, known, AUTO) for name in asked.split(",")
    )


def sizes_between(least: str, most: str, factor: int) -> tuple[int, ...]:
    """Return sizes in bytes from the smallest to the largest, each `factor` times the one before."""
    first, last = parse_size_option("--minbytes", least), parse_size_option("--maxbytes", most)
    if first > last:
        raise option_error("--maxbytes", most, f"at least {least}, as --minbytes")
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return tuple(found)


def guest_bytes(size_bytes: int, ranks: int | None, topology: Path | None, size_scale: str) -> int:
    """Return the memory of a guest in bytes: every rank's arrays, messages in flight, and the system."""
    ranks = rank_count(ranks, topology)
    factor = float(size_scale) if size_scale.replace(".", "", 1).isdigit() else 1.0
    return DEFAULT_MEMORY_BYTES + round(4 * ranks * size_bytes / max(1.0, factor)) + (ranks << 24)


def wants_guest(clock: str) -> bool:
    """Return whether a benchmark with this clock must be moved to a guest: false if it already runs in one."""
    return clock == "virtual" and not clock_here()


def benchmark_guest(
    needed_bytes: int, memory: str | None, seed: int, stall_timeout: str, written: Sequence[Path | None]
) -> GuestSettings:
    """Return the settings of a benchmark's guest.

    Args:
        needed_bytes: Memory of the guest in bytes, unless `memory` sets it.
        memory: The option --memory.
        seed: The guest's seed.
        stall_timeout: The option --stall-timeout.
        written: Files that the benchmark writes.

    Raises:
        ConfigError: If an option is wrong.
    """
    folders = sorted({file.resolve().parent for file in written if file is not None})
    return guest_settings(
        memory, "free", seed, stall_timeout, None, folders, default_memory_bytes=needed_bytes
    )


def congestion_control_for(asked: str | None, topology: Path | None) -> str | None:
    """Return the requested congestion control, or the default: cubic on a network, None (the kernel's) on loopback.

    On loopback the choice does not matter, and an unprivileged user may not be allowed to make one.
    """
    return asked or ("cubic" if topology else None)


def write_rows(path: Path, rows: Sequence[Row], run: BenchRun) -> None:
    """Write the rows as JSON."""
    document: dict[str, Any] = {"schema": SCHEMA, "ranks": run.ranks, "scale": asdict(run.scale)}
    keys = [column.key for column in COLUMNS if column.key]
    document["rows"] = [asdict(row) | {key: getattr(row, key) for key in keys} for row in rows]
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_tuning_table(rows: Sequence[Row], run: BenchRun, path: Path) -> TuningTable:
    """Write the fastest algorithm for each size to a tuning table, and keep the table's other collectives."""
    buildings = len({host.building for host in run.hosts}) or 1
    times: dict[int, dict[str, float]] = {}
    for row in rows:
        times.setdefault(row.choice_bytes, {})[row.algorithm] = row.time_s
    table = TuningTable.fastest({(rows[0].collective, run.ranks, buildings): times})
    kept = tuning_of(path, "command line", "--tune").entries if path.exists() else ()
    others = tuple(entry for entry in kept if entry.collective != rows[0].collective)
    TuningTable((*others, *table.entries)).write(path)
    return table


def _named(option: str, value: str, known: Registry[Any], *more: str) -> str:
    name: str = resolve_file_names(value, Path.cwd())
    if known.expected(name) is not None:
        expected = known.expected(name) if OWN_FILE.fullmatch(name) else did_you_mean(value, [*more, *known])
        raise option_error(option, value, str(expected))
    known.find(name)
    return name


STARTUP_METHODS = {
    "baseline": BASELINE,
    "ring": replace(BASELINE, bootstrap=RING),
    "by_ranks": replace(BASELINE, by_pairs=False),
    "reuse": replace(BASELINE, reuses=True),
    "lazy": replace(BASELINE, eager=False),
    "scalable": SCALABLE,
}
"""Start-up methods by name: the baseline, each of four improvements alone, and all of them."""
COSTS = {"published": PUBLISHED, "none": SoftwareCosts(0.0, 0.0)}
"""Software costs by name."""
MOST_RANKS = 8192
"""Limit on ranks, each of which is a thread with its sockets."""


def bootstrap_trials(ranks: str, way: str, groups: str, costs: str, clock: str) -> list[BootstrapOptions]:
    """Return one trial for each number of ranks and start-up method; raise ConfigError if an option is wrong."""
    check_word("--clock", clock, CLOCKS)
    check_word("--costs", costs, COSTS)
    names = list(STARTUP_METHODS) if way == "all" else way.split(",")
    for name in names:
        check_word("--way", name, STARTUP_METHODS)
    dimensions = parse_dimensions(groups)
    found = []
    for word in ranks.split(","):
        count = int(word) if word.isascii() and word.isdigit() else 0
        if not 2 <= count <= MOST_RANKS:
            raise option_error("--ranks", word, f"2 to {MOST_RANKS}")
        product = math.prod(size for _, size in dimensions)
        if count % product:
            raise option_error("--ranks", word, f"a multiple of the {product} that --groups make")
        for name in names:
            if STARTUP_METHODS[name].eager and count > MOST_EAGER:
                expected = (
                    f"lazy or scalable beyond {MOST_EAGER} ranks, as all others connect all pairs of ranks"
                )
                raise option_error("--way", f"{name} with {count} ranks", expected)
            found.append(BootstrapOptions(count, dimensions, STARTUP_METHODS[name], COSTS[costs]))
    return found


def parse_dimensions(groups: str) -> tuple[tuple[str, int], ...]:
    """Parse NAME=SIZE,NAME=SIZE; raise ConfigError for anything else."""
    if groups in ("", "none"):
        return ()
    found = []
    for word in groups.split(","):
        name, _, size = word.partition("=")
        if not name or not size.isascii() or not size.isdigit() or int(size) < 1:
            raise option_error("--groups", word, "NAME=SIZE, such as tensor=8")
        found.append((name, int(size)))
    return tuple(found)


def guest_bytes_for(tries: Sequence[BootstrapOptions]) -> int:
    """Return the memory in bytes of a guest that is large enough for all trials."""
    return DEFAULT_MEMORY_BYTES + max(one.ranks * one.rank_bytes for one in tries)


def connection_buffers_bytes() -> int:
    """Return the bytes of a connection's staging buffers with the preset `nccl`."""
    staging = preset_transport("nccl").staging
    return staging.chunk_bytes * staging.slots
