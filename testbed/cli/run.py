"""The command `run`: execute a scenario and report its validated results; `watch` shows a run as a web page."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from testbed.cli.console import EXIT_UNTRUSTED, print_result, show_progress, warn_unused_inputs
from testbed.cli.experiments import run as experiment
from testbed.cli.experiments.run import open_executor
from testbed.cli.options import (
    DEFAULT_STALL_TIMEOUT,
    RUN_CLOCK,
    WORKERS,
    CpuTimeOption,
    DatapathOption,
    EngineOption,
    JobsOption,
    JsonOption,
    MemoryOption,
    OutputOption,
    OverridesOption,
    PackingOption,
    ScenarioArgument,
    SchedulerOption,
    StallOption,
    TrialsOption,
    WorkersOption,
    assignments,
)
from testbed.measure.execution.run import Request
from testbed.measure.fidelity.invariants import HOST_CHECKS
from testbed.measure.results.run_directory import PARTIAL_SUFFIX, default_path
from testbed.net.doctor.host_resources import describe_busy, find_busiest
from testbed.spec.scenario import load_scenario

if TYPE_CHECKING:
    from testbed.show.live.server import LivePage


BUSY = {check.name for check in HOST_CHECKS}


def run(
    scenario: ScenarioArgument,
    output: OutputOption = None,
    trials: TrialsOption = None,
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
    changes = assignments(overrides, trials)
    loaded = load_scenario(scenario, changes)
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


PortOption = Annotated[
    int,
    typer.Option(
        "--port", min=0, max=65535, help="Port of the page, on this machine's loopback; 0: any free one."
    ),
]


def watch(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder that `testbed run` creates or has created."),
    ],
    port: PortOption = 0,
) -> None:
    """Show a run in the browser, during or after it: network, timeline and step times.

    The page is only served on this machine's loopback, at an address with a token. Ctrl-C ends it; the run continues.
    """
    folder = run.resolve()
    with _page(folder.with_name(folder.name.removesuffix(PARTIAL_SUFFIX)), port) as page:
        _tell(page)
        _wait()


@contextlib.contextmanager
def shown(folder: Path, asked: bool, console: Console) -> Iterator[None]:
    """Serve the page of the run in `folder` within the block, if `asked`.

    At a terminal the page stays until Ctrl-C after a successful run.
    """
    if not asked:
        yield
        return
    with _page(folder, expected=True) as page:
        _tell(page)
        yield
        if sys.stdin.isatty():
            console.print("The page stays until Ctrl-C.")
            _wait()
        else:
            console.print(f"To see the page again: testbed watch {folder}", soft_wrap=True, markup=False)


def _page(folder: Path, port: int = 0, *, expected: bool = False) -> LivePage:
    # imported late, since most runs do not need the page
    from testbed.show.live.server import LivePage  # noqa: PLC0415

    return LivePage(folder, port, expected=expected)


def _tell(page: LivePage) -> None:
    Console(stderr=True, highlight=False).print(f"Page: {page.address}", soft_wrap=True, markup=False)


def _wait() -> None:
    """Wait for Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
