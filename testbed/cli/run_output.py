"""Progress and results of a run, on a terminal."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from testbed.cli.console import listen_to_schedule_search, progress_bar
from testbed.cli.experiments.run import Listener
from testbed.measure.execution.progress import PartProgress, Progress, progress_text, time_left_text
from testbed.measure.execution.run import PreparedRun
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.result import Result
from testbed.show.report import print_refusal, print_summary

EXIT_UNTRUSTED = 3
"""Exit status of commands with untrusted results."""


@contextlib.contextmanager
def show_progress(console: Console, *, quiet: bool = False) -> Iterator[Listener]:
    """Show progress of runs within the block: start, phases, steps. `quiet`: only report repeated runs."""
    if quiet:
        yield Listener(Progress(lambda line: None, lambda done, total: None), _report_repeats(console))
        return
    began_s = time.monotonic()
    with progress_bar(console) as bar:
        task = bar.add_task("checking", total=None)

        def begins(prepared: PreparedRun, reasons: Sequence[str]) -> None:
            scenario = prepared.request.scenario
            words = f"untrusted ({', '.join(reasons)}): repeating, {prepared.scale}"
            if not reasons:
                words = f"{scenario.name}: {scenario.ranks} ranks, {', '.join(scenario.variant_names)}, "
                words += f"policy {scenario.policy.label}; {prepared.backend.words}"
                words += "" if prepared.scale.is_one else f"; {prepared.scale}"
                words += f"\nexpected: {prepared.expectation}" if prepared.expectation else ""
            console.print(words)

        def phase(line: str) -> None:
            bar.update(task, description=line)
            console.print(f"  {line}")

        def parts(of: Sequence[PartProgress]) -> None:
            bar.update(
                task,
                more="; ".join(
                    filter(None, (time_left_text(time.monotonic() - began_s, of), progress_text(of)))
                ),
            )

        def step(done: int, total: int) -> None:
            bar.update(task, description=f"step {done + 1} of {total}", completed=done, total=total)
            if not console.is_terminal and done % max(1, total // 4) == 0:
                console.print(f"  step {done + 1} of {total}")

        with listen_to_schedule_search(lambda words: bar.update(task, description=words)):
            yield Listener(Progress(phase, step, parts), begins)


def _report_repeats(console: Console) -> Callable[[PreparedRun, Sequence[str]], None]:

    def begins(prepared: PreparedRun, reasons: Sequence[str]) -> None:
        if reasons:
            console.print(f"untrusted ({', '.join(reasons)}): repeating, {prepared.scale}", soft_wrap=True)

    return begins


def print_result(result: Result, console: Console, *, strict: bool = False, as_json: bool = False) -> None:
    """Print the results; with `strict`, only say why if they are untrusted. `console`: standard error."""
    document = result.document()
    if strict and result.status == "untrusted":
        if as_json:
            kept = ("schema", "scenario", "run_dir", "clock", "scale", "status")
            verdicts = [
                {key: variant[key] for key in ("name", "verdict")} for variant in document["variants"]
            ]
            print(json.dumps({key: document[key] for key in kept} | {"variants": verdicts}, indent=1))
        print_refusal(result, console)
    elif as_json:
        print(json.dumps(document, indent=1), flush=True)
        console.print(f"report: {Path(result.run_dir) / 'report.html'}", soft_wrap=True)
    else:
        output = Console(highlight=False)
        print_summary(result, output)
        if result.clock == "virtual" and (found := Manifest.open(Path(result.run_dir)).fingerprint):
            output.print(f"Fingerprint: {found.label}", soft_wrap=True)
