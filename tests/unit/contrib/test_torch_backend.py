"""PyTorch's programs over the backend `testbed`, as ranks on this machine's loopback: every operation, and training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.dumps import read_evidence
from testbed.measure.diagnosis.verdicts import CRASHED, RANK_NOT_JOINED

ROOT = Path(__file__).parents[3]
PEERS = ROOT / ".venv-peers" / "bin" / "python"
OPERATIONS, TRAIN = ROOT / "tests" / "torch_operations.py", ROOT / "benchmarks" / "training" / "train.py"
PARTS = ["reductions", "copies", "exchanges", "several", "groups", "hooks", "as_gloo", "complaints"]

pytestmark = pytest.mark.skipif(
    not PEERS.exists(), reason="there is no .venv-peers: tools/bootstrap peers could not make it"
)


def launch(ranks: int, *arguments: object) -> list[str]:
    """What rank 0 has said."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "testbed",
            "launch",
            "--ranks",
            str(ranks),
            "--",
            *map(str, (PEERS, *arguments)),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.removeprefix("[0] ") for line in done.stdout.splitlines() if line.startswith("[0] ")]


def test_every_operation_is_right_and_what_cannot_be_done_is_said() -> None:
    assert launch(3, OPERATIONS) == [*PARTS, "accelerators_time"]


def trained(ranks: int) -> dict[str, list[dict[str, Any]]]:
    """By way, what came out with gloo and with the testbed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in launch(ranks, TRAIN, "--backend", "gloo", "--backend", "testbed", "--steps", 3):
        record = json.loads(line)
        found.setdefault(record["way"], []).append(record)
    return found


@pytest.mark.thorough
def test_two_ranks_train_bit_for_bit_as_with_gloo_in_every_way() -> None:
    found = trained(2)
    assert len(found) == 7
    for gloo, ours in found.values():
        assert (gloo["backend"], ours["backend"]) == ("gloo", "testbed")
        assert ours["losses"] == gloo["losses"]
        assert ours["weights"] == gloo["weights"]


@pytest.mark.thorough
def test_four_ranks_add_in_another_order_and_come_to_the_same() -> None:
    for gloo, ours in trained(4).values():
        assert ours["losses"] == pytest.approx(
            gloo["losses"], rel=1e-5 if "bf16" not in gloo["way"] else 0.02
        )


ABSENT = """
import sys, time, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("testbed")
hurried = dist.new_group(timeout=timedelta(seconds=1))
dist.all_reduce(torch.ones(1000), group=hurried)
if dist.get_rank() == 1:
    if len(sys.argv) > 1:
        raise ValueError("no such batch")
    time.sleep(60)
dist.all_reduce(torch.ones(1000), group=hurried)
"""


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ([], RANK_NOT_JOINED, "rank 0 waits in all_reduce #2 of"),
        pytest.param(
            ["x"], CRASHED, "ended with status 1: ValueError: no such batch", marks=pytest.mark.thorough
        ),
    ],
)
def test_who_keeps_the_others_waiting_is_named(
    arguments: list[str], kind: str, said: str, tmp_path: Path
) -> None:
    script, output = tmp_path / "train.py", tmp_path / "failed"
    script.write_text(ABSENT)
    words = ["-m", "testbed", "launch", "--ranks", "3", "--output", str(output)]
    command = [sys.executable, *words, "--", str(PEERS), str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    assert f"flight recorder dumps are kept; to analyse them: testbed diagnose {output}" in done.stderr
    (evidence,) = read_evidence(output)
    found = diagnose(evidence.dumps, evidence.paths).verdicts[0]
    assert (found.kind, found.ranks) == (kind, (1,))
    assert any(said in line for line in found.evidence), found.evidence
