"""Variants of one scenario under the virtual clock: each in its own network, with what it says of hosts in force."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.virtual.conftest import finished_run, variants_of

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(600)]

SCENARIO = """\
name: small
topology:
  name: pair
  mtu: 1500
  buildings:
    east: {hosts: 3, nic: {rate: 10 Gbit/s}, region: here}
    west: {hosts: 3, nic: {rate: 10 Gbit/s}, region: there}
  wan:
    - {a: east, b: west, planes: 2, rate: 400 Mbit/s, delay: 1 ms}
hosts: [east1, east2, west1, west2]
workload: {collectives: [{collective: all_to_all_v, size: 4 MiB}]}
policy: qp_aware
transport:
  sockets:
    - {distance: other_region, congestion_control: bbr, buffers: bdp}
variants:
  plain: {transport.sockets: []}
  tuned: {}
  paced: {policy: te, transport.sockets: [{pacing: planned}]}
  many: {transport.kind: mptcp, transport.subflows: 2, transport.sockets: []}
  noisy:
    policy: te
    transport.sockets: [{pacing: planned}]
    background_traffic: [{name: other, hosts: [east3, west3], connections: 2}]
trials: 1
warmup: 3  # the background traffic is there by then
telemetry: {interval: 5 ms, capture: [east-west-0]}
scale: {size_scale: 1}
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with finished_run(SCENARIO) as folder:
        yield folder


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def crossing(folder: Path, variant: str) -> list[dict[str, Any]]:
    """What the manifest says of a variant's connections between the buildings."""
    manifest = json.loads((folder / "manifest.json").read_text())
    far = [entry for entry in manifest["sockets"] if (entry["rank"] < 2) != (entry["peer"] < 2)]
    found = [entry for entry in far if entry["variant"] == variant]
    assert len(found) == 8
    return found


def test_every_variant_is_trusted_and_moves_the_bytes_of_the_formula(folder: Path) -> None:
    for name, variant in variants_of(folder).items():
        bad = [row for row in variant["verdict"]["invariants"] if row["ok"] is False]
        assert variant["verdict"]["status"] == "trusted", (name, bad)
        assert variant["wan_bytes"]["observed"] == variant["wan_bytes"]["expected"]


def test_sockets_have_what_the_scenario_says(folder: Path) -> None:
    plain, tuned = crossing(folder, "plain"), crossing(folder, "tuned")
    assert {entry["congestion_control"] for entry in plain} == {"cubic"}
    assert {entry["congestion_control"] for entry in tuned} == {"bbr"}
    (product,) = {entry["receive_buffer_bytes"] for entry in tuned}
    assert product == pytest.approx(4 * 4e8 / 8 * 0.002, rel=0.1)
    assert {entry["send_buffer_bytes"] for entry in tuned} == {product}
    assert all(entry["pacing_bps"] < 4.1e8 for entry in crossing(folder, "paced"))
    assert not any("pacing_bps" in entry for entry in plain)


def test_mptcp_takes_both_planes(folder: Path) -> None:
    assert {entry["subflows"] for entry in crossing(folder, "many")} == {2}
    rules = [rule for rule in lines(folder, "rules.jsonl") if rule["variant"] == "many"]
    by_hand = [rule for rule in rules if "channel 1" in rule.get("comment", "") and rule["packets"]]
    assert by_hand, "no rule for second ways has seen a packet"


def test_the_background_traffic_is_there_and_costs_a_step(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {entry["variant"] for entry in manifest["background_traffic"]} == {"noisy"}
    assert {entry["host"] for entry in manifest["background_traffic"]} == {"east3", "west3"}
    assert all(entry["received_bytes"] > 1_000_000 for entry in manifest["background_traffic"])
    found = variants_of(folder)
    # paced: bursts lose packets or not by the order of events at one instant, background traffic or none
    assert found["noisy"]["step_time_s"]["median"] > 1.1 * found["paced"]["step_time_s"]["median"]


def test_captures_of_short_runs_are_whole(folder: Path) -> None:
    captures = json.loads((folder / "manifest.json").read_text())["captures"]
    assert {entry["folder"] for entry in captures} == set(variants_of(folder))
    assert all(entry["packets"] > 100 and entry["missed"] == 0 for entry in captures), captures


def test_readings_of_sockets_are_on_the_run_s_clock(folder: Path) -> None:
    readings = lines(folder, "sockets.jsonl")
    steps = [entry for entry in lines(folder, "samples.jsonl") if entry["operation"] == "step"]
    for name, variant in variants_of(folder).items():
        spans = [(entry["start_s"], entry["end_s"]) for entry in steps if entry["variant"] == name]
        inside = [
            entry
            for entry in readings
            if entry["variant"] == name and any(start <= entry["time_s"] <= end for start, end in spans)
        ]
        assert inside, name
        rows = {(row["from"], row["to"]): row for row in variant["connections"]}
        assert set(rows) == {("east", "west"), ("west", "east")}
        assert rows["east", "west"]["rtt_s"]["min"] >= 0.002
    report = (folder / "report.html").read_text()
    assert 'Longest</th><th class="number">Retransmitted' in report
