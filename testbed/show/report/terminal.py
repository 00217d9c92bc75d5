"""The result of a run on a terminal or in a log: a table, failed invariants, and the path of the report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.measure.results.result import Result, Variant
from testbed.prediction.calibration import calibration_words
from testbed.show.report.diagnosis_page import diagnose_suspects, suspicion_text
from testbed.show.report.serving import describe_decoding, describe_serving
from testbed.show.report.shared_sections import (
    count_by_invariant,
    describe_losses,
    describe_pauses,
    describe_replication,
    reasons,
)
from testbed.show.report.variant_text import comparisons, describe_rates, deviation, deviation_text
from testbed.spec.units import signed_percent_text, size_text, time_text

_STATUS_STYLE = {"trusted": "green", "caution": "yellow", "untrusted": "bold white on red"}
# Width from which the sentence on what limited a variant has its own column.
_WIDE = 130
# Number of variants up to which a sentence has a figure for each.
FEW = 4


def print_summary(result: Result, console: Console) -> None:
    """Print a run's results, readable without colour and in 80 columns."""
    variants = result.variants
    wide = console.width >= _WIDE
    console.print(_table(result, wide, console.options.ascii_only))
    console.print()
    _print_failing(variants, console)
    if result.status == "untrusted":
        console.print(
            Text(f"Do not use the figures of an untrusted variant. {_remedy(result)}", style="bold red")
        )
    if not wide:
        for variant in variants:
            console.print(_sentence(f"{variant.name} is limited by ", variant.limited_by))
    few = variants if len(variants) <= FEW else ()
    _print_all(map(describe_rates, few), console)
    trainings = [variant.training for variant in variants if variant.training is not None]
    print_training_steps((training.training_steps for training in trainings), console)
    print_not_emulated((what for training in trainings for what in training.not_emulated), console)
    if words := describe_prediction(variants):
        console.print(Text(f"{words}{_calibrated(Path(result.run_dir))}"))
    _print_all(map(describe_losses, few), console)
    _print_all(map(describe_pauses, few), console)
    for one in variants:
        _print_all(describe_replication(one), console)
    for one in variants:
        _print_all(describe_serving(one.name, one.serving), console)
    _print_all(describe_decoding(variants), console)
    for sentence in comparisons(variants):
        console.print(Text(sentence, style="bold"))
    for name, found in diagnose_suspects(Path(result.run_dir), variants):
        console.print(
            Text(f"{suspicion_text(name, found)}; testbed diagnose {result.run_dir}"), soft_wrap=True
        )
    # No wrapping: the path must be easy to copy.
    console.print(Text(f"Report: {Path(result.run_dir) / 'report.html'}"), soft_wrap=True)


def _print_all(sentences: Iterable[str], console: Console) -> None:
    """Print a line for each sentence that is not empty."""
    for words in filter(None, sentences):
        console.print(Text(words))


def describe_prediction(variants: Sequence[Variant]) -> str:
    """Describe the model's prediction in one sentence; empty if there is none."""
    found = {
        variant.name: variant.predicted
        for variant in variants
        if variant.predicted is not None and variant.verdict.status != "untrusted"
    }
    errors = sorted(entry.error for entry in found.values())
    if len(found) <= FEW:
        each = [
            f"{name} {time_text(entry.step_time_s)} ({signed_percent_text(entry.error)})"
            for name, entry in found.items()
        ]
        return f"The model predicts {', '.join(each)}." if each else ""
    middle = median(errors)
    least = signed_percent_text(errors[0]).removesuffix(" %")
    most, median_off = signed_percent_text(errors[-1]), signed_percent_text(middle)
    return f"The model's step times are {least} to {most} off, {median_off} in the median."


def _calibrated(run_dir: Path) -> str:
    """Name the calibration in the run's manifest."""
    try:
        made = json.loads((run_dir / "manifest.json").read_text()).get("calibration")
    except OSError:
        made = None
    return f" By {calibration_words(made)}." if made else ""


def print_training_steps(counts: Iterable[int], console: Console) -> None:
    """Print how many training steps the figures cover, unless it is one."""
    for count in dict.fromkeys(counts):
        if count > 1:
            console.print(f"All figures are for {count} consecutive training steps.")


def print_not_emulated(dimensions: Iterable[str], console: Console) -> None:
    """Print which traffic of training steps stays inside ranks, with each kind once."""
    for what in dict.fromkeys(dimensions):
        console.print(_sentence("Inside each rank, not emulated: ", what))


def print_refusal(result: Result, console: Console) -> None:
    """Print why an untrusted run's figures are withheld."""
    _print_failing(result.variants, console)
    console.print(Text(f"Untrusted: its figures are not reported. {_remedy(result)}", style="bold red"))
    console.print(Text(f"Samples: {result.run_dir}"), soft_wrap=True)


def _print_failing(variants: Sequence[Variant], console: Console) -> None:
    """Print failing variants, the worst first; if there are many reasons, print a few and the number of others."""
    first, more = reasons(variants)
    for variant, invariant in first:
        status = variant.verdict.status
        console.print(
            Text.assemble(
                (f"{_emphasised(status)}: ", _STATUS_STYLE.get(status, "")),
                f"{variant.name}, {invariant.name}: {invariant.sentence}",
            )
        )
    if more:
        console.print(Text(f"And {len(more)} more, see the report: {count_by_invariant(more)}."))


def _remedy(result: Result) -> str:
    if result.clock != "real":
        return "See docs/explanation/fidelity.md."
    return "--clock virtual gives exact ones on any host; --retry-dilated 8 stretches time until they hold."


def _sentence(start: str, rest: str) -> Text:
    return Text(f"{start}{rest.rstrip('.')}.")


def _emphasised(status: str) -> str:
    """Capitalise the one verdict that must not be overlooked, so that it stands out without colour."""
    return status.upper() if status == "untrusted" else status


def _table(result: Result, wide: bool, ascii_only: bool) -> Table:
    table = Table(
        title=Text(f"{result.scenario}: {_emphasised(result.status)}"),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    # Figures are never wrapped; long names wrap in a narrow terminal.
    table.add_column("variant", overflow="fold")
    for heading in ("step time", "compute", "exposed\ncomm", "WAN bytes\n(expected)"):
        table.add_column(heading, justify="right", no_wrap=True, overflow="fold")
    if wide:
        table.add_column("limited by")
    table.add_column("verdict", no_wrap=True, overflow="fold")
    for variant in result.variants:
        steps, status = variant.step_time_s, variant.verdict.status
        figures = "strike dim" if status == "untrusted" else ""
        off = deviation(variant.wan_bytes)
        same = "ok" if ascii_only else "✓"
        cells = [
            Text.assemble(variant.name, (f"\n{variant.ranks} ranks, n={steps.n}", "dim")),
            Text.assemble(
                (time_text(steps.median), figures or "bold"),
                (f"\n{time_text(steps.min)}-{time_text(steps.max)}", f"{figures} dim"),
            ),
            Text(time_text(variant.compute_s), figures),
            Text(time_text(variant.exposed_comm_s), figures),
            Text.assemble(
                (size_text(variant.wan_bytes.observed), figures),
                (f" {same}", "green") if off is None else (f" {deviation_text(off)}", "bold red"),
                (f"\n({size_text(variant.wan_bytes.expected)})", "dim"),
            ),
        ]
        if wide:
            cells.append(Text(variant.limited_by))
        table.add_row(*cells, Text(_emphasised(status), _STATUS_STYLE.get(status, "")))
    return table
