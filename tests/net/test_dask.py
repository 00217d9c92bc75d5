"""A sweep by Dask's workers in two namespaces: one dies meanwhile, nothing is lost; one that is unlike is refused."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.cli.experiments import sweep
from testbed.measure.execution.identity import worker_identity
from testbed.measure.execution.progress import Progress
from testbed.measure.results.sweep_result import Sweep
from testbed.net.links.netns import command_in_namespace, run_script
from testbed.prediction.executors import ExecutorError, Processes, WorkStopped
from testbed.prediction.executors.dask_cluster import Cluster
from testbed.spec.sweep_axes import parse_axes
from tests.net.namespaces import namespaces
from tests.unit.cli.test_sweeps import BARE

distributed = pytest.importorskip("distributed")
pytestmark = [pytest.mark.net, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
HEAD = "10.213.7.1"
WAIT_S = 120.0  # for workers to come, on a machine that is busy


def worker(pid: int, address: str, scheduler: str) -> subprocess.Popen[bytes]:
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", address]
    command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command_in_namespace(pid, command),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def two_workers() -> Iterator[tuple[Any, list[subprocess.Popen[bytes]]]]:
    """A client of a scheduler in a third namespace's bridge: this process joins through a cable into it."""
    # not called as fabrics' are: tests that run beside this one take those for left behind
    bridge = f"dask{os.getpid() % 100000}"
    with contextlib.ExitStack() as stack:
        places = stack.enter_context(namespaces(2))
        stack.callback(run_script, None, [f"ip link del {bridge}"])
        run_script(
            None,
            [
                f"ip link add {bridge} type bridge",
                f"ip addr add {HEAD}/24 dev {bridge}",
                f"ip link set {bridge} up",
            ],
        )
        for number, place in enumerate(places):
            port = f"{bridge}{'ab'[number]}"
            run_script(None, [f"ip link add {port} type veth peer name eth0 netns {place.pid}"])
            run_script(None, [f"ip link set {port} master {bridge} up"])
            run_script(
                place.pid,
                [
                    "ip link set lo up",
                    f"ip addr add 10.213.7.{number + 2}/24 dev eth0",
                    "ip link set eth0 up",
                ],
            )
        cluster = stack.enter_context(
            distributed.LocalCluster(n_workers=0, host=HEAD, dashboard_address=None, silence_logs=50)
        )
        client = stack.enter_context(distributed.Client(cluster))
        workers = [
            worker(place.pid, f"10.213.7.{number + 2}", cluster.scheduler_address)
            for number, place in enumerate(places)
        ]
        for one in workers:
            stack.callback(ended, one)
        client.wait_for_workers(2, timeout=WAIT_S)
        yield client, workers


def ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def swept(folder: Path, engine: Any, told: Any = lambda *_: None) -> Sweep:
    request = sweep.SweepRequest(
        BARE, (), parse_axes(["topology.wan.0.delay=1ms..40ms:log:8"]), folder, engine=engine
    )
    listener = Progress()
    return sweep.sweep(sweep.plan_sweep(request), told, listener)


def test_a_worker_that_dies_loses_nothing(two_workers: Any, tmp_path: Path) -> None:
    client, workers = two_workers
    where = set(client.run(network_of_this_process).values())
    assert len(where) == 2
    assert os.stat("/proc/self/ns/net").st_ino not in where
    engine = Cluster(client, "here", worker_identity)
    engine.check()
    assert engine.words == "2 workers of Dask at here"
    told: list[int] = []

    def kill_one(done: int, total: int, words: str) -> None:
        told.append(done)
        if done == 3:
            workers[0].kill()

    found = swept(tmp_path / "cluster", engine, kill_one)
    assert told == list(range(9))
    assert found.points == swept(tmp_path / "here", Processes()).points
    deadline_s = time.monotonic() + 30
    while engine.at_once > 1 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert engine.words == "1 worker of Dask at here"


def test_a_worker_that_is_unlike_is_refused_by_name(two_workers: Any, tmp_path: Path) -> None:
    client, _ = two_workers
    engine = Cluster(client, "here", by_namespace)
    with pytest.raises(
        ExecutorError, match=r"worker tcp://10\.213\.7\.3:\d+: network \d+, expected \d+"
    ) as caught:
        engine.check()
    assert "the same testbed, Python, calibration and kernel" in str(caught.value)
    # also where nobody looked first
    with pytest.raises(ExecutorError, match="joined later differs from this machine"):
        swept(tmp_path / "out", engine)


def test_what_is_stopped_ends_for_whoever_waits(two_workers: Any, tmp_path: Path) -> None:
    client, _ = two_workers
    engine = Cluster(client, "here", worker_identity)
    with pytest.raises(WorkStopped, match="stopped"):
        swept(tmp_path / "out", engine, lambda done, total, words: engine.stop() if done == 2 else None)
    assert len((tmp_path / "out" / "predicted.jsonl").read_text().splitlines()) == 2


def network_of_this_process() -> int:
    return os.stat("/proc/self/ns/net").st_ino


def by_namespace() -> dict[str, str]:
    """What no two of these processes have alike."""
    return {"network": str(network_of_this_process())}
