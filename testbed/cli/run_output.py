"""How far a run is, for people: a bar, lines, and what came out."""

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
"""Of commands whose figures are not to be trusted."""


@contextlib.contextmanager
def show_progress(console: Console, *, quiet: bool = False) -> Iterator[Listener]:
    """Tells of runs within the block: what begins, its phases, its steps. quiet: only what must not be missed."""
    if quiet:
        yield Listener(Progress(lambda line: None, lambda done, total: None), _tell_again(console))
        return
    began_s = time.monotonic()
    with progress_bar(console) as bar:
        task = bar.add_task("checking", total=None)

        def begins(prepared: PreparedRun, reasons: Sequence[str]) -> None:
            scenario = prepared.request.scenario
            words = f"untrusted ({', '.join(reasons)}): once more, {prepared.scale}"
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


def _tell_again(console: Console) -> Callable[[PreparedRun, Sequence[str]], None]:
    """Says that a run is done once more."""

    def begins(prepared: PreparedRun, reasons: Sequence[str]) -> None:
        if reasons:
            console.print(f"untrusted ({', '.join(reasons)}): once more, {prepared.scale}", soft_wrap=True)

    return begins


def print_result(result: Result, console: Console, *, strict: bool = False, as_json: bool = False) -> None:
    """Tell what came out; of an untrusted run and when strict, only why. console: standard error."""
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
