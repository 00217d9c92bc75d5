"""The real probes on this machine: they find what is here, and leave nothing behind however they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from testbed.net.doctor import choose, probe_all
from testbed.net.doctor.sandbox import BRIDGE_PREFIX, remove_abandoned_bridges, throwaway_bridges

pytestmark = pytest.mark.net

MARK = "TESTBED_DOCTOR_TEST"
PATIENCE_S = 10.0

HOLD = """
import time
from testbed.net.doctor.sandbox import throwaway_bridges
from testbed.net.links.netns import empty_network_namespace
with empty_network_namespace(), throwaway_bridges(["system", "netdev"]) as bridges:
    print(*bridges.values(), flush=True)
    time.sleep(60)
"""
PROBE = "from testbed.net.doctor import probe_all; print('begin', flush=True); probe_all()"


def start(code: str) -> subprocess.Popen[str]:
    environment = {**os.environ, MARK: "1"}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def bridges() -> list[str]:
    return subprocess.run(["ovs-vsctl", "list-br"], capture_output=True, text=True, check=True).stdout.split()


def traces(pid: int) -> list[str]:
    """Links, bridges and processes of a doctor that ran as process `pid` (and of what it started)."""
    names = [*bridges(), *(name for _, name in socket.if_nameindex())]
    found = [name for name in names if name.startswith((f"{BRIDGE_PREFIX}{pid}s", f"{BRIDGE_PREFIX}{pid}n"))]
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {process.pid} {process.cmdline()}")
        except psutil.Error:
            continue
    return found


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (left := traces(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def test_the_probes_find_what_this_machine_has() -> None:
    began = time.monotonic()
    capabilities = probe_all()
    took_s = time.monotonic() - began
    found = {item.name: item for item in capabilities}
    assert len(found) == len(capabilities)
    for name in ("root", "programs", "mnexec", "network namespaces", "veth", "HTB", "Open vSwitch", "os-ken"):
        assert found[name].status is True, found[name]
    assert not [item for item in capabilities if "broke" in item.evidence]
    assert choose(capabilities).run_possible
    assert took_s < 10  # half a second on an idle machine
    assert not [name for name in bridges() if name.startswith(f"{BRIDGE_PREFIX}{os.getpid()}")]


def test_the_datapaths_verdicts_are_true() -> None:
    """A bridge made by hand behaves as the probe says."""
    found = {item.name: item.status for item in probe_all()}
    with throwaway_bridges(["system", "netdev"]) as names:
        for kind, name in names.items():
            exists = name in (link for _, link in socket.if_nameindex())
            assert found[f"{kind} datapath"] is exists


def test_a_finished_doctor_leaves_nothing() -> None:
    doctor = start(PROBE)
    doctor.communicate(timeout=60)
    assert doctor.returncode == 0
    assert_gone(doctor.pid)


def test_a_doctor_killed_while_everything_stands_leaves_nothing() -> None:
    doctor = start(HOLD)
    names = said(doctor)
    assert set(names) <= set(bridges())
    assert traces(doctor.pid)
    doctor.kill()
    doctor.communicate()
    assert_gone(doctor.pid)


def test_interrupting_the_whole_process_group_leaves_nothing() -> None:
    doctor = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, MARK: "1"},
        start_new_session=True,
    )
    said(doctor)
    os.killpg(doctor.pid, signal.SIGINT)
    doctor.communicate()
    assert_gone(doctor.pid)


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.06, 0.1, 0.15, 0.2])
def test_a_doctor_killed_at_any_moment_leaves_nothing(after_s: float) -> None:
    doctor = start(PROBE)
    assert said(doctor) == ["begin"]
    time.sleep(after_s)
    doctor.kill()
    doctor.communicate()
    assert_gone(doctor.pid)


def test_a_bridge_of_a_dead_probe_is_swept_and_a_living_ones_kept() -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    dead, alive = f"{BRIDGE_PREFIX}{int(gone.stdout)}n", f"{BRIDGE_PREFIX}{os.getpid()}n"
    try:
        for name in (dead, alive):
            command = ["ovs-vsctl", "add-br", name, "--", "set", "bridge", name, "datapath_type=netdev"]
            subprocess.run(command, check=True)
        remove_abandoned_bridges()
        assert dead not in bridges()
        assert alive in bridges()
    finally:
        subprocess.run(
            ["ovs-vsctl", "--if-exists", "del-br", dead, "--", "--if-exists", "del-br", alive], check=True
        )
