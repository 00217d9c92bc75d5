"""Commands that list: ps, networks on this machine; runs, results in a folder."""

from __future__ import annotations

import contextlib
import json
import pwd
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from testbed.cli.options import JsonOption
from testbed.measure.results.run_directory import RUNS
from testbed.measure.results.run_listing import Entry, list_entries, remove, select_prunable
from testbed.net.fabric.fabric_state import FabricState, host_names, link_names, load_all
from testbed.spec.errors import option_error
from testbed.spec.units import parse_duration, size_text

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
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("fabric", no_wrap=True)
    for heading in ("topology", "phase", "owner", "up for"):
        table.add_column(heading, no_wrap=heading != "topology", overflow="fold")
    for heading in ("hosts", "WAN links"):
        table.add_column(heading, overflow="fold")
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
    """A network on this machine. `user` and `age_s` are its owner's; None if the owner is gone."""

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
        with contextlib.suppress(psutil.Error, KeyError):  # it has just ended
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
    _print(found, console)


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
    """Remove old runs, sweeps and searches, or with --left those that failed or were killed. Never active ones."""
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
    """Return an age in seconds, from a duration or days. Raises ConfigError."""
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
    """Return the first and the last name, and the count: "east1 ... west4 (8)"."""
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _print(found: list[Entry], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("folder", overflow="fold")
    for heading in ("what", "verdict", "clock", "changed", "size"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("changed", "size") else "left")
    now_s = time.time()
    for entry in found:
        ago = f"{age_text(now_s - entry.changed_s)} ago"
        cells = (entry.path.name, entry.kind, entry.status, entry.clock, ago, size_text(entry.size_bytes))
        table.add_row(*cells)
    console.print(table)
    total = size_text(sum(entry.size_bytes for entry in found))
    console.print(f"{len(found)} in {found[0].path.parent}, {total}")
