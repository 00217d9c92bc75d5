"""Scripts captured by a Python that has PyTorch: bytes and order are what the script does, mistakes are named."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from testbed.contrib.capture.profiler_traces import read_profile
from testbed.contrib.capture.session import CaptureError, CaptureResult, RanksDoNotMatch, Request, capture
from testbed.errors import BadInput
from testbed.spec.transformer import ModelSpec
from testbed.spec.workload import WorkloadSpec
from testbed.workload.models import parameters
from testbed.workload.parallelism import DIMENSIONS, EXPERT, make_mesh
from testbed.workload.stages import Sizes, model_stages
from testbed.workload.traces.trace import Collective, Compute, JobTrace, PointToPoint, element_bytes
from testbed.workload.uniform_plans import gradient_buckets

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "scenarios" / "captured"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
pytestmark = [
    pytest.mark.skipif(
        not PEERS.exists(), reason="there is no .venv-peers: tools/bootstrap peers could not make it"
    ),
    pytest.mark.timeout(600),
]

DIM, LAYERS, VOCABULARY = 256, 4, 1024
TINY = ModelSpec(dim=DIM, n_layers=LAYERS, n_heads=8, n_kv_heads=4, ffn_dim=768, vocab_size=VOCABULARY)
PARAMETERS = sum(one.numel for one in parameters(TINY))
ENDS = 2 * VOCABULARY * DIM + DIM
LAYER = (PARAMETERS - ENDS) // LAYERS
TOKENS = 256


def captured(script: Path | str, *arguments: object, ranks: int, **more: object) -> CaptureResult:
    path = script if isinstance(script, Path) else SCRIPTS / script
    words = tuple(map(str, arguments))
    return capture(Request(str(path), words, ranks, min(8, ranks), python=str(PEERS), **more))  # type: ignore[arg-type]


def totals(trace: JobTrace, rank: int = 0) -> Counter[tuple[str, str]]:
    """Bytes by kind and collective."""
    found: Counter[tuple[str, str]] = Counter()
    for node in trace.ranks[rank]:
        if isinstance(node, Collective):
            found[node.kind, node.collective] += node.numel * element_bytes(node.dtype)
        elif isinstance(node, PointToPoint) and node.sends:
            found[node.kind, "send"] += node.numel * element_bytes(node.dtype)
    return found


def flops(trace: JobTrace, rank: int = 0) -> float:
    return sum(node.flops for node in trace.ranks[rank] if isinstance(node, Compute))


def matmul_flops(tokens: int) -> float:
    """Forward and backward, with attention as it is without a mask."""
    matrices = LAYERS * (LAYER - 2 * DIM) + VOCABULARY * DIM
    attention = LAYERS * 2 * 2 * TOKENS * TOKENS * DIM * tokens / TOKENS
    return 3 * 2 * matrices * tokens + (1 + 2.5) * attention


def our_flops() -> float:
    """Of one sequence, by our own workload of the model."""
    workload = WorkloadSpec.model_validate(
        {
            "model": TINY,
            "peak_flops": "1 Tflop/s",
            "sequence_length": TOKENS,
            "attention_scores": "recomputed",
        }
    )
    mesh = make_mesh(dict.fromkeys((*DIMENSIONS, EXPERT), 1), 1, 1)
    (stage,) = model_stages(TINY, 1, mesh, Sizes.of(workload, 4))
    return workload.flops * sum(part.forward_s + part.input_s + part.weight_s for part in stage.parts)


def test_ddp_reduces_every_gradient_once_and_waits_when_backward_ends() -> None:
    found = captured("train_ddp.py", ranks=4)
    trace = found.trace
    assert totals(trace) == {("world", "all_reduce"): 4 * PARAMETERS}
    assert flops(trace) == pytest.approx(matmul_flops(TOKENS))
    assert flops(trace) == pytest.approx(our_flops())
    buckets = gradient_buckets(parameters(TINY), 4, 25 * 1024**2, 1024**2)
    sizes = [node.numel for node in trace.ranks[0] if isinstance(node, Collective)]
    assert sizes == [bucket.numel for bucket in buckets], "as our own workload of the model has them"
    assert len(found.classes) == 1
    assert found.ran == [0, 3]
    own = trace.ranks[2]
    reduced = [number for number, node in enumerate(own) if isinstance(node, Collective)]
    assert len(reduced) >= 2
    waiting = next(node for node in own if set(node.after) & set(reduced) and isinstance(node, Compute))
    backward = [
        number for number, node in enumerate(own) if isinstance(node, Compute) and node.kind == "backward"
    ]
    assert own.index(waiting) > backward[-1]
    assert all("train_ddp.py" in own[number].site for number in reduced)
    assert any("numbers read from tensors" in note for note in found.notes)


@pytest.mark.thorough
@pytest.mark.parametrize("replicas", [1, 2])
def test_fsdp2_gathers_parameters_twice_and_prefetches(replicas: int) -> None:
    trace = captured("train_fsdp.py", "--replicate", replicas, ranks=4).trace
    found = totals(trace)
    # what is at the ends of the model is one group with it and stays gathered; layers are gathered again for backward
    assert found["shard", "all_gather"] == 2 * (2 * LAYERS * LAYER + ENDS)
    assert found["shard", "reduce_scatter"] == 4 * PARAMETERS
    assert found["replicate", "all_reduce"] == (4 * PARAMETERS * replicas // 4 if replicas > 1 else 0)
    own = trace.ranks[0]
    layers = [
        number
        for number, node in enumerate(own)
        if isinstance(node, Collective) and node.module == "layers.1"
    ]
    gather = own[layers[0]]
    before = [node.module for node in own[: layers[0]] if isinstance(node, Compute) and node.flops]
    assert gather.stream == "group shard 0" if replicas > 1 else "group world"
    kinds = [node.kind for node in own if isinstance(node, Compute)]
    over = len(kinds) - kinds[::-1].index("backward")
    assert set(kinds[over:]) == {"compute"}, "clipping gradients is no forward pass"
    assert "layers.0" not in before, "layer 1 is gathered before layer 0 has computed"


@pytest.mark.thorough
def test_tensor_parallel_ranks_exchange_activations_along_the_sequence() -> None:
    trace = captured("train_3d.py", "--tensor", 2, "--microbatches", 1, ranks=2).trace
    found = totals(trace)
    activation = TOKENS * DIM * 2
    # per layer and direction two all-gathers and two reduce-scatters (Megatron's sequence parallelism); two more of
    # each kind of gather backward, as inputs are gathered again for weights; ends: embedding, output
    assert found["tensor", "reduce_scatter"] == activation * (4 * LAYERS + 2)
    assert found["tensor", "all_gather"] == activation * (4 * LAYERS + 2) + 2 * TOKENS * VOCABULARY


@pytest.mark.thorough
@pytest.mark.parametrize(("schedule", "stages"), [("1F1B", 2), ("Interleaved1F1B", 4), ("ZBVZeroBubble", 4)])
def test_pipelines_send_every_microbatch_there_and_its_gradient_back(schedule: str, stages: int) -> None:
    found = captured("train_3d.py", "--pipeline", 2, "--microbatches", 4, "--schedule", schedule, ranks=2)
    assert len(found.classes) == 2
    sent = sum(totals(found.trace, rank)["pipeline", "send"] for rank in (0, 1))
    crossings = 2 if schedule == "ZBVZeroBubble" else stages - 1
    assert sent == 2 * crossings * 4 * TOKENS * DIM * 2
    assert sum(flops(found.trace, rank) for rank in (0, 1)) == pytest.approx(
        4 * matmul_flops(TOKENS), rel=0.02
    )


@pytest.mark.thorough
def test_experts_get_as_many_tokens_each() -> None:
    trace = captured("train_moe.py", ranks=4).trace
    exchanged = [
        node for node in trace.ranks[1] if isinstance(node, Collective) and node.collective == "all_to_all"
    ]
    tokens = [node for node in exchanged if node.dtype == "bfloat16"]
    assert len(tokens) == 4 * LAYERS
    assert {node.numel for node in tokens} == {2 * TOKENS * DIM}
    assert {node.module.rpartition(".")[2] for node in tokens} == {"feed_forward"}


def has(package: str, python: str = str(PEERS)) -> bool:
    code = f"import importlib.util as u; raise SystemExit(u.find_spec({package!r}) is None)"
    return PEERS.exists() and subprocess.run([python, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("model", "matrices"),  # of a layer, that work on a token
    [
        ("llama", 3 * 256 * 896),
        pytest.param("mixtral", 2 * 3 * 256 * 896 + 8 * 256, marks=pytest.mark.thorough),
    ],
)
def test_transformers_models_are_what_their_configuration_says(model: str, matrices: int) -> None:
    if not has("transformers"):
        pytest.skip("there is no transformers beside PyTorch in .venv-peers")
    trace = captured("train_hf.py", "--model", model, ranks=4).trace
    working = 4 * (3 * 256 * 256 + matrices) + 1024 * 256
    attention = 4 * 4 * 256 * 256 * 256
    assert flops(trace) == pytest.approx(3 * 2 * working * 256 + 3.5 * attention)


@pytest.mark.thorough
def test_torchtitan_is_recorded_as_it_is(tmp_path: Path) -> None:
    python = os.environ.get("TESTBED_TORCHTITAN", str(PEERS))
    if not has("torchtitan", python):
        pytest.skip("TESTBED_TORCHTITAN names no Python with torchtitan 0.2.2, and .venv-peers has none")
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "roofline_error.py"))
    benchmark["write_assets"](tmp_path)
    sizes = "--model.flavor debugmodel --training.seq_len 512 --training.local_batch_size 1"
    request = benchmark["request_of"](python, {"ranks": 4, "arguments": sizes}, tmp_path)
    found: Counter[str] = Counter()
    for node in capture(request).trace.ranks[0]:
        if isinstance(node, Collective):
            found[node.collective] += node.numel * element_bytes(node.dtype)
    kept = 2048 * 256 + 256  # the last norm and the output, from forward to backward
    whole = 6 * (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256) + 2048 * 256 + kept
    assert found["reduce_scatter"] == 4 * whole
    assert found["all_gather"] == 2 * (2 * whole - kept)


HEAD = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, model = dist.get_rank(), torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
"""


@pytest.mark.parametrize(
    ("lines", "kind", "said"),
    [
        (
            "    if rank == 0: dist.all_reduce(model.weight.grad)\n    dist.broadcast(model.bias.grad, 0)\n",
            RanksDoNotMatch,
            r"collective 0 of group world is all_reduce \(64 float32\) on rank 0 at .*train.py:8, but broadcast of "
            r"rank 0 \(8 float32\) on rank 1 at .*train.py:9",
        ),
        pytest.param(
            "    dist.send(model.weight.grad, 1 - rank)\n    dist.recv(model.weight.grad, 1 - rank)\n",
            RanksDoNotMatch,
            r"forever: rank 0 at .*train.py:8 waits in a send to rank 1 for rank 1; rank 1 at .*train.py:8",
            marks=pytest.mark.thorough,
        ),
        (
            "    model.weight.grad @ torch.randn(5, 5, device='cuda')\n",
            CaptureError,
            r'(?s)rank 0 of .*train.py failed:\nTraceback .*train.py", line 8, in <module>.*RuntimeError',
        ),
        pytest.param(
            "    model.weight[model.weight > 0].sum()\n",
            CaptureError,
            r"(?s)at .*train.py:8: its result's size depends on data",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_emulated(
    lines: str, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + lines + "    optimizer.step()\n")
    with pytest.raises(kind, match=said):
        captured(script, ranks=2)


PROFILED = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
steps, kept = schedule(wait=0, warmup=1, active=2), lambda profiler: profiler.export_chrome_trace(sys.argv[1])
with profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=kept) as profiler:
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        profiler.step()
"""


def launching(events: list[dict[str, Any]], operation: str, long_us: float) -> list[dict[str, Any]]:
    """An accelerator's side of operations that a trace of the CPU has: a launch and a kernel for each."""
    made: list[dict[str, Any]] = []
    for event in [one for one in events if one.get("name") == operation]:
        number = len(events) + len(made)
        launch = {**event, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": number}}
        on_device = {"cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1e6 * number, "dur": long_us}
        arguments = {"device": 0, "stream": 7, "correlation": number}
        made += [{**launch, "ts": event["ts"] + event["dur"] / 2}, {**event, **on_device, "args": arguments}]
    return made


def test_a_profilers_trace_is_read_as_this_pytorch_writes_it(tmp_path: Path) -> None:
    """Without an accelerator it has no kernels, and says so; with those of one put in, parts of the step are told."""
    script, path = tmp_path / "profiled.py", tmp_path / "trace.json"
    script.write_text(PROFILED)
    subprocess.run([str(PEERS), str(script), str(path)], check=True, capture_output=True)
    with pytest.raises(BadInput, match=r"of category cpu_op and none of kernel, .*expected kernels of an"):
        read_profile(path)
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    for operation, long_us in (
        ("aten::addmm", 10.0),
        ("aten::mm", 20.0),
        ("aten::_foreach_norm", 4.0),
        ("aten::_foreach_addcdiv_", 3.0),
    ):
        events += launching(events, operation, long_us)
    path.write_text(json.dumps(document))
    found = read_profile(path)
    assert found.steps == 2
    assert found.seconds == pytest.approx({"forward": 10e-6, "backward": 20e-6, "compute": 7e-6})


@pytest.mark.thorough
def test_a_script_that_trains_nothing_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    with pytest.raises(CaptureError, match="got 0 steps, expected 2"):
        captured(script, ranks=2)
