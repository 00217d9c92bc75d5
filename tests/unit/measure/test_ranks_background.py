"""Other jobs' traffic: where it goes, that it goes, that it ends when told; and what people are told about mistakes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from testbed.documents import rebuild
from testbed.measure.ranks.process import BackgroundTraffic, stop_background
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import load_scenario
from testbed.spec.topology import load_topology
from testbed.workload.job.endpoint_resolution import background_hosts
from testbed.workload.job.endpoints import BackgroundHost

REPOSITORY = Path(__file__).parents[3]
SHARED = REPOSITORY / "topologies" / "two-buildings-shared.yaml"
SCENARIO = f"""\
name: noisy
topology: {SHARED}
workload: {{collectives: [{{collective: all_to_all, size: 1 GiB}}]}}
background_traffic:
  - {{name: other, hosts: [east2, west2], connections: 3, dscp: 8}}
"""


def load(folder: Path, text: str, *overrides: str) -> object:
    file = folder / "noisy.yaml"
    file.write_text(text)
    return load_scenario(file, overrides)


def test_each_host_sends_to_those_in_other_buildings(tmp_path: Path) -> None:
    scenario = load_scenario(_written(tmp_path))
    topology = load_topology(SHARED).resolve()
    specs = scenario.background_traffic
    here, there = background_hosts(specs, topology, len, "cubic", seed=4)
    assert (here.host, here.connections, here.dscp, here.namespace_pid) == ("east2", 3, 8, 5)
    assert here.targets == (there.ip,)
    assert there.targets == (here.ip,)
    again = background_hosts(specs, topology, len, "cubic", seed=4)
    assert [here, there] == again
    assert rebuild(BackgroundHost, json.loads(json.dumps(asdict(here)))) == here


def test_ranks_are_on_the_hosts_that_are_left(tmp_path: Path) -> None:
    scenario = load_scenario(_written(tmp_path))
    names = [host.name for host in scenario.rank_hosts(scenario.topology.resolve())]
    assert scenario.ranks == 8
    assert names == [f"{building}{number}" for building in ("east", "west") for number in (1, 3, 4, 5)]
    chosen = load_scenario(_written(tmp_path), ["hosts=[west5, east1]"])
    assert [host.name for host in chosen.rank_hosts(chosen.topology.resolve())] == ["west5", "east1"]
    assert chosen.ranks == 2


def _written(folder: Path) -> Path:
    file = folder / "noisy.yaml"
    file.write_text(SCENARIO)
    return file


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "[east2, west2]",
            "[east2, wset2]",
            "background_traffic.0.hosts.1: got 'wset2', expected a host: east1, east2, east3, east4, east5, west1, "
            "west2, west3, west4, west5; did you mean west2?",
        ),
        (
            "[east2, west2]",
            "[east2, east3]",
            "background_traffic.0.hosts: got [east2, east3], expected hosts in two buildings or more",
        ),
        (
            "[east2, west2]",
            "[east2, east2, west2]",
            "background_traffic.0.hosts.1: got east2, which already has a rank or background traffic, "
            "expected an unused host",
        ),
        (
            "background_traffic:",
            "hosts: [east1, east1]\nbackground_traffic:",
            "hosts.1: got east1 again, expected each host once",
        ),
        (
            "background_traffic:",
            "hosts: [east2, west1]\nbackground_traffic:",
            "background_traffic.0.hosts.0: got east2, which already has a rank or background traffic, "
            "expected an unused host",
        ),
        (
            "background_traffic:",
            "ranks: 9\nbackground_traffic:",
            "ranks: got 9, expected at most 8, one on each host of the topology",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in SCENARIO
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, SCENARIO.replace(old, new, 1))
    (line,) = str(caught.value).splitlines()
    assert line.split(": ", 1)[1] == problem


def test_the_old_key_says_what_to_write_in_its_place(tmp_path: Path) -> None:
    renamed = "got a key that was renamed, expected `background_traffic`, which takes the same"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, SCENARIO.replace("background_traffic:", "neighbours:"))
    assert f"neighbours: {renamed}" in str(caught.value)
    variants = "variants: {alone: {neighbours: []}, shared: {}}\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, SCENARIO + variants)
    (line,) = str(caught.value).splitlines()
    assert line.split(": ", 1)[1] == f"variants.alone.neighbours: {renamed}"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, SCENARIO, "neighbours.0.connections=3")
    assert renamed in str(caught.value)


def _be(place: BackgroundHost, pipe: Connection) -> None:
    pipe.send(BackgroundTraffic(place).run())


def test_traffic_goes_both_ways_until_the_end() -> None:
    addresses = "127.0.0.21", "127.0.0.22"
    pipes, processes = [], []
    context = multiprocessing.get_context("fork")
    for number, (here, there) in enumerate((addresses, addresses[::-1])):
        place = BackgroundHost("other", f"host{number}", here, 0, (there,), 2, 8, "cubic", 58_000)
        mine, its = context.Pipe()
        process = context.Process(target=_be, args=(place, its), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    try:
        time.sleep(0.5)
        stop_background([process.pid for process in processes if process.pid])
        for pipe in pipes:
            assert pipe.poll(5), "it did not end"
        found = [pipe.recv() for pipe in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert [entry["host"] for entry in found] == ["host0", "host1"]
    assert all(entry["received_bytes"] > 1_000_000 for entry in found)
    assert all(0.2 < entry["time_s"] < 5 for entry in found)


def test_telling_one_that_has_gone_is_harmless() -> None:
    process = multiprocessing.get_context("fork").Process(target=os.getpid)
    process.start()
    process.join()
    assert process.pid is not None
    stop_background([process.pid])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
