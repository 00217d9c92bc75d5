"""`testbed bootstrap` on emulated links: several ranks to a host find each other, as the closed form counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.prediction.startup_cost import connections_of
from tests.net.runs import ROOT, run_testbed

pytestmark = pytest.mark.net

TOPOLOGY = ROOT / "topologies" / "three-buildings.yaml"


def test_a_job_of_many_ranks_starts_on_few_hosts(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = (
        "--ranks",
        24,
        "--groups",
        "tensor=4",
        "--way",
        "baseline,scalable",
        "--costs",
        "none",
        "-J",
        file,
    )
    done = run_testbed("bootstrap", TOPOLOGY, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    eager, lazy = json.loads(file.read_text())["rows"]
    assert eager["sockets"] == sum(connections_of(size, eager=True) for size in (24, 4, 6))
    assert lazy["sockets"] == sum(connections_of(size, eager=False) for size in (24, 4, 6))
    assert eager["bytes_sent"] == eager["predicted"]["master_bytes"]
    # the far end is some 10 ms away, so a call and its answer take 40
    assert min(row["time_s"] for row in (eager, lazy)) > 0.02
    assert "scalable" in done.stdout
