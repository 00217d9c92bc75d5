"""The command `run`: a scenario from file to judged figures."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from testbed.cli.fabric import DatapathOption, EngineOption
from testbed.cli.options import JsonOption, OverridesOption
from testbed.cli.scale import choose_guests, choose_scale, choose_stack, choose_virtual_scale
from testbed.cli.virtual import (
    DEFAULT_STALL_TIMEOUT,
    CpuTimeOption,
    MemoryOption,
    StallOption,
    guest_settings,
)
from testbed.config import ConfigError, Problem, Scenario, load_scenario
from testbed.config.units import format_size
from testbed.fidelity.capacity import Stack
from testbed.job.loads import Load
from testbed.model.dry_run import loads_of
from testbed.report import print_refusal, print_summary, write_report
from testbed.report.compare import failing
from testbed.results.directory import default_path, hand_over
from testbed.running.parted import PartedRun
from testbed.running.run import Progress as RunProgress
from testbed.running.run import Run
from testbed.running.virtual_run import VirtualRun
from testbed.scale import Scale
from testbed.virtual import find_image

EXIT_UNTRUSTED = 3
CLOCKS = ("real", "virtual")


JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Virtual clock: how many guests at once [default: one for each core, if memory allows]."
    ),
]


def add_run_commands(app: typer.Typer) -> None:
    """Register this module's commands."""
    app.command()(run)


def run(
    scenario: Annotated[Path, typer.Argument(help="A scenario file.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The run directory to make [default: runs/NAME-DATE-TIME]."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="How many measured steps of each variant.")] = None,
    overrides: OverridesOption = None,
    clock: Annotated[
        str,
        typer.Option(help="real: this machine's; virtual: exact, without root, whatever the machine does."),
    ] = "real",
    jobs: JobsOption = None,
    memory: MemoryOption = None,
    cpu_time: CpuTimeOption = "free",
    stall_timeout: StallOption = DEFAULT_STALL_TIMEOUT,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    machines: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME...",
            help="The machine of each building, reached through SSH; this one by any of its names.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Report no figures that are not to be trusted.")
    ] = False,
    retry_dilated: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="MOST",
            help="Repeat an untrusted run with its time stretched twice as far, up to so many times.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario: build, measure, judge, report. Exit status 3: the figures are not to be trusted."""
    _check_clock(clock)
    if retry_dilated and clock == "virtual":
        raise ConfigError(
            [Problem("command line", None, "--retry-dilated", "--clock virtual", "--clock real")]
        )
    if machines and clock == "virtual":
        raise ConfigError([Problem("command line", None, "--machines", "--clock virtual", "--clock real")])
    assignments = [*(overrides or []), *([f"trials={trials}"] if trials is not None else [])]
    loaded = load_scenario(scenario, assignments)
    target = output if output is not None else default_path(loaded.name)
    loads = loads_of(loaded, Scale())  # a plan that does not fit is refused before anything is built
    spread = machines_of(machines, loaded, loads.values())
    make: Callable[[RunProgress, Scale], Run | PartedRun | VirtualRun]
    if clock == "virtual":
        if link_engine not in (None, "netem") or datapath not in (None, "system"):
            asked = f"{link_engine or 'netem'} and {datapath or 'system'}"
            raise ConfigError([Problem("command line", None, "--clock virtual", asked, "netem and system")])
        image = find_image()
        rank_bytes = max(load.rank_bytes for load in loads.values())
        scale = choose_virtual_scale(loaded, rank_bytes)
        settings = guest_settings(memory, cpu_time, loaded.seed, stall_timeout, None, [])
        asked_bytes = settings.memory_bytes if memory else None
        guests, memory_bytes = choose_guests(loaded, scale, rank_bytes, jobs, asked_bytes)
        settings = replace(settings, memory_bytes=memory_bytes)
        parts = f"virtual clock, {guests} at once, {format_size(settings.memory_bytes)} each"

        def make(progress: RunProgress, scale: Scale) -> Run | PartedRun | VirtualRun:
            return VirtualRun(loaded, image, settings, scale, target, progress, guests)

    else:
        stack, scale = _choose_real(loaded, scenario, link_engine, datapath)
        parts = f"link engine {stack.link_engine}, datapath {stack.datapath}"

        def make(progress: RunProgress, scale: Scale) -> Run | PartedRun | VirtualRun:
            kind = Run if loaded.variants is None else PartedRun
            return kind(loaded, stack, scale, target, progress, spread)

    console = Console(stderr=True, highlight=False)
    console.print(
        f"{loaded.name}: {loaded.ranks} ranks, {', '.join(loaded.variant_names)}, policy {loaded.policy.label}; "
        f"{parts}" + ("" if scale.is_one else f"; {scale}")
    )
    summary = _execute(make, scale, console)
    while summary["status"] == "untrusted" and retry_dilated and scale.time_dilation * 2 <= retry_dilated:
        scale = replace(scale, time_dilation=scale.time_dilation * 2)
        reasons = sorted({entry["name"] for variant in summary["variants"] for entry in failing(variant)})
        console.print(f"untrusted ({', '.join(reasons)}): once more, {scale}")
        shutil.rmtree(target)
        summary = _execute(make, scale, console)
    _report(summary, target, console, strict=strict, as_json=as_json)
    if summary["status"] == "untrusted":
        raise typer.Exit(EXIT_UNTRUSTED)


def run_file(file: Path, target: Path, *, clock: str, jobs: int | None) -> dict[str, Any]:
    """As the command with no more said does it; returns the summary, which may be untrusted."""
    with contextlib.suppress(typer.Exit):
        run(file, output=target, clock=clock, jobs=jobs)
    summary: dict[str, Any] = json.loads((target / "summary.json").read_text())
    return summary


def check_here(scenario: Scenario, file: Path, clock: str) -> None:
    """Refuse early what a run would refuse: an unknown clock, no kernel for it, rates that this machine does not carry.

    ConfigError, NoKernelError, FabricError.
    """
    _check_clock(clock)
    if clock == "virtual":
        find_image()
    else:
        _choose_real(scenario, file, None, None)


def _check_clock(clock: str) -> None:
    if clock not in CLOCKS:
        raise ConfigError([Problem("command line", None, "--clock", clock, " or ".join(CLOCKS))])


def _choose_real(
    scenario: Scenario, file: Path, link_engine: str | None, datapath: str | None
) -> tuple[Stack, Scale]:
    stack = choose_stack(link_engine, datapath)
    size, dilation = scenario.scale.size_scale, scenario.scale.time_dilation
    return stack, choose_scale(scenario.topology.resolve, size, dilation, stack, scenario.ranks, str(file))


def machines_of(asked: str | None, scenario: Scenario, loads: Iterable[Load]) -> list[str]:
    """The names in `--machines`; ConfigError for what cannot be done on several machines. loads: of all variants."""
    if not asked:
        return []
    refused = {
        "events that stop a rank": any(
            event.action in ("host_pause", "rank_kill") for event in scenario.events
        ),
        "neighbours": bool(scenario.neighbours),
        "messages that wait for their receivers": any(load.plan.holds_receivers for load in loads),
    }
    if found := [what for what, there in refused.items() if there]:
        expected = f"a scenario without {' and '.join(found)}, or one machine"
        raise ConfigError([Problem("command line", None, "--machines", asked, expected)])
    return [name.strip() for name in asked.split(",")]


def _execute(
    make: Callable[[RunProgress, Scale], Run | PartedRun | VirtualRun], scale: Scale, console: Console
) -> dict[str, Any]:
    """Run once, telling how far it is."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("checking", total=None)

        def phase(line: str) -> None:
            bar.update(task, description=line)
            console.print(f"  {line}")

        def step(done: int, total: int) -> None:
            bar.update(task, description=f"step {done + 1} of {total}", completed=done, total=total)
            if not console.is_terminal and done % max(1, total // 4) == 0:
                console.print(f"  step {done + 1} of {total}")

        return make(RunProgress(phase, step), scale).execute()


def _report(summary: dict[str, Any], target: Path, console: Console, *, strict: bool, as_json: bool) -> None:
    """Tell what came out; of an untrusted run and when strict, only why."""
    if strict and summary["status"] == "untrusted":
        hand_over(target)
        if as_json:
            kept = ("schema", "scenario", "run_dir", "clock", "scale", "status")
            verdicts = [{key: variant[key] for key in ("name", "verdict")} for variant in summary["variants"]]
            print(json.dumps({key: summary[key] for key in kept} | {"variants": verdicts}, indent=1))
        print_refusal(summary, console)
        return
    report = write_report(target)
    hand_over(target)
    if as_json:
        print(json.dumps(summary, indent=1))
        console.print(f"report: {report}", soft_wrap=True)
    else:
        print_summary(summary, Console(highlight=False))
    sys.stdout.flush()
