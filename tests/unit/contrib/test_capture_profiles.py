"""Computing times out of a PyTorch profiler's trace: which kernels count, in which step, as what."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from testbed.contrib.capture.profiler_traces import is_trace, profile_for_rank, read_profile, read_profiles
from testbed.contrib.capture.trace_assembly import estimate_computing
from testbed.errors import BadInput
from testbed.spec.catalogue import accelerators

MAIN, AUTOGRAD = 100, 101
Event = dict[str, Any]


def spans(cat: str, name: str, begin: float, end: float, tid: int = MAIN, **arguments: Any) -> Event:
    timed = {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin}
    return {**timed, "pid": 9, "tid": tid, "args": arguments}


def kernel(number: int, launched: float, begin: float, long: float, **more: Any) -> list[Event]:
    """What launches it, and the kernel."""
    tid, stream = more.pop("by", MAIN), more.pop("stream", 7)
    on = {"device": 0, "stream": stream, "correlation": number, **more.pop("on", {})}
    given = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": begin, "dur": long, "pid": 0, "tid": stream}
    launch = spans("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, tid, correlation=number)
    return [launch, {**given, "args": on, **more}]


def step(number: int, at: float, backward_long: float = 40.0) -> list[Event]:
    """Of 200 us on the program's side: forward, backward in a thread of its own, clipping, optimizer."""
    first = number * 10
    return [
        spans("user_annotation", f"ProfilerStep#{number}", at, at + 200),
        *kernel(first, at + 10, at + 15, 20.0),
        # beside the first for 10 us, as long again alone
        *kernel(first + 1, at + 12, at + 25, 20.0, stream=20, cat="gpu_memcpy", name="Memcpy HtoD"),
        spans("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at + 50, at + 80, AUTOGRAD),
        spans("cpu_op", "aten::mm", at + 51, at + 60, AUTOGRAD),
        *kernel(first + 2, at + 55, at + 60, backward_long, by=AUTOGRAD),
        # of a hook, after the last of autograd's calls, beside the one before and 30 us longer
        *kernel(
            first + 3,
            at + 85,
            at + 60,
            backward_long + 30,
            by=AUTOGRAD,
            stream=30,
            name="ncclDevKernel_AllReduce",
        ),
        *kernel(first + 4, at + 100, at + 135, 5.0),
        spans("user_annotation", "Optimizer.step#AdamW.step", at + 110, at + 120),
        *kernel(first + 5, at + 115, at + 140, 7.0),
    ]


def written(path: Path, events: Iterable[Event], **more: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, "traceEvents": list(events), **more}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_kernels_are_told_by_what_launched_them(tmp_path: Path) -> None:
    found = read_profile(written(tmp_path / "one.json", step(1, 1000.0), distributedInfo={"rank": 3}))
    assert found.seconds == pytest.approx({"forward": 30e-6, "backward": 40e-6, "compute": 12e-6})
    assert (found.steps, found.rank) == (1, 3)
    assert found.communication_s == pytest.approx(30e-6)
    assert found.idle_s == pytest.approx((200 - 112) * 1e-6)


def test_a_step_of_median_computing_stands_for_all(tmp_path: Path) -> None:
    events = [
        # of a step before what was traced: its launch is not in it
        *kernel(1, 0.0, 995.0, 500.0)[1:],
        *step(1, 1000.0, 90.0),
        *step(2, 1200.0, 40.0),
        *step(3, 1400.0, 50.0),
        spans("user_annotation", "ProfilerStep#4", 1600.0, 1601.0),  # cut off
    ]
    found = read_profile(written(tmp_path / "four.json.gz", events))
    assert found.steps == 3
    assert found.seconds["backward"] == pytest.approx(50e-6)
    assert found.rank is None
    assert "median of 3 steps: forward 0.030 ms, backward 0.050 ms, compute 0.012 ms" in found.describe()


def test_gradients_may_be_accumulated(tmp_path: Path) -> None:
    events = [
        spans("user_annotation", "ProfilerStep#0", 0.0, 100.0),
        *kernel(1, 5.0, 5.0, 5.0),
        spans("cpu_op", "autograd::engine::evaluate_function: A", 10.0, 20.0),
        *kernel(2, 15.0, 15.0, 7.0),  # by the program's own thread
        *kernel(3, 30.0, 30.0, 6.0),
        spans("cpu_op", "autograd::engine::evaluate_function: A", 40.0, 50.0),
        spans("cpu_op", "autograd::engine::evaluate_function: B", 41.0, 43.0),
        *kernel(4, 45.0, 45.0, 8.0),
        *kernel(5, 60.0, 60.0, 3.0),
    ]
    found = read_profile(written(tmp_path / "two.json", events))
    assert found.seconds == pytest.approx({"forward": 11e-6, "backward": 15e-6, "compute": 3e-6})


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            [spans("cpu_op", "aten::mm", 0, 1)],
            r"of category cpu_op and none of kernel, .*expected kernels of an accelerator",
        ),
        (step(1, 0.0)[1:], r"got no ProfilerStep#N, expected steps: give the profiler a schedule and call"),
        (
            [one for one in step(1, 0.0) if "autograd" not in one["name"]],
            r"got 6 kernels, but no step with both kernel launches and a backward pass",
        ),
        (
            [*step(1, 0.0), *kernel(99, 1.0, 1.0, 1.0, on={"device": 1})],
            r"args.device: got 0, 1, expected one device",
        ),
        (
            [*step(1, 0.0), {**kernel(9, 0, 0, 1)[1], "args": {}}],
            r"traceEvents\[16\].args.correlation: got none, expected the number by which a kernel",
        ),
        (
            [{**spans("kernel", "gemm", 0, 1), "dur": "1"}],
            r"traceEvents\[0\].dur: got 1, expected microseconds",
        ),
    ],
)
def test_what_cannot_be_told_is_said(events: list[Event], said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "bad.json", events)
    with pytest.raises(BadInput, match=f"bad.json.*{said}"):
        read_profile(path)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"traceEvents": 3}', b"\x1f\x8b12"])
def test_a_file_that_is_no_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"none.json.*expected a PyTorch profiler's trace"):
        read_profile(path)
    with pytest.raises(BadInput, match=r"--compute: got .*missing.json, expected a trace: No such file"):
        read_profile(tmp_path / "missing.json")


def test_a_folder_has_a_trace_for_each_rank_that_differs(tmp_path: Path) -> None:
    for rank, long in ((8, 60.0), (0, 40.0)):
        path = tmp_path / f"of-{rank}.json"
        written(path, step(1, 0.0, long), distributedInfo={"rank": rank})
    profiles = read_profiles(tmp_path)
    assert [profile_for_rank(profiles, rank).rank for rank in (0, 7, 8, 15)] == [0, 0, 8, 8]
    nodes: list[Event] = [
        {"type": "compute", "kind": "backward", "seconds": 1.0},
        {"type": "message"},
        {"type": "compute", "kind": "backward", "seconds": 3.0},
        {"type": "compute", "kind": "forward", "seconds": 5.0},
    ]
    found = estimate_computing(str(tmp_path), accelerators()["h100"])
    assert found.seconds(9, nodes) == pytest.approx([15e-6, 0.0, 45e-6, 30e-6])
    assert found.seconds(1, nodes) == pytest.approx([10e-6, 0.0, 30e-6, 30e-6])
    assert [note.split(",")[0] for note in found.notes] == [
        "compute times from of-0.json",
        "compute times from of-8.json",
    ]
    written(tmp_path / "again.json", step(1, 0.0), distributedInfo={"rank": 8})
    with pytest.raises(BadInput, match=r"of-8.json: distributedInfo.rank: got 8, as in again.json"):
        read_profiles(tmp_path)
    assert not is_trace(tmp_path / "table.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="empty without a trace"):
        read_profiles(tmp_path / "empty")
