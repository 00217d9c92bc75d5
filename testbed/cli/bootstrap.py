"""The command `bootstrap`: time a job's start, from ranks knowing one address to all groups being connected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.console import print_rows
from testbed.cli.options import MODEL_CLOCK, SEED, DatapathOption, EngineOption, JsonFileOption, SeedOption
from testbed.cli.virtual import DEFAULT_STALL_TIMEOUT, MemoryOption, StallOption, rerun_in_guest
from testbed.measure.execution.benchmark_options import (
    STARTUP_METHODS,
    benchmark_guest,
    bootstrap_trials,
    connection_buffers_bytes,
    guest_bytes_for,
    wants_guest,
)
from testbed.measure.execution.bootstrap_benchmark import BootstrapRow, BootstrapRun
from testbed.measure.execution.network_setup import choose_network_without_ranks
from testbed.measure.result_model import Column
from testbed.prediction.startup_cost import growth_exponent
from testbed.spec.units import format_size


def _size_text(size_bytes: float) -> str:
    return format_size(round(float(f"{size_bytes:.3g}")))


def _part(name: str) -> Column[BootstrapRow]:
    width = max(9, len(name) + 1)
    return Column(name, "(s)", width, lambda row: f"{row.parts.get(name, 0.0):.3f}")


COLUMNS: tuple[Column[BootstrapRow], ...] = (
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
    rows = print_rows(run.rows(tries), COLUMNS)
    for words in _growth(rows):
        print(words)
    if json_file is not None:
        json_file.write_text(
            json.dumps({"schema": 1, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
        )


def _growth(rows: Sequence[BootstrapRow]) -> list[str]:
    """Describe how time grows with the number of ranks, for each method with several sizes."""
    found = []
    for name, way in STARTUP_METHODS.items():
        points = [(row.ranks, row.time_s) for row in rows if row.way == way]
        if len(points) > 1:
            own = [(row.ranks, row.predicted.seconds) for row in rows if row.way == way]
            found.append(
                f"# {name}: time grows as n^{growth_exponent(points):.2f}, by the model n^{growth_exponent(own):.2f}"
            )
    return found
