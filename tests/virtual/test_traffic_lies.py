"""Lies planted inside a guest: others' traffic, a rank that stands still, a switch that loses frames or slows down."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.virtual.conftest import REPOSITORY, ordinary_user, variants_of
from tests.virtual.traffic_lies_inside import DATAGRAM_BYTES, DATAGRAMS, STILL_S

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]

SCENARIO = """\
name: small
topology:
  name: pair
  mtu: 9000
  buildings:
    east: {hosts: 3, nic: {rate: 1 Gbit/s}}
    west: {hosts: 3, nic: {rate: 1 Gbit/s}}
  wan:
    - {a: east, b: west, rate: 400 Mbit/s, delay: 1 ms, queue: 4 MB}
hosts: [east1, east2, west1, west2]
workload: {collectives: [{collective: all_reduce, size: 2 MiB}], compute: 200 ms}
algorithms: [ring]
transport: {congestion_control: reno}
trials: 2
warmup: 1
scale: {size_scale: 1}
"""


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, dict[str, Any]]]:
    """The invariants of one run into which all lies were planted, by name."""
    with ordinary_user() as person:
        (person.home / "small.yaml").write_text(SCENARIO)
        output = person.home / "told"
        output.mkdir()
        output.chmod(0o777)
        done = person.call(
            *("virtual", "exec", "--writable", str(output), "--"),
            *(
                "env",
                f"PYTHONPATH={REPOSITORY}",
                sys.executable,
                str(REPOSITORY / "tests/virtual/traffic_lies_inside.py"),
            ),
            *(str(person.home / "small.yaml"), str(output / "run")),
        )
        assert done.returncode == 3, done.stderr[-3000:]
        (variant,) = variants_of(output / "run").values()
        assert variant["verdict"]["status"] == "untrusted"
        yield {row["name"]: row for row in variant["verdict"]["invariants"]}


def test_traffic_of_others_is_named_with_hosts_and_bytes(told: dict[str, dict[str, Any]]) -> None:
    found = told["no_foreign_traffic"]
    assert found["ok"] is False
    one = DATAGRAM_BYTES + 8 + 20 + 14
    sent, received = DATAGRAMS * one, 2 * DATAGRAMS * one
    assert f"east1 sent {DATAGRAMS} packets, about {sent} bytes ({DATAGRAMS} UDP)" in found["sentence"]
    assert f"east3 sent {DATAGRAMS} packets, about {sent} bytes (no rank runs there)" in found["sentence"]
    assert f"west1 received {2 * DATAGRAMS} packets, about {received} bytes" in found["sentence"]


def test_a_rank_that_stood_still_is_named_with_how_long(told: dict[str, dict[str, Any]]) -> None:
    found = told["ranks_awake"]
    assert found["ok"] is False
    assert "Rank 3 on west2 stalled in trial 0" in found["sentence"]
    least_ms, _, most_ms = found["sentence"].split(" for ")[1].split(" ms")[0].partition(" to ")
    assert float(least_ms) <= STILL_S * 1e3 <= float(most_ms) + 0.1


def test_a_switch_that_loses_frames_is_named_with_its_port(told: dict[str, dict[str, Any]]) -> None:
    found = told["conservation_in_buildings"]
    assert found["ok"] is False
    assert "at switch west-leaf (dropped by a queueing discipline on uplink)" in found["sentence"]


def test_a_network_that_changed_is_told_from_what_it_was(told: dict[str, dict[str, Any]]) -> None:
    """A delay within a building, where no probe goes."""
    found = told["network_as_before"]
    assert found["ok"] is False
    assert "something has changed meanwhile" in found["sentence"]
    assert told["model_agreement"]["ok"] is True


def test_what_nobody_lied_about_holds(told: dict[str, dict[str, Any]]) -> None:
    wrong = {name for name, row in told.items() if row["ok"] is False}
    named = {"no_foreign_traffic", "ranks_awake", "conservation_in_buildings", "network_as_before"}
    assert wrong == {*named, "nothing_changed", "settings_in_force"}
