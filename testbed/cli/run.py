"""The command `run`: execute a scenario and report its validated results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.console import warn_unused_inputs
from testbed.cli.experiments import run as experiment
from testbed.cli.experiments.run import open_executor
from testbed.cli.options import (
    RUN_CLOCK,
    WORKERS,
    DatapathOption,
    EngineOption,
    JobsOption,
    JsonOption,
    OutputOption,
    OverridesOption,
    PackingOption,
    SchedulerOption,
    WorkersOption,
)
from testbed.cli.run_output import EXIT_UNTRUSTED, print_result, show_progress
from testbed.cli.virtual import DEFAULT_STALL_TIMEOUT, CpuTimeOption, MemoryOption, StallOption
from testbed.cli.watch import shown
from testbed.measure.execution.run import Request
from testbed.measure.fidelity.invariants import HOST_CHECKS
from testbed.measure.results.run_directory import default_path
from testbed.net.doctor.host_resources import describe_busy, find_busiest
from testbed.spec.scenario import load_scenario

BUSY = {check.name for check in HOST_CHECKS}


def run(
    scenario: Annotated[Path, typer.Argument(help="A scenario file.")],
    output: OutputOption = None,
    trials: Annotated[int | None, typer.Option(help="Measured steps per variant.")] = None,
    overrides: OverridesOption = None,
    clock: Annotated[
        str,
        typer.Option(
            help="real: this machine's clock. virtual: exact on any machine, however busy, and without root."
        ),
    ] = RUN_CLOCK,
    jobs: JobsOption = None,
    ranks_per_process: PackingOption = None,
    memory: MemoryOption = None,
    cpu_time: CpuTimeOption = "free",
    stall_timeout: StallOption = DEFAULT_STALL_TIMEOUT,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    machines: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME...",
            help="The machine of each building, reached by SSH; this machine by any of its names.",
        ),
    ] = None,
    engine: WorkersOption = WORKERS,
    scheduler: SchedulerOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Do not report untrusted results.")] = False,
    retry_dilated: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="MOST",
            help="If a run is untrusted, repeat it with doubled time dilation, up to MOST.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Show the run as a web page while it goes on, on this machine's loopback."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario: build, measure, validate, report. Exit status 3: the results are untrusted.

    The default is this machine's real clock, which needs root but no kernel build. (testbed.run, for notebooks, which
    rarely run as root, defaults to the virtual clock.)
    """
    assignments = [*(overrides or []), *([f"trials={trials}"] if trials is not None else [])]
    loaded = load_scenario(scenario, assignments)
    warn_unused_inputs(loaded)
    request = Request(
        loaded,
        output if output is not None else default_path(loaded.name),
        str(scenario),
        clock=clock,
        jobs=jobs,
        ranks_per_process=ranks_per_process,
        memory=memory,
        cpu_time=cpu_time,
        stall_timeout=stall_timeout,
        link_engine=link_engine,
        datapath=datapath,
        machines=machines,
    )
    console = Console(stderr=True, highlight=False)
    with shown(request.output, live, console):
        with open_executor(engine, scheduler, jobs) as workers, show_progress(console) as listener:
            request = replace(request, engine=workers)
            result = experiment.run(request, listener, strict=strict, most_dilation=retry_dilated)
        print_result(result, console, strict=strict, as_json=as_json)
    if result.status == "untrusted":
        if (
            clock == "real"
            and BUSY & set(experiment.failed_invariants(result))
            and (words := describe_busy(find_busiest()))
        ):
            console.print(words, markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_UNTRUSTED)
