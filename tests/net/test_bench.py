"""`testbed bench` on emulated links: every algorithm right over TCP, with the bytes that its plan says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.comm.collectives import collective_of, traffic
from tests.net.runs import ROOT, command, run_testbed

pytestmark = pytest.mark.net

TOPOLOGY = ROOT / "topologies" / "three-buildings.yaml"
GROUPS = [0, 0, 1, 1, 1, 2]


def bench(folder: Path, collective: str, *options: object) -> list[dict[str, Any]]:
    """Rows of a small benchmark on real links."""
    file = folder / f"{collective}.json"
    common = (
        "-t",
        TOPOLOGY,
        "--size-scale",
        1,
        "-b",
        "1000",
        "-e",
        "100K",
        "-f",
        100,
        "-n",
        1,
        "-w",
        1,
        "-J",
        file,
    )
    done = run_testbed("bench", collective, *common, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("transport", ["tcp", "striped"])
def test_every_algorithm_over_real_links(tmp_path: Path, collective: str, transport: str) -> None:
    rows = bench(tmp_path, collective, "-a", "all", "--transport", transport, "-d", "bfloat16")
    assert {row["algorithm"] for row in rows} == set(collective_of(collective).algorithms)
    for row in rows:
        assert row["wrong"] == 0
        part = row["count"] if collective == "all_reduce" else row["count"] // 6
        assert row["sent_bytes"] == sum(traffic(collective, row["algorithm"], part, 2, GROUPS).values())
        assert 0 < row["of_limit"] <= 1.05


@pytest.mark.parametrize("protocol", ["rendezvous", "staged"])
def test_every_protocol_over_real_links(tmp_path: Path, protocol: str) -> None:
    rows = bench(tmp_path, "all_to_all_v", "-a", "all", "--protocol", protocol)
    sent: dict[str, int] = {}
    for row in rows:
        assert row["wrong"] == 0
        sent[row["algorithm"]] = sent.get(row["algorithm"], 0) + row["sent_bytes"]
    assert sent.keys() == {"late_counts", "late_counts_at_once", "padded", "told_counts"}
    assert sent["told_counts"] < sent["late_counts"] < 0.7 * sent["padded"]
    assert sent["late_counts_at_once"] == sent["late_counts"]
    assert all(row["wrong"] == 0 for row in bench(tmp_path, "sendrecv", "--protocol", protocol))


def test_a_tuning_table_is_made_and_gone_by(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    bench(tmp_path, "all_reduce", "--tune", table, "-a", "ring")
    assert json.loads(table.read_text())["entries"] == [
        {"collective": "all_reduce", "ranks": 6, "buildings": 3, "max_bytes": None, "algorithm": "ring"}
    ]
    rows = bench(tmp_path, "all_reduce", "--tuning", table)
    assert [(row["algorithm"], row["chosen"]) for row in rows] == [("auto", "ring")] * len(rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_reduse",), "COLLECTIVE: got all_reduse, expected all_reduce"),
        (("all_gather", "-a", "tree"), "--algorithm: got tree, expected auto, ring"),
        (("all_reduce", "-b", "0"), "--minbytes: got '0', expected a size above 0"),
        (("all_reduce", "-b", "1M", "-e", "1K"), "--maxbytes: got 1K, expected at least 1M"),
        (("all_reduce", "--ranks", "9", "-t", TOPOLOGY), "--ranks: got 9, expected 2 to 6"),
        (
            ("sendrecv", "--tune", "x.json"),
            "--tune: got sendrecv, expected a collective with several algorithms",
        ),
        (("all_reduce", "--tuning", "/nonexistent"), "--tuning: got /nonexistent, expected No such file"),
    ],
)
def test_bad_input_is_named(arguments: tuple[object, ...], words: str) -> None:
    done = run_testbed("bench", *arguments)
    assert done.returncode == 2
    assert words in done.stderr.replace("\n", " ")


def test_on_loopback_an_ordinary_user_may_measure() -> None:
    done = subprocess.run(
        [
            *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
            *command("bench", "all_reduce", "-b", 1000, "-e", 1000, "-n", 1, "-w", 0),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={**os.environ, "HOME": "/tmp", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "wrong elements: 0" in done.stdout
