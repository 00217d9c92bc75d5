"""The command `bench`: one collective at many sizes, in nccl-tests' columns."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from testbed.cli.fabric import DatapathOption, EngineOption
from testbed.cli.options import POLICY_HELP
from testbed.cli.virtual import (
    DEFAULT_STALL_TIMEOUT,
    MemoryOption,
    StallOption,
    err,
    out,
)
from testbed.collectives import ALGORITHMS, AUTO, DTYPES, OPERATIONS, TuningTable
from testbed.config import ConfigError, Problem, TransportSpec, load_topology
from testbed.config.transport import KINDS, PROTOCOLS
from testbed.config.units import parse_size
from testbed.errors import did_you_mean
from testbed.job.tuning import tuning_of
from testbed.ranks.bench import COLLECTIVES, algorithms_of
from testbed.running.bench_run import BenchOptions, BenchRun, Row
from testbed.running.choosing import choose_network, guest_settings
from testbed.virtual import Guest, clock_here, find_image
from testbed.virtual.guest import DEFAULT_MEMORY_BYTES

HEADINGS = (
    ("#", "size", "count", "type", "redop", "algorithm", "time", "algbw", "busbw", "#wrong", "of limit"),
    ("#", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(%)"),
)
WIDTHS = (1, 12, 12, 9, 8, 19, 11, 9, 9, 7, 9)


def add_bench_command(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(bench)


def bench(
    collective: Annotated[str, typer.Argument(help=f"One of {', '.join(COLLECTIVES)}.")],
    least: Annotated[str, typer.Option("--minbytes", "-b", help="Smallest size.")] = "4K",
    most: Annotated[str, typer.Option("--maxbytes", "-e", help="Largest size.")] = "64M",
    factor: Annotated[int, typer.Option("--stepfactor", "-f", min=2, help="From one size to the next.")] = 2,
    iterations: Annotated[int, typer.Option("--iters", "-n", min=1, help="Timed repetitions of each.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup-iters", "-w", min=0, help="Repetitions before.")] = 5,
    dtype: Annotated[str, typer.Option("--datatype", "-d", help=", ".join(DTYPES))] = "float32",
    op: Annotated[str, typer.Option("--op", "-o", help=", ".join(OPERATIONS))] = "sum",
    topology: Annotated[
        Path | None,
        typer.Option("--topology", "-t", help="A topology file [default: this machine's loopback]."),
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", help="auto, one by name, several with commas between, or all.")
    ] = AUTO,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="How many [default: one per host; 4 on loopback].")
    ] = None,
    transport: Annotated[str, typer.Option(help=", ".join(KINDS))] = "tcp",
    protocol: Annotated[str, typer.Option(help=", ".join(PROTOCOLS))] = "eager",
    congestion_control: Annotated[
        str | None, typer.Option(help="Of TCP [default: cubic; on loopback the kernel's own].")
    ] = None,
    policy: Annotated[str, typer.Option(help=POLICY_HELP)] = "ecmp",
    json_file: Annotated[Path | None, typer.Option("--json-file", "-J", help="Write rows as JSON.")] = None,
    tune: Annotated[
        Path | None,
        typer.Option(help="Write the quickest algorithm of each size to this table, for auto to go by."),
    ] = None,
    tuning: Annotated[Path | None, typer.Option(help="A table that auto goes by.")] = None,
    clock: Annotated[str, typer.Option(help="real or virtual.")] = "real",
    size_scale: Annotated[
        str, typer.Option(help="Divide rates and sizes by this; auto: the smallest that this host carries.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 1,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    memory: MemoryOption = None,
    stall_timeout: StallOption = DEFAULT_STALL_TIMEOUT,
) -> None:
    """Time a collective at many sizes, as nccl-tests do: time per call, bandwidths, wrong elements.

    The last column is how near it comes to what its most loaded link allows, headers taken off. Exit status 1 when any
    element was wrong.
    """
    _word("COLLECTIVE", collective, COLLECTIVES)
    _word("--datatype", dtype, DTYPES)
    _word("--op", op, tuple(OPERATIONS))
    _word("--transport", transport, KINDS)
    _word("--protocol", protocol, PROTOCOLS)
    _word("--clock", clock, ("real", "virtual"))
    if tune is not None and collective not in ALGORITHMS:
        expected = f"a collective with several algorithms: {', '.join(ALGORITHMS)}"
        raise ConfigError([Problem("command line", None, "--tune", collective, expected)])
    algorithms = _algorithms(collective, algorithm, tune is not None)
    sizes = _sizes(least, most, factor)
    if clock == "virtual" and not clock_here():
        hosts = len(load_topology(topology).resolve().hosts) if topology else 4
        needed = _guest_bytes(sizes[-1], ranks or hosts, size_scale)
        _in_guest(memory, needed, stall_timeout, seed, [path for path in (json_file, tune) if path])
    options = BenchOptions(
        collective,
        sizes,
        algorithms,
        dtype,
        op,
        iterations,
        warmup,
        transport=TransportSpec(kind=transport, protocol=protocol),
        # an ordinary user may not choose any, and on loopback it does not matter
        congestion_control=congestion_control or ("cubic" if topology else None),
        tuning=tuning_of(tuning, "command line", "--tuning"),
        seed=seed,
    )
    console = Console(stderr=True, highlight=False)
    network, count = choose_network(topology, policy, link_engine, datapath, size_scale, ranks)
    run = BenchRun(options, network, count, lambda line: console.print(f"  {line}"))
    where = topology.name if topology else "loopback"
    scale = "" if run.scale.is_one else f"; {run.scale}"
    print(
        f"# {collective}: {count} ranks, {where}, {transport}, {iterations} iterations after {warmup}{scale}"
    )
    for line in HEADINGS:
        print(_line(line))
    rows = []
    for row in run.rows():
        rows.append(row)
        print(_line(_cells(row)), flush=True)
    _finish(rows, json_file, tune, run)
    if any(row.wrong for row in rows):
        raise typer.Exit(1)


def _finish(rows: list[Row], json_file: Path | None, tune: Path | None, run: BenchRun) -> None:
    mean = sum(row.busbw for row in rows) / len(rows)
    print(f"# average busbw: {mean / 1e9:.4g} GB/s; wrong elements: {sum(row.wrong for row in rows)}")
    if json_file is not None:
        document = {"schema": 1, "ranks": run.ranks, "scale": asdict(run.scale)}
        document["rows"] = [{**asdict(row), "of_limit": row.of_limit} for row in rows]
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    if tune is not None:
        buildings = len(run.topology.buildings) if run.topology else 1
        times: dict[int, dict[str, float]] = {}
        for row in rows:
            times.setdefault(row.choice_bytes, {})[row.algorithm] = row.time_s
        table = TuningTable.fastest({(rows[0].collective, run.ranks, buildings): times})
        kept = tuning_of(tune, "command line", "--tune").entries if tune.exists() else ()
        others = tuple(entry for entry in kept if entry.collective != rows[0].collective)
        TuningTable((*others, *table.entries)).write(tune)
        for entry in table.entries:
            print(f"# up to {entry.max_bytes or 'any size'}: {entry.algorithm}")


def _guest_bytes(size_bytes: int, ranks: int, size_scale: str) -> int:
    """Memory for a guest: arrays of every rank, what is under way between them, and the system."""
    factor = float(size_scale) if size_scale.replace(".", "", 1).isdigit() else 1.0
    return DEFAULT_MEMORY_BYTES + round(4 * ranks * size_bytes / max(1.0, factor)) + (ranks << 24)


def _in_guest(
    memory: str | None, needed_bytes: int, stall_timeout: str, seed: int, files: list[Path]
) -> None:
    """The same command in a guest, where it finds the clock that it wants; does not return."""
    folders = sorted({file.resolve().parent for file in files})
    settings = guest_settings(
        memory, "free", seed, stall_timeout, None, folders, default_memory_bytes=needed_bytes
    )
    guest = Guest(find_image(), settings)
    command = [sys.executable, "-c", "from testbed.cli import main; main()", *sys.argv[1:]]
    ended = guest.run(command, Path.cwd(), {"PYTHONUNBUFFERED": "1"}, out, err)
    raise typer.Exit(ended.status if ended.status >= 0 else 128 - ended.status)


def _algorithms(collective: str, asked: str, tuning: bool) -> tuple[str, ...]:
    known = algorithms_of(collective)
    if asked == "all" or (tuning and asked == AUTO):
        return tuple(name for name in known if name != AUTO) or known
    if asked == AUTO and AUTO not in known:
        return known[:1]
    names = tuple(asked.split(","))
    for name in names:
        _word("--algorithm", name, known)
    return names


def _sizes(least: str, most: str, factor: int) -> tuple[int, ...]:
    first, last = _size("--minbytes", least), _size("--maxbytes", most)
    if first > last:
        raise ConfigError(
            [Problem("command line", None, "--maxbytes", most, f"at least {least}, as --minbytes")]
        )
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return tuple(found)


def _size(option: str, text: str) -> int:
    """As nccl-tests write sizes: 64M is 64 MiB; or with a unit."""
    try:
        if text[-1:] in "KMG" and text[:-1].isdigit():
            size = int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]
        else:
            size = int(text) if text.isdigit() else parse_size(text)
    except ValueError as error:
        raise ConfigError([Problem("command line", None, option, repr(text), str(error))]) from None
    if size < 1:
        raise ConfigError([Problem("command line", None, option, repr(text), "a size above 0")])
    return size


def _word(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError([Problem("command line", None, option, value, did_you_mean(value, known))])


def _cells(row: Row) -> tuple[Any, ...]:
    of_limit = row.of_limit
    redop = row.op if row.collective in ("all_reduce", "reduce_scatter") else "none"
    name = row.algorithm if row.algorithm != AUTO else f"({row.chosen})"
    return (
        " ",
        row.size_bytes,
        row.count,
        row.dtype,
        redop,
        name,
        f"{row.time_s * 1e6:.2f}" if row.time_s < 0.1 else f"{row.time_s * 1e6:.0f}",
        f"{row.algbw / 1e9:.4g}",
        f"{row.busbw / 1e9:.4g}",
        row.wrong,
        "n/a" if of_limit is None else f"{of_limit:.1%}".removesuffix("%"),
    )


def _line(cells: tuple[Any, ...]) -> str:
    return " ".join(str(cell).rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()
