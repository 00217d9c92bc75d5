"""Runs in a guest, each distorted in another way: `python -m tests.virtual.distortions_inside OUT [NAME...]`.

What came of each stands in OUT/distortions.json: step times, the verdict, and the invariants that did not hold. Kinds
that stand there already are not run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from testbed.errors import TestbedError
from testbed.measure.execution.event_player import EventPlayer
from testbed.measure.execution.job_run import JobRun
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.run import LocalBackend, PreparedRun, Request
from testbed.measure.execution.shard_run import ShardRun
from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.measure.results.shards import Shard, ShardRecord
from testbed.net.fabric.network import Fabric
from testbed.net.links import LinkError
from testbed.net.links.netns import run_script
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from tests.virtual.rank_lies import LIES, SOCKET_OPTIONS

SCENARIO = """
name: distorted
topology:
  name: distorted
  mtu: 9000
  buildings:
    east: {hosts: 2, nic: {rate: 1 Gbit/s}}
    west: {hosts: 2, nic: {rate: 1 Gbit/s}}
  wan:
    - {a: east, b: west, rate: 800 Mbit/s, delay: 1 ms, queue: 4 MB}
ranks: 4
workload: {collectives: [{collective: all_reduce, size: 2 MiB}], compute: 40 ms}
algorithms: [ring]
transport: {congestion_control: reno}
trials: 8
warmup: 2
scale: {size_scale: 1}
"""
DATAGRAMS = "datagrams: "  # before names of what ranks do that send datagrams
CLEAN = "clean: "  # before a scenario's file and one of its variants, with nothing wrong
REPOSITORY = Path(__file__).parents[2]
# what clean runs are made of; shipped scenarios at a size scale that makes of messages a few packets, four at least
SHAPES: dict[str, list[str]] = {
    "tests/bench/clean/collectives.yaml": [],
    "tests/bench/clean/training.yaml": [],
    **{
        f"scenarios/{name}.yaml": [f"scale.size_scale={size_scale}", "trials=3"]
        for name, size_scale in (("quickstart", 4000), ("backbone", 4000), ("crosspipe", 20000))
    },
}
SITE = """
import os, sys
if "testbed.measure.ranks.launcher" in sys.orig_argv:
    from tests.virtual.rank_lies import install
    install(os.environ["RANK_LIE"])
"""
STEP = 2  # the trial that is distorted where one is
ONE_STEP = f"@{STEP}"
NOTHING = "nothing"
AFTER_S, FOR_S = 0.045, 0.03  # of the step; what is planted is undone before its end


@dataclass(frozen=True)
class Planted:
    """What somebody does to the network while one step goes on, and how it is undone."""

    plant: Callable[[Fabric], None]
    undo: Callable[[Fabric], None]


def _script(node: str, plant: str, undo: str) -> Planted:
    def run(fabric: Fabric, command: str) -> None:
        run_script(fabric.pids[node], [command])

    return Planted(lambda fabric: run(fabric, plant), lambda fabric: run(fabric, undo))


def _daemon(signal_number: int) -> Callable[[Fabric], None]:
    def send(fabric: Fabric) -> None:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name() == "ovs-vswitchd":
                    os.kill(process.pid, signal_number)
        if signal_number == signal.SIGSTOP:
            run_script(None, ["ovs-dpctl del-flows"])

    return send


NETWORK: dict[str, Planted] = {
    "switch asleep, flows flushed": Planted(_daemon(signal.SIGSTOP), _daemon(signal.SIGCONT)),
    "delay on a leaf's port": _script(
        "east-leaf", "tc qdisc add dev uplink root netem delay 3ms", "tc qdisc del dev uplink root"
    ),
    "a neighbour forgotten": _script("east1", "ip neigh flush dev eth0", "true"),
    "a card down": _script("east1", "ip link set eth0 down", "ip link set eth0 up"),
    "path MTU forged": _script(
        "east1", "ip route add 10.1.0.0/16 dev eth0 mtu lock 600", "ip route del 10.1.0.0/16 dev eth0"
    ),
    "small initial window": _script(
        "east1",
        "sysctl -qw net.ipv4.tcp_notsent_lowat=4096",
        "sysctl -qw net.ipv4.tcp_notsent_lowat=4294967295",
    ),
}


class Planter(EventPlayer):
    """Plants one thing in one step, in the place of a scenario's events."""

    def __init__(self, fabric: Fabric, planted: Planted) -> None:
        self.fabric, self.planted = fabric, planted
        self.log: list[dict[str, Any]] = []
        self.killed_s = None
        self.refused = ""
        self._due_s: float | None = None
        self._stage = 0

    @property
    def due_s(self) -> float | None:
        return self._due_s

    def step(self, variant: str, trial: int, start_s: float) -> None:
        if trial == STEP:
            self._due_s = start_s + AFTER_S

    def play(self) -> None:
        if self._due_s is None or time.monotonic() < self._due_s:
            return
        self._stage += 1
        try:
            (self.planted.plant if self._stage == 1 else self.planted.undo)(self.fabric)
        except LinkError as error:
            self.refused = str(error)
        self._due_s = time.monotonic() + FOR_S if self._stage == 1 else None

    def finish(self) -> None:
        """Nothing is left to undo."""


class Distorted(ShardRun):
    """A shard into which something is planted."""

    planted: Planted | None = None

    def _player(self, fabric: Fabric, job: JobRun) -> EventPlayer | None:
        return Planter(fabric, self.planted) if self.planted else None


class DistortedMachine(LocalBackend):
    """Where something is planted into the only shard."""

    planted: Planted | None = None

    def _measure(
        self, shard: Shard, scenario: Scenario, scale: Scale, folder: Path, progress: Progress
    ) -> ShardRecord:
        run = Distorted(shard, scenario, self.network_backend, scale, folder, progress)
        run.planted = self.planted
        return run.measure()


def all_names() -> list[str]:
    """Nothing, then every kind: those of ranks and sockets in all steps and in one, the network's, with datagrams."""
    lies = [name for name in [*LIES, *SOCKET_OPTIONS] if name != NOTHING]
    own = [name + when for name in lies for when in ("", ONE_STEP)]
    of_datagrams = [
        *LIES,
        *(name for name, (level, *_) in SOCKET_OPTIONS.items() if level != socket.IPPROTO_TCP),
    ]
    return [NOTHING, *own, *NETWORK, *(DATAGRAMS + name for name in of_datagrams)]


def clean_names() -> list[str]:
    """Every variant of every scenario of clean runs."""
    return [
        f"{CLEAN}{file} {variant}"
        for file, settings in SHAPES.items()
        for variant in load_scenario(REPOSITORY / file, settings).variant_names
    ]


def scenario_of(name: str, file: Path) -> Scenario:
    """What runs under a name. file: of the scenario that is distorted."""
    if name.startswith(CLEAN):
        which, variant = name.removeprefix(CLEAN).split(" ")
        whole = load_scenario(REPOSITORY / which, SHAPES[which])
        if whole.variants is not None:
            return whole.variant(variant)
        return whole.model_copy(update={"algorithms": (whole.named_algorithms[variant],)})
    return load_scenario(file, ["transport={kind: datagram}"] if name.startswith(DATAGRAMS) else [])


def run_distorted(name: str, file: Path, folder: Path) -> dict[str, Any]:
    """Run the scenario, distorted so; what came of it."""
    machine = DistortedMachine(NetworkBackend("netem", "system"))
    machine.planted = NETWORK.get(name)
    honest = machine.planted is not None or name.startswith(CLEAN)
    os.environ["RANK_LIE"] = NOTHING if honest else name.removeprefix(DATAGRAMS)
    scenario = scenario_of(name, file)
    size_scale = scenario.scale.size_scale if scenario.scale else 1
    scale = Scale(size_scale if isinstance(size_scale, float | int) else 1)
    said: list[str] = []
    progress = Progress(phase=said.append, step=lambda done, total: None)
    try:
        run = PreparedRun(Request(scenario, folder), scale, machine)
        (variant,) = run.execute(progress).variants
    except (TestbedError, OSError, ValueError) as error:
        return {"status": "failed", "failed": {"the run": str(error)[:300]}, "steps_s": []}
    failed = {entry.name: entry.sentence for entry in variant.verdict.failed}
    steps_s = variant.step_time_s.samples
    predicted_s = variant.predicted.step_time_s if variant.predicted else None
    return {
        "status": variant.verdict.status,
        "failed": failed,
        "steps_s": steps_s,
        "predicted_s": predicted_s,
    }


def main() -> None:
    """Run all of them, and write down what came of each."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or all_names()
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE)
    os.environ["PYTHONPATH"] = f"{site}:{os.environ['PYTHONPATH']}"
    file = folder / "distorted.yaml"
    file.write_text(SCENARIO)
    kept = folder / "distortions.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in names:
        if name not in found:
            with tempfile.TemporaryDirectory() as scratch:
                found[name] = run_distorted(name, file, Path(scratch) / "run")
            print(name, json.dumps(found[name]), flush=True)
            kept.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
