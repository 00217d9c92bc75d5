"""Datagrams over emulated links that lose packets: sums are right, and the run tells what was sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.net.runs import run_testbed

pytestmark = pytest.mark.net

SCENARIO = """
name: lossy
topology:
  name: lossy
  mtu: 9000
  buildings:
    east: {{hosts: 2, nic: {{rate: 100 Mbit/s}}}}
    west: {{hosts: 2, nic: {{rate: 100 Mbit/s}}}}
  wan:
    - {{a: east, b: west, rate: 50 Mbit/s, delay: 2 ms, loss: {loss}}}
    - {{a: east, b: west, rate: 50 Mbit/s, delay: 2 ms}}
ranks: 4
workload: {{collectives: [{{collective: all_to_all, size: 8 MB, algorithm: direct}}]}}
policy: qp_aware
trials: 1
scale: {{size_scale: 1}}
transport: {{kind: datagram, datagram: {datagram}}}
"""


def run(folder: Path, datagram: str, loss: str = "2 %") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary, and what pairs across the WAN say."""
    file = folder / "lossy.yaml"
    file.write_text(SCENARIO.format(datagram=datagram, loss=loss))
    done = run_testbed("run", file, "-o", folder / "run", "--json")
    assert done.returncode in {0, 3}, done.stdout + done.stderr  # 3: the machine was too busy for its figures
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    pairs = [pair for pair in manifest["sockets"] if (pair["peer"] < 2) != (pair["rank"] < 2)]
    return json.loads(done.stdout), pairs


@pytest.mark.parametrize("recovery", ["go_back_n", "nack"])
def test_what_is_lost_is_sent_again(tmp_path: Path, recovery: str) -> None:
    summary, pairs = run(tmp_path, f"{{recovery: {recovery}}}")
    assert sum(pair["packets_resent"] for pair in pairs) > 0
    invariants = {
        entry["name"]: entry for variant in summary["variants"] for entry in variant["verdict"]["invariants"]
    }
    assert invariants["payload_correct"]["ok"]
    for name in ("no_foreign_traffic", "conservation", "wan_bytes_as_computed"):
        assert invariants[name]["ok"], invariants[name]


def test_sprayed_parity_takes_both_planes(tmp_path: Path) -> None:
    summary, pairs = run(tmp_path, "{recovery: erasure, spray: packet, paths: 2}", loss="0.5 %")
    assert sum(pair["parity_sent"] for pair in pairs) > 0
    assert sum(pair["packets_mended"] for pair in pairs) > 0
    balance = summary["variants"][0]["plane_balance"]
    # a half would be one plane alone; a pair that loses two packets in a row leaves the lossy one for a while
    assert all(entry["jain_index"] > 0.6 for entry in balance), balance
