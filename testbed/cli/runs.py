"""Commands on runs: report, compare, reproduce and diagnose one, list and remove them; ps lists running networks."""

from __future__ import annotations

import contextlib
import json
import pwd
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import psutil
import typer
from rich.console import Console

from testbed.cli.console import plain_table, show_progress
from testbed.cli.experiments import run as experiment
from testbed.cli.options import JobsOption, JsonOption, OutputOption
from testbed.comm.flight_recorder.pytorch import write_pytorch
from testbed.errors import BadInput
from testbed.measure.diagnosis.diagnose import diagnose as judge
from testbed.measure.diagnosis.dumps import dump_running, read_evidence
from testbed.measure.diagnosis.verdicts import diagnosis_lines
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import RUNS, chown_to_sudo_user
from testbed.measure.results.run_listing import Entry, list_entries, remove, select_prunable
from testbed.net.fabric.fabric_state import FabricState, host_names, link_names, load_all
from testbed.show.report import write_report
from testbed.show.report.diagnosis_page import write_diagnosis
from testbed.show.report.run_comparison import Comparison, compare_runs, describe_unequal_work
from testbed.spec.errors import option_error
from testbed.spec.units import parse_duration, size_text, time_text

EXIT_DIFFERENT = 4
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A folder created by `testbed run`.")]


def report(
    run: RunArgument,
    panels: Annotated[
        list[str] | None,
        typer.Option("--panel", metavar="NAME", help="An additional panel: a panel's name, or FILE.py:NAME."),
    ] = None,
) -> None:
    """Render a run's report and timeline again, from its files."""
    Result.open(run)
    path = write_report(run, panels or ())
    chown_to_sudo_user(run)
    Console(highlight=False).print(f"Report: {path}", soft_wrap=True)


def compare(
    one: RunArgument,
    other: Annotated[Path, typer.Argument(metavar="RUN", help="Another run.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: step times by variant, verdicts, and differences between their setups."""
    _print_comparison(compare_runs(one, other), as_json)


def reproduce(
    run: RunArgument,
    output: OutputOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a run from its folder, with its clock and scale, and compare. Exit status 4: they differ."""
    with show_progress(Console(stderr=True, highlight=False)) as listener:
        found, target = experiment.reproduce(run, output, jobs, listener)
    _print_comparison(found, as_json)
    Console(stderr=True, highlight=False).print(f"report: {target / 'report.html'}", soft_wrap=True)
    if not found.agrees:
        raise typer.Exit(EXIT_DIFFERENT)


def _print_comparison(found: Comparison, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.document(), indent=1))
        return
    console = Console(highlight=False)
    table = plain_table(["variant"], ("one", "other", "other / one", "95 %"), ["verdicts"])
    for held in found.variants:
        low_high = "" if held.interval is None else f"{held.interval[0]:.4f} to {held.interval[1]:.4f}"
        verdicts = " and ".join(dict.fromkeys(held.verdicts))
        times = time_text(held.one_s), time_text(held.other_s)
        ratio = "the same" if held.exact else f"{held.ratio:.4f}"
        table.add_row(held.name, *times, ratio, low_high, verdicts)
    console.print(table)
    for held in found.variants:
        if words := describe_unequal_work(held):
            console.print(words, markup=False, soft_wrap=True)
    if found.alone:
        console.print(f"In one run only: {', '.join(found.alone)}.")
    for entry in found.differences:
        console.print(f"different: {entry.what}: {entry.one}, {entry.other}", markup=False, soft_wrap=True)
    console.print(found.words, soft_wrap=True)
    console.print("They agree." if found.agrees else "They do not agree.")


FolderArgument = Annotated[Path, typer.Argument(help="The folder of runs.")]
DAY_S = 86400.0
runs_app = typer.Typer(
    no_args_is_help=True, help="Runs, sweeps and searches in ./runs: list them, remove old ones."
)


def ps(as_json: JsonOption = False) -> None:
    """List the networks on this machine: owner, age, hosts and links."""
    found = [_network(state) for state in load_all()]
    if as_json:
        print(json.dumps([asdict(entry) for entry in found], indent=1))
        return
    console = Console(highlight=False)
    if not found:
        console.print("no network is up")
        return
    table = plain_table(("fabric", "topology", "phase", "owner", "up for", "hosts", "WAN links"))
    for entry in found:
        owner = "gone: testbed clean" if entry.user is None else f"{entry.user} {entry.pid}"
        age = "" if entry.age_s is None else age_text(entry.age_s)
        cells = (
            entry.id,
            entry.topology,
            entry.phase,
            owner,
            age,
            shorten_list(entry.hosts),
            shorten_list(entry.links),
        )
        table.add_row(*cells)
    console.print(table)


@dataclass(frozen=True)
class Network:
    """A network on this machine; `user` and `age_s` are those of its owner, or None if the owner is gone."""

    id: str
    topology: str
    phase: str
    failure: str | None
    user: str | None
    pid: int
    age_s: float | None
    hosts: list[str]
    links: list[str]


def _network(state: FabricState) -> Network:
    user, since_s, phase = None, None, "left behind"
    if state.owner_alive():
        with contextlib.suppress(psutil.Error, KeyError):  # the process has just ended
            process = psutil.Process(state.owner_pid)
            user, since_s = pwd.getpwuid(process.uids().real).pw_name, time.time() - process.create_time()
            phase = state.phase
    names = host_names(state), link_names(state)
    return Network(state.id, state.topology, phase, state.failure, user, state.owner_pid, since_s, *names)


@runs_app.command(name="ls")
def list_runs(folder: FolderArgument = RUNS, as_json: JsonOption = False) -> None:
    """List runs with their verdicts, sweeps, searches, and failed or killed runs, oldest first."""
    found = list_entries(folder)
    if as_json:
        print(json.dumps([{**asdict(entry), "path": str(entry.path)} for entry in found], indent=1))
        return
    console = Console(highlight=False)
    if not found:
        console.print(f"nothing in {folder}")
        return
    _print_entries(found, console)


@runs_app.command(name="prune")
def prune(
    folder: FolderArgument = RUNS,
    keep: Annotated[
        int | None, typer.Option(min=0, help="Keep this many of the newest with a result.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Only remove what is older than this, such as '7 d', '12 h' or '30 min'."),
    ] = None,
    left: Annotated[
        bool, typer.Option("--left", help="Remove leftovers of failed or killed runs, in place of results.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
) -> None:
    """Remove old runs, sweeps and searches, or with --left, failed and killed ones; active ones are never removed."""
    if keep is None and older_than is None and not left:
        expected = "--keep N, --older-than AGE or --left"
        raise option_error("runs prune", "no criterion", expected)
    older_s = None if older_than is None else age_s(older_than)
    chosen = select_prunable(list_entries(folder), time.time(), keep=keep, older_s=older_s, left=left)
    console = Console(stderr=True, highlight=False)
    for entry in chosen:
        if not dry:
            remove(entry)
        done = "would be removed" if dry else "removed"
        console.print(f"{done}: {entry.path} ({entry.kind}, {size_text(entry.size_bytes)})", soft_wrap=True)
    if not chosen:
        console.print("nothing to remove")


def age_s(text: str) -> float:
    """Return an age in seconds, from a duration or a number of days; raise ConfigError if it is wrong."""
    number, _, unit = text.strip().rpartition("d")
    try:
        return float(number) * DAY_S if number and not unit else parse_duration(text)
    except ValueError:
        expected = "an age such as 7 d, 12 h or 30 min"
        raise option_error("--older-than", repr(text), expected) from None


def age_text(seconds: float) -> str:
    """Return an age such as "3 min", "2 h" or "5 d"."""
    for size_s, unit in ((DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def shorten_list(names: Sequence[str]) -> str:
    """Return the first and the last name and the count, such as "east1 ... west4 (8)"."""
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _print_entries(found: list[Entry], console: Console) -> None:
    table = plain_table(("folder", "what", "verdict", "clock"), ("changed", "size"))
    now_s = time.time()
    for entry in found:
        ago = f"{age_text(now_s - entry.changed_s)} ago"
        cells = (entry.path.name, entry.kind, entry.status, entry.clock, ago, size_text(entry.size_bytes))
        table.add_row(*cells)
    console.print(table)
    total = size_text(sum(entry.size_bytes for entry in found))
    console.print(f"{len(found)} in {found[0].path.parent}, {total}")


DumpsArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run's folder, RUN.failed of a failed run, or any folder of dumps."),
]


trace_app = typer.Typer(
    no_args_is_help=True, help="Flight recorder dumps of ranks: their most recent operations."
)


def diagnose(
    run: DumpsArgument,
    clock_error: Annotated[
        str | None,
        typer.Option(
            help="Largest difference between ranks' clocks (default: 1 ms; 0 if a run has one clock)."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the culprit of a run that hangs, failed or is slow: the rank, host, card, link or switch.

    The command reads flight recorder dumps of all ranks, from this project or PyTorch, and writes `diagnosis.html` into
    their folder.
    """
    try:
        clock_error_s = None if clock_error is None else parse_duration(clock_error)
    except ValueError as error:
        raise BadInput(where="--clock-error", got=repr(clock_error), expected=str(error)) from error
    read = read_evidence(run)
    found = {own.name: judge(own.dumps, own.paths, clock_error_s) for own in read}
    notes = Console(stderr=True, highlight=False)
    for own in read:
        for note in own.notes:
            notes.print(f"note: {own.name + ': ' if own.name else ''}{note}", markup=False, soft_wrap=True)
    page = write_diagnosis(run, found)
    chown_to_sudo_user(run)
    if as_json:
        documents = {name: own.to_document() for name, own in found.items()}
        print(json.dumps(documents[""] if list(documents) == [""] else documents, indent=1))
        return
    console = Console(highlight=False)
    for name, diagnosis in found.items():
        if name:
            console.print(f"\n{name}", style="bold", markup=False)
        for line in diagnosis_lines(diagnosis):
            console.print(line, markup=False, soft_wrap=True)
    notes.print(f"page: {page}", markup=False, soft_wrap=True)


@trace_app.command()
def dump(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder that a run in progress will create.")
    ],
) -> None:
    """Make a run in progress dump its ranks' flight recorders; the run continues."""
    for folder in dump_running(run):
        print(folder)


@trace_app.command()
def export(
    run: DumpsArgument,
    output: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder for the files; created if necessary.")
    ],
    form: Annotated[
        Literal["pytorch"],
        typer.Option("--to", help="pytorch: trace_rank_N files, which torchfrtrace reads."),
    ],
) -> None:
    """Convert dumps for other tools."""
    for own in read_evidence(run):
        folder = output / own.name
        folder.mkdir(parents=True, exist_ok=True)
        for dumped in own.dumps:
            write_pytorch(dumped, folder)
        print(folder)
