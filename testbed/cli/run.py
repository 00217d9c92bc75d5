"""The command `run`: a scenario from file to judged figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from testbed.cli.fabric import DatapathOption, EngineOption, JsonOption
from testbed.cli.scale import choose_scale, choose_stack
from testbed.config import load_scenario
from testbed.harness.directory import default_path, hand_over
from testbed.harness.run import Progress as RunProgress
from testbed.harness.run import Run
from testbed.report import print_summary, write_report

EXIT_UNTRUSTED = 3


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
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a value of the scenario, such as topology.wan.0.delay='5 ms'.",
        ),
    ] = None,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario: build, measure, judge, report. Exit status 3: the figures are not to be trusted."""
    assignments = [*(overrides or []), *([f"trials={trials}"] if trials is not None else [])]
    loaded = load_scenario(scenario, assignments)
    stack = choose_stack(link_engine, datapath)
    scale = choose_scale(loaded.topology.resolve, loaded.scale.size_scale, stack, loaded.ranks, str(scenario))
    console = Console(stderr=True, highlight=False)
    target = output if output is not None else default_path(loaded.name)
    console.print(
        f"{loaded.name}: {loaded.ranks} ranks, {', '.join(loaded.algorithms)}, policy {loaded.policy}; "
        f"link engine {stack.link_engine}, datapath {stack.datapath}"
        + (f"; rates and sizes divided by {scale:g}" if scale != 1 else "")
    )
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

        summary = Run(loaded, stack, scale, target, RunProgress(phase, step)).execute()
    report = write_report(target)
    hand_over(target)
    if as_json:
        print(json.dumps(summary, indent=1))
        console.print(f"report: {report}", soft_wrap=True)
    else:
        print_summary(summary, Console(highlight=False))
    sys.stdout.flush()
    if summary["status"] == "untrusted":
        raise typer.Exit(EXIT_UNTRUSTED)
