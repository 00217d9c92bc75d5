"""Ranks that are slow, or that do not join a collective, in runs on a real network."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

from tests.net.runs import SMALLER, run_testbed, write_scenario

pytestmark = [pytest.mark.net, pytest.mark.quiet]

TOPOLOGY = """
name: two
buildings:
  east: {hosts: 2, nic: {rate: 100 Mbit/s}}
  west: {hosts: 2, nic: {rate: 100 Mbit/s}}
wan:
  - {a: east, b: west, rate: 100 Mbit/s, delay: 1 ms}
"""
SLOW = """
events:
  - {step: 2, action: rank_slow, target: 1, factor: 3}
  - {step: 1, action: io_slow, target: 3, delay: 300 ms}
"""


def scenario(folder: Path, more: str) -> Path:
    """Three measured steps of four ranks in two buildings."""
    (folder / "two.yaml").write_text(TOPOLOGY)
    path = write_scenario(folder, trials=3, ranks=4, topology=folder / "two.yaml")
    path.write_text(path.read_text() + more)
    return path


def test_a_slow_rank_and_slow_io_take_longer_from_their_step_on(tmp_path: Path) -> None:
    done = run_testbed("run", scenario(tmp_path, SLOW), "--output", tmp_path / "out", "--json", *SMALLER)
    assert done.returncode in (0, 3), done.stderr  # a busy machine may make it untrusted
    (variant,) = json.loads(done.stdout)["variants"]
    assert (variant["events"]["planned"], variant["events"]["came"]) == (2, 2)
    invariants = {entry["name"]: entry for entry in variant["verdict"]["invariants"]}
    for name in ("payload_correct", "wan_bytes_as_computed", "conservation", "nothing_changed"):
        assert invariants[name]["ok"], invariants[name]
    lines = [json.loads(line) for line in (tmp_path / "out/samples.jsonl").read_text().splitlines()]

    def took_s(rank: int, trial: int, computes: bool) -> float:
        return mean(
            float(line["end_s"]) - float(line["start_s"])
            for line in lines
            if (line["rank"], line["trial"]) == (rank, trial)
            and line["operation"] != "step"
            and (line["operation"] not in ("all_reduce",)) == computes
        )

    usual_s = took_s(1, 0, computes=True)
    assert took_s(1, 2, computes=True) == pytest.approx(3 * usual_s, rel=0.01)
    assert took_s(2, 2, computes=True) == pytest.approx(usual_s, rel=0.01)
    assert took_s(3, 1, computes=False) > 0.3
    assert took_s(3, 1, computes=False) > took_s(3, 0, computes=False) + 0.15


def test_who_does_not_join_is_waited_for_until_the_run_ends(tmp_path: Path) -> None:
    skip = "transport: {timeout: 1 s}\nevents: [{step: 1, action: rank_skip, target: 2, operation: 2}]\n"
    done = run_testbed("run", scenario(tmp_path, skip), "--output", tmp_path / "out", *SMALLER)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "waits to receive from rank" in said
    assert "rank 2 on west1:" not in said
    assert not (tmp_path / "out").exists()
