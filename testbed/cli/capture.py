"""The command `capture`: record a training script as a job, without accelerators."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from testbed.cli.console import plain_table
from testbed.contrib.capture.session import CaptureResult, Request, capture
from testbed.errors import BadInput, did_you_mean
from testbed.spec.catalogue import accelerators
from testbed.spec.units import size_text, time_text
from testbed.workload.traces.trace import Collective, Compute, JobTrace, PointToPoint, element_bytes


def capture_script(
    context: typer.Context,
    world_size: Annotated[int, typer.Option(min=1, help="Ranks of the job.")] = 8,
    ranks_per_host: Annotated[
        int | None, typer.Option(min=1, help="LOCAL_WORLD_SIZE (default: 8, or all).")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to run; the last one is recorded.")] = 2,
    accelerator: Annotated[str, typer.Option(help="Accelerator of each rank.")] = "h100",
    compute: Annotated[
        str,
        typer.Option(
            help="How to time computation: utilisation (the share of peak that training reaches), roofline (a lower "
            "bound for each kernel), or measured: a PyTorch profiler trace (.json, .json.gz), a folder of them, or a "
            "CSV file with kind,seconds."
        ),
    ] = "utilisation",
    python: Annotated[str, typer.Option(help="A Python interpreter with PyTorch.")] = sys.executable,
    every_rank: Annotated[
        bool, typer.Option("--every-rank", help="Run every rank, rather than one of each kind and one more.")
    ] = False,
    at_once: Annotated[int, typer.Option(min=1, help="Ranks to run at a time.")] = 2,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The trace file (default: the script's name, .json.gz)."),
    ] = None,
) -> None:
    """Record a step of a PyTorch script, without accelerators: testbed capture -- train.py

    The script runs as under torchrun, with fake tensors, and with process groups that only record their calls. The
    result is a workload: {trace: FILE} in a scenario.
    """
    words = [word for word in context.args if word != "--"]
    if not words:
        raise BadInput(where="capture", got="no script", expected="testbed capture -- train.py ARGS")
    if accelerator not in accelerators():
        raise BadInput(
            where="--accelerator", got=accelerator, expected=did_you_mean(accelerator, accelerators())
        )
    request = Request(
        words[0],
        tuple(words[1:]),
        world_size,
        ranks_per_host or min(8, world_size),
        steps,
        accelerator,
        compute,
        python,
        every_rank,
        at_once,
    )
    found = capture(request)
    path = output or Path(f"{Path(words[0]).stem}.json.gz")
    found.trace.write(path)
    _print(found, path)


def _print(found: CaptureResult, output: Path) -> None:
    console = Console(highlight=False)
    console.print(table_of(found.trace))
    ran = len(found.ran)
    console.print(
        f"{len(found.trace.ranks)} ranks of {len(found.classes)} kind{'s' * (len(found.classes) != 1)}, {ran} of them "
        f"run, in {time_text(found.seconds)}; at most {size_text(found.peak_bytes)} of memory each.",
        markup=False,
    )
    for note in found.notes:
        console.print(f"Note: {note}.", markup=False)
    console.print(f"{output}: in a scenario, workload: {{trace: {output}}}", markup=False)


def table_of(trace: JobTrace) -> Table:
    """Return a table of calls by kind, for the rank with the most of each kind."""
    calls: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    sizes: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    seconds: defaultdict[int, float] = defaultdict(float)
    for rank, own in enumerate(trace.ranks):
        for node in own:
            if isinstance(node, Compute):
                seconds[rank] += node.duration_s
            elif isinstance(node, Collective) or (isinstance(node, PointToPoint) and node.sends):
                what = node.collective if isinstance(node, Collective) else "send"
                key = node.kind, what, node.dtype
                calls[key][rank] += 1
                sizes[key][rank] += node.numel * element_bytes(node.dtype)
    table = plain_table(("kind", "what", "of"), ("calls", "bytes", "ranks"))
    table.add_row("compute", "", "", "", time_text(max(seconds.values(), default=0.0)), str(len(seconds)))
    for key in sorted(calls):
        most = str(max(calls[key].values())), size_text(max(sizes[key].values()))
        table.add_row(*key, *most, str(len(calls[key])))
    return table
