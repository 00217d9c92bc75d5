"""Benchmarks: `bench` times a collective at many sizes, with nccl-tests' columns; `bootstrap` times a job's start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.console import print_rows
from testbed.cli.options import (
    AUTO_SCALE,
    DEFAULT_STALL_TIMEOUT,
    MODEL_CLOCK,
    RUN_CLOCK,
    SEED,
    DatapathOption,
    EngineOption,
    JsonFileOption,
    MemoryOption,
    PackingOption,
    PolicyOption,
    SeedOption,
    SizeScaleOption,
    StallOption,
    TopologyOption,
)
from testbed.cli.programs import rerun_in_guest
from testbed.comm.collectives import AUTO, COLLECTIVES, DTYPES, OPERATIONS
from testbed.measure.execution.benchmark_options import (
    STARTUP_METHODS,
    USUAL_KIND,
    USUAL_PROTOCOL,
    benchmark_guest,
    bootstrap_trials,
    check_bench_options,
    congestion_control_for,
    connection_buffers_bytes,
    guest_bytes,
    guest_bytes_for,
    parse_algorithms,
    parse_transport,
    resolve_collective,
    sizes_between,
    wants_guest,
    write_rows,
    write_tuning_table,
)
from testbed.measure.execution.bootstrap_benchmark import BootstrapRow, BootstrapRun
from testbed.measure.execution.collective_benchmark import COLUMNS, BenchOptions, BenchRun, Row
from testbed.measure.execution.network_setup import choose_network, choose_network_without_ranks
from testbed.measure.execution.resources import parse_ranks_per_process
from testbed.measure.result_model import Column
from testbed.plugins import registry
from testbed.prediction.startup_cost import growth_exponent
from testbed.spec.overrides import PRESETS
from testbed.spec.policy import DEFAULT_POLICY
from testbed.spec.units import format_size
from testbed.workload.job.tuning_choice import tuning_of


def bench(
    collective: Annotated[str, typer.Argument(help=f"One of {', '.join(COLLECTIVES)}, or FILE.py:NAME.")],
    least: Annotated[str, typer.Option("--minbytes", "-b", help="Smallest size.")] = "4K",
    most: Annotated[str, typer.Option("--maxbytes", "-e", help="Largest size.")] = "64M",
    factor: Annotated[
        int, typer.Option("--stepfactor", "-f", min=2, help="Factor between successive sizes.")
    ] = 2,
    iterations: Annotated[int, typer.Option("--iters", "-n", min=1, help="Timed iterations per size.")] = 20,
    warmup: Annotated[
        int, typer.Option("--warmup-iters", "-w", min=0, help="Warm-up iterations per size.")
    ] = 5,
    dtype: Annotated[str, typer.Option("--datatype", "-d", help=", ".join(DTYPES))] = "float32",
    op: Annotated[str, typer.Option("--op", "-o", help=", ".join(OPERATIONS))] = "sum",
    topology: TopologyOption = None,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            "-a",
            help="auto, a name or FILE.py:NAME, several separated by commas, or all.",
        ),
    ] = AUTO,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="Number of ranks (default: one per host; 4 on loopback).")
    ] = None,
    transport: Annotated[str, typer.Option(help=", ".join(registry("transports")))] = USUAL_KIND,
    protocol: Annotated[str, typer.Option(help=", ".join(registry("protocols")))] = USUAL_PROTOCOL,
    preset: Annotated[
        str | None,
        typer.Option(help=f"Transport, protocol and what they cost in one: {', '.join(PRESETS)}."),
    ] = None,
    congestion_control: Annotated[
        str | None,
        typer.Option(help="TCP congestion control (default: cubic; on loopback the kernel's own)."),
    ] = None,
    policy: PolicyOption = DEFAULT_POLICY,
    json_file: JsonFileOption = None,
    tune: Annotated[
        Path | None,
        typer.Option(help="Write the fastest algorithm for each size to this table, for algorithm auto."),
    ] = None,
    tuning: Annotated[Path | None, typer.Option(help="Tuning table for algorithm auto.")] = None,
    clock: Annotated[str, typer.Option(help="real or virtual.")] = RUN_CLOCK,
    size_scale: SizeScaleOption = AUTO_SCALE,
    seed: SeedOption = SEED,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    packing: PackingOption = None,
    memory: MemoryOption = None,
    stall_timeout: StallOption = DEFAULT_STALL_TIMEOUT,
) -> None:
    """Benchmark a collective at many sizes, like nccl-tests: time per call, bandwidths, wrong elements.

    The last column is the achieved share of the most loaded link's payload rate. Exit status 1 if any element was
    wrong.
    """
    collective = resolve_collective(collective)
    check_bench_options(dtype, op, transport, protocol, clock)
    spec = parse_transport(transport, protocol, preset)
    algorithms = parse_algorithms(collective, algorithm, tune is not None)
    sizes = sizes_between(least, most, factor)
    if wants_guest(clock):
        needed = guest_bytes(sizes[-1], ranks, topology, size_scale)
        rerun_in_guest(benchmark_guest(needed, memory, seed, stall_timeout, [json_file, tune]))
    options = BenchOptions(
        collective,
        sizes,
        algorithms,
        dtype,
        op,
        iterations,
        warmup,
        transport=spec,
        congestion_control=congestion_control_for(congestion_control, topology),
        tuning=tuning_of(tuning, "command line", "--tuning"),
        seed=seed,
    )
    console = Console(stderr=True, highlight=False)
    network, count = choose_network(topology, policy, link_engine, datapath, size_scale, ranks)
    options = replace(options, ranks_per_process=parse_ranks_per_process(packing, count))
    run = BenchRun(options, network, count, lambda line: console.print(f"  {line}"))
    where = topology.name if topology else "loopback"
    scale = "" if run.scale.is_one else f"; {run.scale}"
    print(
        f"# {collective}: {count} ranks, {where}, {preset or transport}, {iterations} iterations after {warmup}{scale}"
    )
    rows = print_rows(run.rows(), COLUMNS)
    _finish(rows, json_file, tune, run)
    if any(row.wrong for row in rows):
        raise typer.Exit(1)


def _finish(rows: list[Row], json_file: Path | None, tune: Path | None, run: BenchRun) -> None:
    mean = sum(row.busbw for row in rows) / len(rows)
    print(f"# average busbw: {mean / 1e9:.4g} GB/s; wrong elements: {sum(row.wrong for row in rows)}")
    if json_file is not None:
        write_rows(json_file, rows, run)
    if tune is not None:
        for entry in write_tuning_table(rows, run, tune).entries:
            print(f"# up to {entry.max_bytes or 'any size'}: {entry.algorithm}")


def _size_text(size_bytes: float) -> str:
    return format_size(round(float(f"{size_bytes:.3g}")))


def _part(name: str) -> Column[BootstrapRow]:
    width = max(9, len(name) + 1)
    return Column(name, "(s)", width, lambda row: f"{row.parts.get(name, 0.0):.3f}")


STARTUP_COLUMNS: tuple[Column[BootstrapRow], ...] = (
    Column("ranks", "", 7, lambda row: row.ranks),
    Column(
        "way", "", 10, lambda row: next((name for name, way in STARTUP_METHODS.items() if way == row.way), "")
    ),
    Column("time", "(s)", 9, lambda row: f"{row.time_s:.3f}"),
    *map(_part, ("finding", "topology", "connecting")),
    Column("sockets", "of a rank", 10, lambda row: row.sockets),
    Column("memory", "of a rank", 10, lambda row: _size_text(row.memory_bytes)),
    Column("buffers", "of a rank", 10, lambda row: _size_text(row.sockets * connection_buffers_bytes())),
    Column("rank 0", "sends", 10, lambda row: _size_text(row.bytes_sent)),
    Column("model", "(s)", 9, lambda row: f"{row.predicted.seconds:.3f}"),
)


def bootstrap(
    topology: Annotated[Path, typer.Argument(help="A topology file; each host has several ranks.")],
    ranks: Annotated[
        str, typer.Option("--ranks", help="Total number of ranks; several separated by commas.")
    ] = "64,256",
    way: Annotated[
        str,
        typer.Option(help=f"{', '.join(STARTUP_METHODS)}, with commas between, or all."),
    ] = "baseline,scalable",
    groups: Annotated[
        str,
        typer.Option(
            help="Sizes of each rank's groups; the remaining dimension is replicas. none: no groups."
        ),
    ] = "tensor=8,pipeline=4",
    costs: Annotated[
        str, typer.Option(help="Software costs: published (fitted to figure 21 of the NCCLX paper), or none.")
    ] = "published",
    json_file: JsonFileOption = None,
    clock: Annotated[str, typer.Option(help="real or virtual.")] = MODEL_CLOCK,
    seed: SeedOption = SEED,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    memory: MemoryOption = None,
    stall_timeout: StallOption = DEFAULT_STALL_TIMEOUT,
) -> None:
    """Benchmark the bootstrap of a large job: rendezvous, group creation, connections; no data is sent.

    The total is the time until the last rank is done; its parts are means over ranks. Buffers are those of protocol
    `staged` for each connection.
    """
    tries = bootstrap_trials(ranks, way, groups, costs, clock)
    if wants_guest(clock):
        needed = guest_bytes_for(tries)
        rerun_in_guest(benchmark_guest(needed, memory, seed, stall_timeout, [json_file]))
    console = Console(stderr=True, highlight=False)
    network = choose_network_without_ranks(topology, "shortest", link_engine, datapath)
    run = BootstrapRun(network, seed, lambda line: console.print(f"  {line}"))
    kinds = ", ".join(f"{kind.name} {kind.size}" for kind in tries[-1].kinds[1:]) or "none"
    print(f"# {topology.name}: {len(run.topology.hosts)} hosts, groups of the last: {kinds}; costs: {costs}")
    rows = print_rows(run.rows(tries), STARTUP_COLUMNS)
    for words in _growth(rows):
        print(words)
    if json_file is not None:
        json_file.write_text(
            json.dumps({"schema": 1, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
        )


def _growth(rows: Sequence[BootstrapRow]) -> list[str]:
    """Describe how time grows with the number of ranks, for each method that was run with several sizes."""
    found = []
    for name, way in STARTUP_METHODS.items():
        points = [(row.ranks, row.time_s) for row in rows if row.way == way]
        if len(points) > 1:
            own = [(row.ranks, row.predicted.seconds) for row in rows if row.way == way]
            found.append(
                f"# {name}: time grows as n^{growth_exponent(points):.2f}, by the model n^{growth_exponent(own):.2f}"
            )
    return found
