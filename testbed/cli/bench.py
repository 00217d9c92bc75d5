"""The command `bench`: time a collective at many sizes, with nccl-tests' columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.console import print_rows
from testbed.cli.options import (
    AUTO_SCALE,
    RUN_CLOCK,
    SEED,
    DatapathOption,
    EngineOption,
    JsonFileOption,
    PackingOption,
    PolicyOption,
    SeedOption,
    SizeScaleOption,
    TopologyOption,
)
from testbed.cli.virtual import (
    DEFAULT_STALL_TIMEOUT,
    MemoryOption,
    StallOption,
    rerun_in_guest,
)
from testbed.comm.collectives import AUTO, COLLECTIVES, DTYPES, OPERATIONS
from testbed.measure.execution.benchmark_options import (
    USUAL_KIND,
    USUAL_PROTOCOL,
    benchmark_guest,
    check_bench_options,
    congestion_control_for,
    guest_bytes,
    parse_algorithms,
    parse_transport,
    resolve_collective,
    sizes_between,
    wants_guest,
    write_rows,
    write_tuning_table,
)
from testbed.measure.execution.collective_benchmark import COLUMNS, BenchOptions, BenchRun, Row
from testbed.measure.execution.network_setup import choose_network
from testbed.measure.execution.resources import parse_ranks_per_process
from testbed.plugins import registry
from testbed.spec.overrides import PRESETS
from testbed.spec.policy import DEFAULT_POLICY
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

    The last column is the share of what its most loaded link allows, without headers. Exit status 1 if any element was
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
