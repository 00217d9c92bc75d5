"""Guests: what they see, what they may change, how they end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.virtual.conftest import BEHIND_OTHERS, NOBODY, SOON_S, Person

pytestmark = pytest.mark.virtual


def python(code: str) -> tuple[str, ...]:
    return ("python3", "-S", "-c", code)


def test_a_command_runs_as_root_of_a_guest_and_hands_on_streams_and_status(person: Person) -> None:
    done = person.inside("sh", "-c", "id -u; uname -n; echo oops >&2; exit 7")
    assert done.stdout.split() == ["0", "guest"]
    assert done.stderr.strip() == "oops"
    assert done.returncode == 7


def test_sleeping_takes_its_time_and_computing_none(person: Person) -> None:
    code = """
import time
began = time.monotonic_ns(); sum(range(3_000_000)); computed = time.monotonic_ns()
time.sleep(3600); slept = time.monotonic_ns()
print(computed - began, slept - computed)
"""
    began_s = time.monotonic()
    computed, slept = map(int, person.inside(*python(code)).stdout.split())
    assert computed < 100
    assert abs(slept - 3600 * 10**9) < 1000
    assert time.monotonic() - began_s < 60 * BEHIND_OTHERS


def test_to_import_takes_no_time_however_often_locks_look_at_it(person: Person) -> None:
    """Python looks ten times for each module: what a program imports must not move what comes after."""
    code = """
import threading, time
began = time.monotonic_ns()
import asyncio, decimal, email.mime.text, sqlite3, unittest.mock, xml.dom.minidom
lock = threading.Lock()
for _ in range(10_000):
    with lock: pass
print(time.monotonic_ns() - began)
"""
    assert int(person.inside(*python(code)).stdout) == 0


def test_who_spins_until_a_moment_comes_gets_there(person: Person) -> None:
    code = """
import time
end = time.monotonic_ns() + 20_000_000
while (now := time.monotonic_ns()) < end: pass
print(now - end)
"""
    assert 0 <= int(person.inside(*python(code)).stdout) <= 1000


def test_computing_takes_time_where_it_is_counted_and_spinning_does_no_harm(person: Person) -> None:
    code = """
import time
began = time.monotonic(); sum(range(3_000_000)); computed = time.monotonic() - began
while time.monotonic() < began + 1: pass
print(computed)
"""
    done = person.inside(*python(code), options=("--cpu-time", "counted"))
    assert 0.005 < float(done.stdout) < 5


def test_this_machines_files_are_seen_and_only_writable_folders_change(person: Person) -> None:
    shared = person.home / "shared"
    shared.mkdir()
    os.chown(shared, *(NOBODY, NOBODY) if person.prefix else (os.getuid(), os.getgid()))
    mark = person.home / "mark"
    mark.write_text("from outside")
    script = (
        f"cat {mark}; echo changed > {mark}; echo new > /etc/made-in-a-guest; echo kept > {shared}/result"
    )
    done = person.inside("sh", "-ec", script, options=("--writable", str(shared)))
    assert (done.returncode, done.stdout) == (0, "from outside"), done.stderr
    assert mark.read_text() == "from outside"
    assert not Path("/etc/made-in-a-guest").exists()
    assert (shared / "result").read_text() == "kept\n"


def test_no_network_of_this_machine_is_reachable(person: Person) -> None:
    """Every device of the guest's is one that its kernel made up."""
    code = "import os; print(*[name for name in os.listdir('/sys/class/net')])"
    names = person.inside(*python(code)).stdout.split()
    assert "lo" in names
    code = "import os; print([n for n in os.listdir('/sys/class/net') if os.path.exists(f'/sys/class/net/{n}/device')])"
    assert person.inside(*python(code)).stdout.strip() == "[]"


def test_a_command_that_is_not_there_is_named(person: Person) -> None:
    done = person.inside("no-such-program")
    assert done.returncode == 127
    assert "no-such-program: No such file" in done.stderr


def test_memory_that_runs_out_is_said(person: Person) -> None:
    done = person.inside(*python("x = bytearray(1 << 30)"), options=("--memory", "256 MiB"))
    assert done.returncode == 1
    assert "ran out of memory (256 MiB)" in done.stderr or "MemoryError" in done.stderr
    assert person.inside("true", options=("--memory", "10 MiB")).stderr.startswith(
        "error: memory: got 10 MiB"
    )


PIECES = Path("/proc/sys/vm/max_map_count")


@pytest.mark.skipif(
    int(PIECES.read_text()) > 200_000,
    reason="this machine lets a process have more pieces than a test can make",
)
def test_memory_in_too_many_pieces_is_said(person: Person) -> None:
    code = """
import mmap, sys
pages = int(sys.argv[1])
memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in [*range(0, pages, 2), *range(pages - 1, 0, -2)]:  # neighbours in it are none in the guest's own memory
    memory[page * 4096] = 1
"""
    limit = PIECES.read_text().strip()
    done = person.inside(*python(code), str(int(limit) + 10_000), options=("--memory", "2 GiB"))
    assert done.returncode == 1
    assert f"has more memory maps than this machine allows ({limit})" in done.stderr
    assert "sysctl vm.max_map_count=" in done.stderr


def test_a_stalled_clock_is_recognised(person: Person) -> None:
    began_s = time.monotonic()
    done = person.inside(*python("while True: pass"), options=("--stall-timeout", "4 s"))
    assert done.returncode == 1
    assert "the virtual clock has stood still" in done.stderr
    assert "--cpu-time counted" in done.stderr
    assert time.monotonic() - began_s < 30 * BEHIND_OTHERS


def test_wall_time_can_be_limited(person: Person) -> None:
    done = person.inside("sh", "-c", "while true; do sleep 1; done", options=("--timeout", "4 s"))
    assert done.returncode == 1
    assert "not finished after 4 s of wall time" in done.stderr


def guest_kernel(process: psutil.Process) -> psutil.Process:
    """The kernel's process below a running `testbed`."""
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        for child in process.children(recursive=True):
            if "linux" in child.name():
                return child
        time.sleep(0.05)
    pytest.fail("no guest was started")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_guest_leaves_nothing(number: int, person: Person) -> None:
    running = person.start("virtual", "exec", "--", "sh", "-c", "while true; do sleep 1; done")
    guest_kernel(psutil.Process(running.pid))
    time.sleep(1)
    running.send_signal(number)
    running.communicate(timeout=SOON_S)
    assert running.returncode == 128 + number


def test_a_killed_kernel_is_said(person: Person) -> None:
    running = person.start(
        "virtual", "exec", "--no-open-vswitch", "--", "sh", "-c", "while :; do sleep 1; done"
    )
    kernel = guest_kernel(psutil.Process(running.pid))
    time.sleep(1)
    kernel.kill()
    _, said = running.communicate(timeout=SOON_S)
    assert running.returncode == 1
    assert "killed by signal 9" in said


def test_a_killed_command_takes_its_guest_along_and_the_next_one_sweeps_up(person: Person) -> None:
    running = person.start("virtual", "exec", "--no-open-vswitch", "--", "sleep", "1000000")
    time.sleep(1.5)
    processes = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    running.communicate(timeout=SOON_S)
    _, alive = psutil.wait_procs(processes, timeout=SOON_S)
    assert not alive
    assert person.inside("true").returncode == 0


def test_the_same_seed_gives_the_same_randomness_and_another_one_other(person: Person) -> None:
    code = "import os, json; print(json.dumps([os.urandom(8).hex(), hash('x'), id(object())]))"
    runs = [
        json.loads(person.inside("python3", "-S", "-c", code, options=("--seed", seed)).stdout)
        for seed in ("1", "1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]


def test_without_a_kernel_the_one_command_is_named(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_KERNELS", str(person.home / "none"))
    done = person.inside("true")
    assert done.returncode == 1
    assert "make virtual" in done.stderr
