"""`testbed launch`: programs of others as ranks on an emulated network, and nothing of them left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.net.runs import ROOT, command, run_testbed

pytestmark = pytest.mark.net

TOPOLOGY = ROOT / "topologies" / "three-buildings.yaml"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
needs_peers = pytest.mark.skipif(
    not PEERS.exists(), reason="there is no .venv-peers: tools/bootstrap peers could not make it"
)

SHOW = """
import os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
print(*(os.environ[name] for name in names), sorted(name for _, name in socket.if_nameindex()))
print("whispered", file=sys.stderr)
sys.exit(3 if os.environ["RANK"] == "2" and len(sys.argv) > 1 else 0)
"""

BOTH = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.full((300_000,), float(rank + 1))
dist.all_reduce(tensor)
assert tensor.eq(size * (size + 1) / 2).all()
gathered = [torch.zeros(3) for _ in range(size)]
dist.all_gather(gathered, torch.full((3,), float(rank)))
assert [int(part[0]) for part in gathered] == list(range(size))
print("gloo is right")
group = dist.new_group(backend="testbed")
large = torch.full((300_000,), float(rank + 1))
dist.all_reduce(large, group=group)
assert large.eq(size * (size + 1) / 2).all()
dist.barrier(group=group)
began_s = time.monotonic()
dist.all_reduce(large, group=group)
# at 200 Mbit/s; by the machine's memory it would be a few milliseconds
assert time.monotonic() - began_s > 2 * 8 * 4 * 300_000 * (size - 1) / size / 200e6 / 2
print("the testbed is right")
dist.destroy_process_group()
"""

MPI = """
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
total = np.empty(300_000)
world.Allreduce(np.full(300_000, world.rank + 1.0), total)
assert (total == world.size * (world.size + 1) / 2).all()
assert world.allgather(world.rank) == list(range(world.size))
world.Barrier()
begun_s = MPI.Wtime()
world.Allreduce(MPI.IN_PLACE, total)
took_s = MPI.Wtime() - begun_s
# at 200 Mbit/s; through shared memory it would be a few milliseconds
assert took_s > 2 * 8 * total.nbytes * (world.size - 1) / world.size / 200e6 / 2, took_s
print("mpi is right")
"""


def eventually(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(0.05)


def launch(*arguments: object, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    return run_testbed("launch", "-t", TOPOLOGY, "--size-scale", 1, *arguments, timeout_s=timeout_s)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return sorted(done.stdout.splitlines())


def test_every_rank_is_in_its_host_and_knows_the_job() -> None:
    done = launch("--", sys.executable, "-c", SHOW)
    assert done.returncode == 0, done.stderr
    assert lines(done) == [f"[{rank}] {rank} 0 6 1 10.0.0.1 eth0 ['eth0', 'lo']" for rank in range(6)]
    assert all(f"[{rank}] whispered" in done.stderr for rank in range(6))


def test_the_exit_status_is_the_worst() -> None:
    done = launch("--ranks", 3, "--", sys.executable, "-c", SHOW, "fail")
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 3


def test_when_one_fails_the_others_are_stopped_with_all_they_started(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/$RANK; [ $RANK != 1 ] || kill -ABRT $$; sleep 1000 & wait; sleep 1000"
    begun_s = time.monotonic()
    done = launch("--ranks", 3, "--", "bash", "-c", script)
    assert done.returncode == 128 + signal.SIGABRT
    assert time.monotonic() - begun_s < 30
    assert not sleeping()


def sleeping() -> list[int]:
    """Processes of these tests' own kind, told by their odd argument."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline() == ["sleep", "1000"]:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.quiet)]
)
def test_an_interrupted_launch_leaves_nothing(number: signal.Signals) -> None:
    process = subprocess.Popen(
        command("launch", "-t", TOPOLOGY, "--size-scale", 1, "--", "sleep", "1000"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: len(sleeping()) == 6, 60, "six ranks sleep")
        process.send_signal(number)
        status = process.wait(30)
        assert status == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    finally:
        process.kill()
        process.communicate()
    eventually(lambda: not sleeping(), 10, "the ranks are gone")
    if number == signal.SIGKILL:
        assert run_testbed("clean").returncode == 0


@needs_peers
def test_an_unmodified_pytorch_program_runs_on_gloo_and_on_our_backend_over_the_network() -> None:
    done = launch("--transport", "striped", "--", PEERS, "-c", BOTH)
    assert done.returncode == 0, done.stderr
    said = [f"[{rank}] {who} is right" for rank in range(6) for who in ("gloo", "the testbed")]
    assert lines(done) == said


@needs_peers
def test_an_unmodified_mpi_program_runs_over_the_network() -> None:
    done = launch("--", PEERS, "-c", MPI)
    assert done.returncode == 0, done.stderr
    assert lines(done) == [f"[{rank}] mpi is right" for rank in range(6)]


def test_without_a_topology_ranks_are_on_loopback_and_need_no_root() -> None:
    script = SHOW.replace("sorted(name for _, name in socket.if_nameindex())", "os.getuid()")
    environment = {**os.environ, "HOME": "/tmp"}
    done = subprocess.run(
        [
            *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
            *command("launch", "--ranks", 3, "--", "/usr/bin/python3", "-c", script),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert lines(done) == [f"[{rank}] {rank} {rank} 3 3 127.0.0.1 lo 65534" for rank in range(3)]


def test_a_command_that_there_is_not_is_refused() -> None:
    done = launch("--", "no-such-program")
    assert done.returncode == 2
    assert "COMMAND: got no-such-program, expected an executable program" in done.stderr
    done = launch("--ranks", 7, "--", "true")
    assert done.returncode == 2
    assert "--ranks: got 7, expected 1 to 6, the number of hosts" in done.stderr
