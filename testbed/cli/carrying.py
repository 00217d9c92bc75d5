"""Carrying out a run for a command: what is told meanwhile, and what when it is over."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

from rich.console import Console

from testbed.cli.bars import bar_on
from testbed.report import print_refusal, print_summary, write_report
from testbed.report.compare import failing
from testbed.results.directory import hand_over
from testbed.results.result import Result
from testbed.running.progress import Progress
from testbed.running.request import PreparedRun, Request, prepare


def run_and_report(
    request: Request,
    *,
    strict: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    most_dilation: float | None = None,
) -> dict[str, Any]:
    """Check, build, measure, judge, report; returns the summary, which may be untrusted.

    quiet: nothing on standard output. most_dilation: an untrusted run is done again with its time stretched twice as
    far, up to so many times.
    """
    prepared, scenario = prepare(request), request.scenario
    console = Console(stderr=True, highlight=False)
    console.print(
        f"{scenario.name}: {scenario.ranks} ranks, {', '.join(scenario.variant_names)}, "
        f"policy {scenario.policy.label}; {prepared.backend.words}"
        + ("" if prepared.scale.is_one else f"; {prepared.scale}")
    )
    summary = _execute(prepared, console).document()
    while (
        summary["status"] == "untrusted"
        and most_dilation
        and prepared.scale.time_dilation * 2 <= most_dilation
    ):
        prepared = prepared.slower()
        reasons = sorted({entry["name"] for variant in summary["variants"] for entry in failing(variant)})
        console.print(f"untrusted ({', '.join(reasons)}): once more, {prepared.scale}")
        shutil.rmtree(request.output)
        summary = _execute(prepared, console).document()
    _report(summary, request, console, strict=strict, as_json=as_json, quiet=quiet)
    return summary


def _execute(prepared: PreparedRun, console: Console) -> Result:
    """Run once, telling how far it is."""
    with bar_on(console) as bar:
        task = bar.add_task("checking", total=None)

        def phase(line: str) -> None:
            bar.update(task, description=line)
            console.print(f"  {line}")

        def step(done: int, total: int) -> None:
            bar.update(task, description=f"step {done + 1} of {total}", completed=done, total=total)
            if not console.is_terminal and done % max(1, total // 4) == 0:
                console.print(f"  step {done + 1} of {total}")

        return prepared.execute(Progress(phase, step))


def _report(
    summary: dict[str, Any], request: Request, console: Console, *, strict: bool, as_json: bool, quiet: bool
) -> None:
    """Tell what came out; of an untrusted run and when strict, only why."""
    if strict and summary["status"] == "untrusted":
        hand_over(request.output)
        if as_json:
            kept = ("schema", "scenario", "run_dir", "clock", "scale", "status")
            verdicts = [{key: variant[key] for key in ("name", "verdict")} for variant in summary["variants"]]
            print(json.dumps({key: summary[key] for key in kept} | {"variants": verdicts}, indent=1))
        print_refusal(summary, console)
        return
    report = write_report(request.output)
    hand_over(request.output)
    if as_json:
        print(json.dumps(summary, indent=1))
        console.print(f"report: {report}", soft_wrap=True)
    elif not quiet:
        print_summary(summary, Console(highlight=False))
    sys.stdout.flush()
