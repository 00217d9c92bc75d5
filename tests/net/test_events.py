"""A scenario's events on a real network: they come when planned, do what they say, and all is as before after them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from testbed.net.fabric.faults import HEALTHY, Condition, Faults
from testbed.net.fabric.network import Fabric
from testbed.net.links.packet_sockets import measure_one_way_delays
from testbed.spec.topology import load_topology
from tests.net.runs import ROOT, SMALLER, run_testbed, write_scenario

pytestmark = [pytest.mark.net, pytest.mark.quiet]

EVENTS = """
events:
  - {at: 100 ms, action: link_down, target: north-south-0, for: 300 ms}
  - {at: 600 ms, action: degrade, target: south-coast-0, set: {delay: 30 ms}, for: 300 ms}
  - {at: 700 ms, action: host_pause, target: north1, for: 150 ms}
"""


def test_events_come_in_every_variant_and_the_network_is_whole_again(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, trials=6)
    scenario.write_text(scenario.read_text() + EVENTS)
    done = run_testbed("run", scenario, "--output", tmp_path / "out", "--json", *SMALLER)
    assert done.returncode in (0, 3), done.stderr  # a busy machine may make it untrusted
    summary = json.loads(done.stdout)
    log = [json.loads(line) for line in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    for variant in summary["variants"]:
        own = [entry for entry in log if entry["variant"] == variant["name"]]
        assert [(entry["action"], entry["begins"]) for entry in own] == [
            ("link_down", True),
            ("link_down", False),
            ("degrade", True),
            ("host_pause", True),
            ("host_pause", False),
            ("degrade", False),
        ]
        assert all(0 <= entry["actual_s"] - entry["planned_s"] < 0.5 for entry in own)
        assert (variant["events"]["planned"], variant["events"]["came"]) == (6, 6)
        invariants = {entry["name"]: entry for entry in variant["verdict"]["invariants"]}
        assert invariants["settings_in_force"]["ok"], invariants["settings_in_force"]
        assert "north-south-0, south-coast-0" in invariants["conservation"]["sentence"]
        begin_s, end_s = (entry["time_s"] for entry in own[:2])
        carried = {
            line["bytes"]
            for line in map(json.loads, (tmp_path / "out/links.jsonl").read_text().splitlines())
            if (line["a"], line["b"], line["direction"]) == ("north", "south", "a_to_b")
            and begin_s <= line["time_s"] <= end_s - 0.05  # the event is noted when it has come about
        }
        assert len(carried) == 1, carried
    assert "link_down north-south-0 begins" in (tmp_path / "out/report.html").read_text()


def test_a_planned_death_ends_the_run_and_says_how_soon_the_others_noticed(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path, trials=100)
    scenario.write_text(scenario.read_text() + "events: [{at: 200 ms, action: rank_kill, target: 4}]\n")
    done = run_testbed("run", scenario, "--output", tmp_path / "out")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert re.search(r"as the scenario planned, a rank was killed; \d+ others noticed, .* ms later:", said), (
        said
    )
    assert re.search(r"rank 4 on south3: its process \d+ was killed by signal 9", said)
    assert not (tmp_path / "out").exists()


def test_conditions_follow_each_other_and_end_where_they_began() -> None:
    topology = load_topology(ROOT / "topologies" / "three-buildings.yaml").resolve()
    with Fabric(topology) as fabric:
        pids, hosts = fabric.state.pids, {host.name: host for host in topology.hosts}

        def passes(source: str, target: str) -> bool:
            ends = [(pids[name], hosts[name].ip) for name in (source, target)]
            return bool(measure_one_way_delays(ends[0], ends[1], 2))

        faults = Faults(fabric)
        assert passes("north1", "south1")
        faults.apply(Condition(links_down=frozenset({"north-south-0"})))
        assert not passes("north1", "south1")
        assert passes("south1", "coast1")
        faults.apply(Condition(switches_down=frozenset({"coast-edge"})))
        assert passes("north1", "south1")
        assert not passes("south1", "coast1")
        assert passes("north1", "north2")
        faults.apply(Condition(switches_down=frozenset({"north-leaf"})))
        assert passes("south1", "coast1")
        assert not passes("north1", "north2")
        faults.apply(HEALTHY)
        for source, target in (("north1", "south1"), ("south1", "coast1"), ("north1", "north2")):
            assert passes(source, target), (source, target)
        assert fabric.changed_settings() is None
        assert fabric.failure() is None
