"""Options of the collective and bootstrap benchmarks, parsed and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from testbed.clock import clock_here
from testbed.comm.collectives import AUTO, COLLECTIVES, DTYPES, OPERATIONS, TuningTable, collective_of
from testbed.comm.transport import PROTOCOLS, TRANSPORTS
from testbed.errors import did_you_mean
from testbed.measure.execution.bootstrap_benchmark import MOST_EAGER, BootstrapOptions
from testbed.measure.execution.collective_benchmark import BenchRun, Row
from testbed.measure.execution.network_setup import LOOPBACK_RANKS, guest_settings, size_of
from testbed.net.virtual.guest import DEFAULT_MEMORY_BYTES, GuestSettings
from testbed.plugins import OWN_FILE, Registry, resolve_file_names
from testbed.prediction.startup_cost import BASELINE, PUBLISHED, RING, SCALABLE, SoftwareCosts
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.overrides import PRESETS, preset_transport
from testbed.spec.topology import load_topology
from testbed.spec.transport import TransportSpec
from testbed.workload.job.tuning_choice import tuning_of

COMMAND_LINE = "command line"
CLOCKS = ("real", "virtual")
SCHEMA = 1
USUAL_KIND, USUAL_PROTOCOL = "tcp", "eager"


def check_bench_options(dtype: str, op: str, transport: str, protocol: str, clock: str) -> None:
    """ConfigError names the first option whose value is none of those that there are."""
    for option, value, known in (
        ("--datatype", dtype, DTYPES),
        ("--op", op, tuple(OPERATIONS)),
        ("--clock", clock, CLOCKS),
    ):
        if value not in known:
            raise _wrong(option, value, did_you_mean(value, known))
    for option, value, own in (("--transport", transport, TRANSPORTS), ("--protocol", protocol, PROTOCOLS)):
        if (expected := own.expected(value)) is not None:
            raise _wrong(option, value, expected)


def transport_asked(kind: str, protocol: str, preset: str | None) -> TransportSpec:
    """Of words that have been checked, or all that a preset says of it. ConfigError."""
    if preset is None:
        return TransportSpec(kind=kind, protocol=protocol)
    if preset not in PRESETS:
        raise _wrong("--preset", preset, did_you_mean(preset, PRESETS))
    if (kind, protocol) != (USUAL_KIND, USUAL_PROTOCOL):
        given = f"{preset} and --transport {kind} --protocol {protocol}"
        raise _wrong("--preset", given, "a preset, which says both, or these")
    return preset_transport(preset)


def collective_named(name: str) -> str:
    """As it is found from any folder. ConfigError, PluginError where a file does not load."""
    return _named("COLLECTIVE", name, COLLECTIVES)


def parse_algorithms(collective: str, asked: str, tune: bool = False) -> tuple[str, ...]:
    """Of "auto", one name, several with commas between, or "all"; a tuning table needs all, or those that are named.

    ConfigError, PluginError where a file does not load.
    """
    known = collective_of(collective).algorithms
    if tune and len(known) < 2 and not OWN_FILE.fullmatch(asked):
        several = [name for name, found in COLLECTIVES.items() if len(found.algorithms) > 1]
        raise _wrong("--tune", collective, f"a collective with several algorithms: {', '.join(several)}")
    if asked == "all" or (tune and asked == AUTO):
        return tuple(known)
    if asked == AUTO and collective_of(collective).uneven:
        return (collective_of(collective).automatic(0, ()),)  # no table is kept of these
    return tuple(
        name if name == AUTO else _named("--algorithm", name, known, AUTO) for name in asked.split(",")
    )


def sizes_between(least: str, most: str, factor: int) -> tuple[int, ...]:
    """Bytes from the smallest to the largest size, each `factor` times the one before. ConfigError."""
    first, last = size_of("--minbytes", least), size_of("--maxbytes", most)
    if first > last:
        raise _wrong("--maxbytes", most, f"at least {least}, as --minbytes")
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return tuple(found)


def guest_bytes(size_bytes: int, ranks: int | None, topology: Path | None, size_scale: str) -> int:
    """Memory for a guest: arrays of every rank, what is under way between them, and the system."""
    if ranks is None:
        ranks = len(load_topology(topology).resolve().hosts) if topology else LOOPBACK_RANKS
    factor = float(size_scale) if size_scale.replace(".", "", 1).isdigit() else 1.0
    return DEFAULT_MEMORY_BYTES + round(4 * ranks * size_bytes / max(1.0, factor)) + (ranks << 24)


def wants_guest(clock: str) -> bool:
    """Whether a benchmark by this clock has to go on in a guest: not where it is in one already."""
    return clock == "virtual" and not clock_here()


def guest_for(
    needed_bytes: int, memory: str | None, seed: int, stall_timeout: str, written: Sequence[Path | None]
) -> GuestSettings:
    """The guest of a benchmark. needed_bytes: its memory unless `memory` says another; written: files that it makes.

    ConfigError names the option that is wrong.
    """
    folders = sorted({file.resolve().parent for file in written if file is not None})
    return guest_settings(
        memory, "free", seed, stall_timeout, None, folders, default_memory_bytes=needed_bytes
    )


def congestion_control_for(asked: str | None, topology: Path | None) -> str | None:
    """What was asked for; else cubic on a network, and on loopback, where it does not matter, the kernel's own (None).

    An ordinary user may choose none.
    """
    return asked or ("cubic" if topology else None)


def document_of(rows: Sequence[Row], run: BenchRun) -> Mapping[str, Any]:
    """What `--json-file` holds."""
    document: dict[str, Any] = {"schema": SCHEMA, "ranks": run.ranks, "scale": asdict(run.scale)}
    document["rows"] = [{**asdict(row), "of_limit": row.of_limit} for row in rows]
    return document


def write_rows(path: Path, rows: Sequence[Row], run: BenchRun) -> None:
    """As JSON."""
    path.write_text(json.dumps(document_of(rows, run), indent=1) + "\n")


def write_tuning_table(rows: Sequence[Row], run: BenchRun, path: Path) -> TuningTable:
    """The quickest algorithm of each size, written to a table whose other collectives stay; ConfigError."""
    hosts = run.topology.hosts[: run.ranks] if run.topology else ()
    buildings = len({host.building for host in hosts}) or 1
    times: dict[int, dict[str, float]] = {}
    for row in rows:
        times.setdefault(row.choice_bytes, {})[row.algorithm] = row.time_s
    table = TuningTable.fastest({(rows[0].collective, run.ranks, buildings): times})
    kept = tuning_of(path, COMMAND_LINE, "--tune").entries if path.exists() else ()
    others = tuple(entry for entry in kept if entry.collective != rows[0].collective)
    TuningTable((*others, *table.entries)).write(path)
    return table


def _named(option: str, value: str, known: Registry[Any], *more: str) -> str:
    name: str = resolve_file_names(value, Path.cwd())
    if known.expected(name) is not None:
        expected = known.expected(name) if OWN_FILE.fullmatch(name) else did_you_mean(value, [*more, *known])
        raise _wrong(option, value, str(expected))
    known.find(name)
    return name


def _wrong(option: str, value: str, expected: str) -> ConfigError:
    return ConfigError([Problem(COMMAND_LINE, None, option, value, expected)])


WAYS = {
    "baseline": BASELINE,
    "ring": replace(BASELINE, bootstrap=RING),
    "by_ranks": replace(BASELINE, by_pairs=False),
    "reuse": replace(BASELINE, reuses=True),
    "lazy": replace(BASELINE, eager=False),
    "scalable": SCALABLE,
}
"""By name: as it was, each of the four remedies by itself, and all of them."""
COSTS = {"published": PUBLISHED, "none": SoftwareCosts(0.0, 0.0)}
"""What software takes, by name."""
MOST_RANKS = 8192
"""A thread each, and sockets."""


def bootstrap_trials(ranks: str, way: str, groups: str, costs: str, clock: str) -> list[BootstrapOptions]:
    """For each number of ranks every way. ConfigError names the option that is wrong."""
    if clock not in CLOCKS:
        raise _start_error("--clock", clock, did_you_mean(clock, CLOCKS))
    if costs not in COSTS:
        raise _start_error("--costs", costs, did_you_mean(costs, COSTS))
    names = list(WAYS) if way == "all" else way.split(",")
    for name in names:
        if name not in WAYS:
            raise _start_error("--way", name, did_you_mean(name, WAYS))
    dimensions = dimensions_of(groups)
    found = []
    for word in ranks.split(","):
        count = int(word) if word.isascii() and word.isdigit() else 0
        if not 2 <= count <= MOST_RANKS:
            raise _start_error("--ranks", word, f"2 to {MOST_RANKS}")
        product = math.prod(size for _, size in dimensions)
        if count % product:
            raise _start_error("--ranks", word, f"a multiple of the {product} that --groups make")
        for name in names:
            if WAYS[name].eager and count > MOST_EAGER:
                expected = f"lazy or scalable beyond {MOST_EAGER} ranks, as all others connect everybody to everybody"
                raise _start_error("--way", f"{name} with {count} ranks", expected)
            found.append(BootstrapOptions(count, dimensions, WAYS[name], COSTS[costs]))
    return found


def dimensions_of(groups: str) -> tuple[tuple[str, int], ...]:
    """From NAME=SIZE,NAME=SIZE. ConfigError."""
    if groups in ("", "none"):
        return ()
    found = []
    for word in groups.split(","):
        name, _, size = word.partition("=")
        if not name or not size.isascii() or not size.isdigit() or int(size) < 1:
            raise _start_error("--groups", word, "NAME=SIZE, such as tensor=8")
        found.append((name, int(size)))
    return tuple(found)


def guest_bytes_for(tries: Sequence[BootstrapOptions]) -> int:
    """Memory for a guest that carries the largest of these."""
    most = max(one.ranks * one.rank_bytes for one in tries)
    return DEFAULT_MEMORY_BYTES + most


def connection_buffers_bytes() -> int:
    """What a connection keeps of the window that copies go through, by the preset `nccl`."""
    staging = preset_transport("nccl").staging
    return staging.chunk_bytes * staging.slots


def _start_error(option: str, value: str, expected: str) -> ConfigError:
    return ConfigError([Problem(COMMAND_LINE, None, option, value, expected)])
