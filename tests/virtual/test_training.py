"""Training steps with plans under the virtual clock: every dimension of parallelism, predicted and measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.virtual.conftest import finished_run, variants_of

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(400)]

SCENARIO = """\
name: small
topology:
  name: pair
  mtu: 9000
  buildings:
    east: {hosts: 4, nic: {rate: 40 Gbit/s, queue: 64 MB}, region: here}
    west: {hosts: 4, nic: {rate: 40 Gbit/s, queue: 64 MB}, region: there}
  wan:
    - {a: east, b: west, rate: 40 Gbit/s, delay: 2 ms, queue: 1 GB}  # slow starts overflow 256 MB: not modelled
workload:
  model: {dim: 2048, n_layers: 4, n_heads: 16, n_kv_heads: 8, ffn_dim: 8192, vocab_size: 8192}
  accelerator: h100
  sequence_length: 8192
  parallelism: {pipeline_parallel_degree: 4, data_parallel_replicate_degree: 2}
  schedule: {microbatches: 4}
transport: {congestion_control: reno}
policy: shortest
variants:
  replicas-apart: {}
  ideal:
    topology.wan.0.rate: 1 Tbit/s
    topology.wan.0.delay: 0 ms
    topology.buildings.east.nic.rate: 1 Tbit/s
    topology.buildings.west.nic.rate: 1 Tbit/s
  by-transit:
    topology.buildings.relay: {hosts: 0}
    topology.wan:
      - {a: east, b: relay, rate: 40 Gbit/s, delay: 1.5 ms, queue: 1 GB}
      - {a: relay, b: west, rate: 40 Gbit/s, delay: 0.5 ms, queue: 1 GB}
  stages-apart: {workload.parallelism.placement: crosspipe, workload.schedule.name: ZBH1}
  in-order:
    workload.parallelism.placement: crosspipe
    workload.schedule: {name: Interleaved1F1B, chunks: 1, microbatches: 4, receives: in_order}
  shards: {workload.parallelism: {data_parallel_shard_degree: 4, data_parallel_replicate_degree: 2}}
  tensor-context:
    workload.parallelism: {tensor_parallel_degree: 2, context_parallel_degree: 2, data_parallel_replicate_degree: 2}
  tensor-blocks:
    workload.parallelism:
      {tensor_parallel_degree: 4, data_parallel_replicate_degree: 2, tensor_communication: overlapped_tree}
    workload.schedule: {microbatches: 1}
  experts-uneven:
    workload.model:
      {dim: 2048, n_layers: 2, n_heads: 16, n_kv_heads: 8, ffn_dim: 4096, vocab_size: 8192,
       experts: 8, experts_per_token: 2}
    workload.parallelism: {data_parallel_shard_degree: 8, expert_parallel_degree: 8, routing_skew: 0.5}
  stages-with-tokens:
    workload.parallelism: {pipeline_parallel_degree: 2, data_parallel_replicate_degree: 4, placement: atlas}
    workload.schedule.wan_send_tokens: true
  searched:
    workload.parallelism.placement: crosspipe
    workload.schedule: {name: optimal, microbatches: 4, time_limit: 4 s}
trials: 1
warmup: 1
scale: {size_scale: 60}
"""
VARIANTS = (
    "replicas-apart",
    "ideal",
    "by-transit",
    "stages-apart",
    "in-order",
    "shards",
    "tensor-context",
    "tensor-blocks",
    "experts-uneven",
    "stages-with-tokens",
    "searched",
)

# Where much is sent at once, a step depends on whose packet is first at an instant: five steps of `in-order` took
# 273.4 ms each, and 286.5 ms each after a change of the harness that should not matter. Up to the 75th millisecond
# both were the same to 10 us; then two gradients' rings met the activations in another order.
BOUNDS = {"ideal": 0.05}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with finished_run(SCENARIO) as folder:
        yield folder


@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_takes_what_the_dry_run_said(folder: Path, name: str) -> None:
    entry = variants_of(folder)[name]
    assert entry["verdict"]["status"] == "trusted", entry["verdict"]
    training = entry["training"]
    assert abs(training["predicted"]["error"]) < BOUNDS.get(name, 0.10), training["predicted"]
    measured = training["measured"]
    whole = measured["compute_s"] + measured["bubble_s"] + sum(row["seconds"] for row in measured["exposed"])
    assert whole == pytest.approx(entry["step_time_s"]["median"], rel=1e-3)
    assert entry["limited_by"].endswith("of the ranks' time")


@pytest.mark.parametrize("name", VARIANTS)
def test_bytes_of_every_tier_are_the_plans(folder: Path, name: str) -> None:
    for tier in variants_of(folder)[name]["training"]["bytes"].values():
        assert tier["observed"] == tier["expected"] > 0


def test_a_schedule_keeps_as_much_alive_as_it_said(folder: Path) -> None:
    found = {name: entry["training"]["peak_activation_bytes"] for name, entry in variants_of(folder).items()}
    block = 8192 * 2048 * 2  # one block per stage
    assert found["replicas-apart"] == [4 * block, 3 * block, 2 * block, block] * 2
    assert max(found["stages-apart"]) <= 4 * block


def test_a_path_by_a_transit_site_takes_the_sum_of_its_delays(folder: Path) -> None:
    """The links' delays add up to the direct link's: what is left is a frame's own time at the transit site."""
    direct, relayed = (
        variants_of(folder)[name]["step_time_s"]["median"] for name in ("replicas-apart", "by-transit")
    )
    assert relayed == pytest.approx(direct, rel=0.01)


def test_messages_are_arrows_in_the_trace(folder: Path) -> None:
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    begins = [event for event in events if event["ph"] == "s"]
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(begins) == len(ends) > 0
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1}
    assert {"compute", "SEND_F 2", "RECV_F 0", "data_parallel_replicate"} <= rows
    for event in begins:
        came = ends[event["id"]]
        assert came["pid"] != event["pid"]
        # an arrow ends where the message, or the receive that was late, begins to come in: done after it was sent
        coming = [
            one
            for one in events
            if one["ph"] == "X" and all(one[key] == came[key] for key in ("pid", "tid", "ts"))
        ]
        assert came["ts"] >= event["ts"]
        assert max(one["ts"] + one["dur"] for one in coming) > event["ts"]
