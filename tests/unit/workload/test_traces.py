"""Execution traces: written, read back, and refused where they do not fit together."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.workload.traces.trace import Collective, Compute, JobTrace, Node, PointToPoint, TraceError

RANK_0: tuple[Node, ...] = (
    Compute("forward", duration_s=1e-3, flops=2e9, kind="forward", module="layers.0", site="train.py:7"),
    PointToPoint("activations", "send 1", (0,), peer=1, numel=10, dtype="bfloat16", sends=True),
    Collective("gradients", "data", (0,), group="dp", numel=100),
    Collective("tokens", "experts", (0,), group="dp", collective="all_to_all_v", numel=8, splits=(3, 5)),
)
RANK_1: tuple[Node, ...] = (
    PointToPoint("activations", "receive 0", peer=0, numel=10, dtype="bfloat16"),
    *RANK_0[2:],
)
TRACE = JobTrace((RANK_0, RANK_1), {"dp": (0, 1)}, "by hand", "h100")


@pytest.mark.parametrize("name", ["job.json", "job.json.gz"])
def test_a_trace_comes_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    trace = replace(TRACE, ranks=(RANK_0, (RANK_1[0], *(replace(node, after=(0,)) for node in RANK_1[1:]))))
    path = trace.write(tmp_path / name)
    assert JobTrace.read(path) == trace
    before = path.read_bytes()
    assert trace.write(path).read_bytes() == before


def test_nodes_that_are_alike_are_written_once(tmp_path: Path) -> None:
    path = replace(TRACE, ranks=(RANK_0[2:3] * 5,) * 2).write(tmp_path / "job.json")
    assert len(json.loads(path.read_text())["nodes"]) == 1


@pytest.mark.parametrize(
    ("number", "broken", "said"),
    [
        (2, {"after": (2,)}, r"rank 0: node 2 \(gradients\): after: got \[2\], expected numbers of earlier"),
        (2, {"group": "tp"}, r"node 2 \(gradients\): group: got tp, expected one that rank 0 is in"),
        (
            3,
            {"splits": (1, 2, 3)},
            r"node 3 \(tokens\): splits: got \[1, 2, 3\], expected 0 or more for each",
        ),
        (3, {"splits": (3, -3)}, r"splits: got \[3, -3\], expected 0 or more for each of 2 members"),
        (2, {"collective": "broadcast", "root": 7}, r"root: got 7, expected one of group"),
        (2, {"numel": -1}, r"numel: got -1, expected 0 or more"),
        (1, {"numel": -1}, r"node 1 \(activations\): numel: got -1"),
        (0, {"duration_s": -1.0}, r"duration_s: got -1\.0, expected 0 or more, and finite"),
        (0, {"duration_s": math.nan}, r"duration_s: got nan, expected 0 or more, and finite"),
        (0, {"flops": math.inf}, r"flops: got inf"),
        (0, {"duration_s": "1 ms"}, r"broken: nodes\[0\]\.duration_s: got '1 ms', expected float"),
        (2, {"numel": "8"}, r"broken: nodes\[2\]\.numel: got '8', expected int"),
        (1, {"peer": True}, r"nodes\[1\]\.peer: got True, expected int"),
        (0, {"stream": 3}, r"nodes\[0\]\.stream: got 3, expected str"),
        (2, {"after": ("a",)}, r"nodes\[2\]\.after: got \('a',\), expected tuple"),
        (1, {"peer": 2}, r"node 1 \(activations\): peer: got 2, expected another rank of 0 to 1"),
        (1, {"peer": 0}, r"peer: got 0, expected another rank"),
    ],
)
def test_what_does_not_fit_together_is_named(
    number: int, broken: dict[str, object], said: str, tmp_path: Path
) -> None:
    own = [replace(node, **broken) if at == number else node for at, node in enumerate(RANK_0)]  # type: ignore[arg-type]
    path = replace(TRACE, ranks=(tuple(own), RANK_1)).write(tmp_path / "job.json")
    with pytest.raises(TraceError, match=f"job.json: .*{said}"):
        JobTrace.read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no job trace"),
        ("[]", 'expected "format": "testbed-job-trace"'),
        ('{"format": "testbed-job-trace", "schema": 9}', "schema: got 9, expected 1"),
        ('{"format": "testbed-job-trace", "schema": 1}', "broken: KeyError"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        JobTrace.read(path)
    with pytest.raises(TraceError, match="no job trace"):
        JobTrace.read(tmp_path / "none.json.gz")


def test_fields_that_there_are_not_are_named_or_refused(tmp_path: Path) -> None:
    document = json.loads(TRACE.write(tmp_path / "job.json").read_text())
    (tmp_path / "job.json").write_text(json.dumps({**document, "novel": 1, "kept": 2}))
    assert JobTrace.read(tmp_path / "job.json").left_out == ("fields kept, novel",)
    document["nodes"][0]["novel"] = 1
    (tmp_path / "job.json").write_text(json.dumps(document))
    with pytest.raises(TraceError, match=r"broken: TypeError: .*novel"):
        JobTrace.read(tmp_path / "job.json")
    document["ranks"][0][0] = -1
    del document["nodes"][0]["novel"]
    (tmp_path / "job.json").write_text(json.dumps(document))
    with pytest.raises(TraceError, match="broken: ranks: got a number below 0"):
        JobTrace.read(tmp_path / "job.json")


def test_a_group_has_ranks_of_the_job_once(tmp_path: Path) -> None:
    path = replace(TRACE, groups={"dp": (0, 0)}).write(tmp_path / "job.json")
    with pytest.raises(TraceError, match=r"group dp: got \[0, 0\], expected different ranks of 0 to 1"):
        JobTrace.read(path)
