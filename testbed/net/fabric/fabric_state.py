"""State files of fabrics, written before anything else, so that a killed fabric can be found and removed.

Each fabric has an id of four hexadecimal digits and a folder `/run/testbed/<id>`. All its interfaces and bridges in the
root namespace are named `tb<id>...`. All its processes have `TESTBED_FABRIC=<id>` in their environment or are in its
network namespaces. Cleaning uses only these marks, never program names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from pyroute2 import IPRoute

from testbed.clock import clock_here
from testbed.errors import did_you_mean
from testbed.net.errors import FabricError, ProgramNotFound, UnknownHost, check_host, need_root
from testbed.net.fabric.open_vswitch import restore_after_kill
from testbed.net.links.netns import command_in_namespace, namespace_cookie
from testbed.processes import process_start_ticks

STATE_ROOT = Path("/run/testbed")
ENVIRONMENT_MARK = "TESTBED_FABRIC"
CONTROLLER_FILE = "controller.json"  # in a fabric's folder: the controller's API port and token
KILL_WAIT_S = 5.0
DELETE_WAIT_S = 20.0  # Open vSwitch is slow on a busy machine


@dataclasses.dataclass
class FabricState:
    """The state of one fabric: its owner process and its resources.

    `phase` is building, up, failed or closing. `namespaces` has the cookies of its nodes' network namespaces.
    """

    id: str
    owner_pid: int
    owner_started: float
    topology: str = ""
    phase: str = "building"
    failure: str | None = None
    pids: dict[str, int] = dataclasses.field(default_factory=dict)
    namespaces: list[int] = dataclasses.field(default_factory=list)
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of this fabric's state, sockets and logs."""
        return STATE_ROOT / self.id

    @property
    def prefix(self) -> str:
        """The prefix of its interface and bridge names in the root namespace."""
        return f"tb{self.id}"

    def owner_alive(self) -> bool:
        """Return whether the process that created this entry is still running, even if its pid was reused."""
        return process_start_ticks(self.owner_pid) == self.owner_started

    def save(self) -> None:
        """Write the state file atomically."""
        draft = self.folder / "state.json.new"
        draft.write_text(json.dumps(dataclasses.asdict(self), indent=1))
        draft.replace(self.folder / "state.json")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


def register(topology: str) -> FabricState:
    """Create a state entry with a unique id, owned by this process.

    The id is random, except in a guest, where ids are sequential for reproducibility: switch names contain the id, and
    Open vSwitch processes switches in the order of their names.
    """
    STATE_ROOT.mkdir(mode=0o755, exist_ok=True)
    numbers = itertools.count()
    while True:
        fabric_id = secrets.token_hex(2) if clock_here() is None else f"{next(numbers):04x}"
        try:
            (STATE_ROOT / fabric_id).mkdir()
        except FileExistsError:
            continue
        started = process_start_ticks(os.getpid())
        assert started is not None
        state = FabricState(fabric_id, os.getpid(), started, topology)
        state.save()
        return state


def load_all() -> list[FabricState]:
    """Return all entries on this machine, oldest first; an incomplete one is treated as failed, with a dead owner."""
    entries = []
    for folder in sorted(STATE_ROOT.glob("*/"), key=lambda path: path.stat().st_mtime):
        try:
            entries.append(FabricState(**json.loads((folder / "state.json").read_text())))
        except (OSError, ValueError, TypeError):
            if time.time() - folder.stat().st_mtime > 1.0:  # a younger one may still be being written
                entries.append(
                    FabricState(folder.name, 0, 0.0, phase="failed", failure="its state was not written")
                )
    return entries


def load_live() -> list[FabricState]:
    """Return the entries with a live owner, in any phase, oldest first."""
    return [state for state in load_all() if state.owner_alive()]


def clean(state: FabricState) -> list[str]:
    """Remove everything that belongs to a fabric; return a line for each removed item. Idempotent."""
    removed = _kill_processes(state) + _delete_bridges(state.prefix) + _delete_interfaces(state.prefix)
    shutil.rmtree(state.folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        STATE_ROOT.rmdir()
    return removed


def clean_abandoned(everything: bool = False) -> dict[str, list[str]]:
    """Clean the fabrics without a live owner, or all fabrics; return the removed items by fabric id."""
    restore_after_kill(STATE_ROOT)
    found = [state for state in load_all() if everything or not state.owner_alive()]
    for state in found:
        if state.owner_alive() and state.owner_pid != os.getpid():
            _stop_processes([psutil.Process(state.owner_pid)])
    return {state.id: clean(state) for state in found}


def _kill_processes(state: FabricState) -> list[str]:
    """Stop a fabric's processes, including those started in the meantime."""
    removed: list[str] = []
    deadline_s = time.monotonic() + KILL_WAIT_S
    while (ours := _processes_of(state)) and time.monotonic() < deadline_s:
        removed += _stop_processes(ours)
    return removed


def namespace_cookies(pids: Iterable[int]) -> list[int]:
    """Return the network namespace cookies of processes, unique since boot; processes without one are skipped."""
    return [cookie for pid in pids if (cookie := namespace_cookie(pid)) is not None]


def _processes_of(state: FabricState) -> list[psutil.Process]:
    """Return the processes with the fabric's mark, and any process in its namespaces."""
    ours, is_ours = [], {os.stat("/proc/self/ns/net").st_ino: False}
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.environ().get(ENVIRONMENT_MARK) == state.id:
                ours.append(process)
                continue
            # Cache by inode only within this scan: the inode of a deleted namespace is reused.
            inode = os.stat(f"/proc/{process.pid}/ns/net").st_ino
            if inode not in is_ours:
                is_ours[inode] = namespace_cookie(process.pid) in state.namespaces
            if is_ours[inode]:
                ours.append(process)
        except (psutil.Error, OSError):
            continue
    return ours


def _stop_processes(processes: list[psutil.Process]) -> list[str]:
    names = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            names.append(f"process {process.pid} ({' '.join(process.cmdline())[:60]})")
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=1.0)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=KILL_WAIT_S)
    return names


def _delete_bridges(prefix: str) -> list[str]:
    try:
        listed = subprocess.run(
            ["ovs-vsctl", "--timeout=5", "list-br"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return []
    bridges = [name for name in listed.stdout.split() if name.startswith(prefix)]
    if bridges:
        # The daemon removes ports one at a time, 0.1 s each; --no-wait lets their interfaces be deleted meanwhile.
        command = ["ovs-vsctl", "--timeout=15", "--no-wait"]
        for name in bridges:
            command += ["--", "--if-exists", "del-br", name]
        subprocess.run(command, capture_output=True, check=False)
    return [f"bridge {name}" for name in bridges]


def _delete_interfaces(prefix: str) -> list[str]:
    """Delete interfaces and wait until they are gone; Open vSwitch's daemon deletes a bridge's own interface later."""
    removed: dict[str, None] = {}
    deadline = time.monotonic() + DELETE_WAIT_S
    with IPRoute() as ipr:
        while time.monotonic() < deadline:
            links = [(link.get_attr("IFLA_IFNAME"), link["index"]) for link in ipr.get_links()]
            remaining = [(name, index) for name, index in links if name.startswith(prefix)]
            if not remaining:
                break
            for name, index in remaining:
                with contextlib.suppress(Exception):  # it may have gone with its peer's namespace
                    ipr.link("del", index=index)
                    removed[f"interface {name}"] = None
            time.sleep(0.005)
    return list(removed)


@contextlib.contextmanager
def mark_child_processes(fabric_id: str) -> Iterator[None]:
    """Set the fabric's mark in the environment of processes started within the block."""
    former = os.environ.get(ENVIRONMENT_MARK)
    os.environ[ENVIRONMENT_MARK] = fabric_id
    try:
        yield
    finally:
        del os.environ[ENVIRONMENT_MARK]
        if former is not None:
            os.environ[ENVIRONMENT_MARK] = former


UP_PHASES = ("up", "failed")


def find_fabric(name: str | None, hosts: Sequence[str] = (), link: str | None = None) -> FabricState:
    """Select one of the fabrics that are up on this machine; see `select_fabric`."""
    states = [state for state in load_live() if state.phase in UP_PHASES]
    return select_fabric(states, name, hosts, link)


def select_fabric(
    states: Sequence[FabricState], name: str | None, hosts: Sequence[str] = (), link: str | None = None
) -> FabricState:
    """Select a fabric by id, topology name, or the hosts or link that it must have.

    Args:
        states: All fabrics that are up.
        name: A fabric id or a unique topology name; None to select by the other arguments.
        hosts: Hosts that the fabric must have if several are up.
        link: A WAN link that the fabric must have if several are up.

    Raises:
        FabricError: None or several fabrics match; the message lists those that are up.
        UnknownHost: Several fabrics are up and none has these hosts.
    """
    if name is not None:
        found = [state for state in states if name in (state.id, state.topology)]
        if len(found) > 1:
            raise FabricError(f"several fabrics are called {name}, select one by its id: {_describe(found)}")
        if not found:
            known = ", ".join(state.id for state in states) or "none"
            raise FabricError(f"no fabric {name!r} is up; up: {known}")
        return found[0]
    if not states:
        raise FabricError("no fabric is up; start one with: testbed up topologies/two-buildings.yaml")
    if len(states) == 1:
        return states[0]
    found = [
        state
        for state in states
        if set(hosts) <= set(host_names(state)) and link in (None, *link_names(state))
    ]
    if not found and hosts:
        every = sorted({name for state in states for name in host_names(state)})
        wanted = next((name for name in hosts if name not in every), " and ".join(hosts))
        raise UnknownHost(where="HOST", got=wanted, expected=f"one of {did_you_mean(wanted, every)}")
    if len(found) != 1:
        raise FabricError(f"several fabrics are up, select one with --fabric: {_describe(found or states)}")
    return found[0]


def host_names(state: FabricState) -> list[str]:
    """Return the names of a fabric's hosts."""
    return [entry["name"] for entry in state.details.get("hosts", ())]


def link_names(state: FabricState) -> list[str]:
    """Return the names of a fabric's WAN links, such as "east-west-0"."""
    return [entry["name"] for entry in state.details.get("wan", ())]


def _describe(states: Sequence[FabricState]) -> str:
    return ", ".join(f"{state.id} ({state.topology})" for state in states)


def command_in_host(state: FabricState, host: str, command: Sequence[str], where: str = "host") -> list[str]:
    """Return the command line that runs a program inside a host, as root.

    Args:
        state: The fabric's state.
        host: The host's name, such as "east1".
        command: The program and its arguments.
        where: The name of the host argument, for error messages.

    Raises:
        UnknownHost: The fabric has no such host.
        FabricError: The caller is not root.
        ProgramNotFound: The program does not exist.
    """
    check_host(host, host_names(state), where)
    need_root("entering a host")
    if shutil.which(command[0]) is None:
        raise ProgramNotFound(f"{command[0]}: command not found")
    return command_in_namespace(state.pids[host], list(command))
