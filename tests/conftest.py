"""Tests of the net lane: skipped where they cannot run, and failed when they leave something behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from testbed.clock import clock_here
from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, load_all

# The kernel removes a dead namespace's interfaces a little after its last process.
PATIENCE_S = 5.0
# In the environment of all that this test run starts, so that its background processes are known for its own.
RUN_MARK = "TESTBED_TEST_RUN"
RUN = f"{os.getpid()}-{time.time_ns()}"
# Interfaces and bridges of fabrics and of the doctor, and those of Mininet's own command line. Anything else that comes
# and goes meanwhile (containers, other people's bridges) is none of ours.
OURS = re.compile(r"tb\w+|s\d+|.*-eth\d+")


def pytest_configure() -> None:
    """Mark what this test run starts, and let it be interrupted: what a shell starts in its background ignores that."""
    os.environ[RUN_MARK] = RUN
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, the net lane where it cannot run, and what the virtual clock has no meaning for.

    What goes the same way with either controller library is tried with Ryu in the thorough lane only.
    """
    for item in items:
        with_ryu = isinstance(item, pytest.Function) and "ryu" in item.name
        if with_ryu and item.get_closest_marker("by_either_library"):
            item.add_marker(pytest.mark.thorough)
    if clock_here() is not None:
        for item in items:
            if marker := item.get_closest_marker("real_clock"):
                item.add_marker(pytest.mark.skip(reason=f"not under the virtual clock: {marker.args[0]}"))
    net = [item for item in items if item.get_closest_marker("net")]
    reason = _obstacle() if net else None
    if reason:
        for item in net:
            item.add_marker(pytest.mark.skip(reason=reason))


def _obstacle() -> str | None:
    if os.geteuid() != 0:
        return "needs root (network namespaces); run as root or through sudo"
    command = ["ovs-vsctl", "--timeout=5", "get", "Open_vSwitch", ".", "ovs_version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "needs Open vSwitch, which is not installed (make setup)"
    if done.returncode != 0:
        return f"needs Open vSwitch, which does not answer (make setup): {done.stderr.strip()}"
    return None


@pytest.fixture(autouse=True)
def leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a net test that leaves interfaces, bridges or processes which were not there before."""
    yield from _watch(request)


@pytest.fixture(scope="module", autouse=True)
def module_leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same for what the fixtures of a whole module leave."""
    yield from _watch(request)


def _watch(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.node.get_closest_marker("net"):
        yield
        return
    before = _survey()
    yield
    deadline = time.monotonic() + PATIENCE_S
    while (left := sorted(_survey() - before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        pytest.fail(f"left behind: {', '.join(left)}")


def _survey() -> set[str]:
    """What of ours is on this machine, less what belongs to somebody else's living fabric or doctor."""
    mine, marked = _processes()
    foreign = {state.id for state in load_all() if state.owner_alive() and state.owner_pid not in mine}
    bridges = subprocess.run(
        ["ovs-vsctl", "--timeout=5", "list-br"], capture_output=True, text=True, check=True
    )
    found = {f"interface {name}" for _, name in socket.if_nameindex() if _is_ours(name, mine, foreign)}
    found |= {f"bridge {name}" for name in bridges.stdout.split() if _is_ours(name, mine, foreign)}
    return found | {said for fabric, said in marked if fabric not in foreign}


def _processes() -> tuple[set[int], list[tuple[str, str]]]:
    """Processes of this test run, and all that belong to a fabric (its id, a line on the process)."""
    mine = {process.pid for process in psutil.Process().children(recursive=True)} | {os.getpid()}
    marked = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if environment.get(RUN_MARK) == RUN:
                mine.add(process.pid)
            fabric = environment.get(ENVIRONMENT_MARK)
            if fabric and process.status() != psutil.STATUS_ZOMBIE:
                marked.append((fabric, f"process {process.pid} ({' '.join(process.cmdline())[:60]})"))
    return mine, marked


def _is_ours(name: str, mine: set[int], foreign: set[str]) -> bool:
    doctor = re.match(r"tbdoc(\d+)", name)
    if doctor:
        return int(doctor[1]) in mine or not psutil.pid_exists(int(doctor[1]))
    return OURS.fullmatch(name) is not None and not any(name.startswith(f"tb{owner}") for owner in foreign)
