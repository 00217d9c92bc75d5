"""Replicas that come and go, under the virtual clock: what their loss costs, in three ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.virtual.conftest import finished_run, variants_of

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(400)]

SCENARIO = """\
name: small
topology:
  name: small
  mtu: 9000
  buildings:
    north: {hosts: 2, nic: {rate: 400 Gbit/s, queue: 1 GB}}
    east: {hosts: 2, nic: {rate: 400 Gbit/s, queue: 1 GB}}
  wan:
    - {a: north, b: east, rate: 400 Gbit/s, delay: 2.5 ms, queue: 1 GB}
workload:
  model: {dim: 4096, n_layers: 4, n_heads: 32, n_kv_heads: 8, ffn_dim: 14336, vocab_size: 32000}
  bucket_cap: 400 MiB
  accelerator: h100
  local_batch_size: 4
  parallelism:
    data_parallel_replicate_degree: 2
    data_parallel_shard_degree: 2
    faults: {detect: 300 ms, restart: 5 s, checkpoint_every: 3, chunk: 64 MB, in_flight: 8}
  schedule: {microbatches: 1}
policy: shortest
events:
  - {step: 3, at: 100 ms, action: rank_kill, target: 3, for: 2 s}
variants:
  restart: {workload.parallelism.faults.mode: restart}
  blocking: {workload.parallelism.faults.catch_up: blocking}
  non-blocking: {}
  machine: {events: [{step: 3, at: 100 ms, action: host_kill, target: east2, for: 2 s}]}
trials: 12
warmup: 1
scale: {size_scale: 8000}
"""
PARAMETERS = 4 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 2 * 4096 * 32000


@pytest.fixture(scope="module")
def variants() -> Iterator[dict[str, dict[str, Any]]]:
    with finished_run(SCENARIO) as folder:
        assert "Replicas that came and went" in (Path(folder) / "report.html").read_text()
        yield variants_of(folder)


def loss(variant: dict[str, Any]) -> dict[str, Any]:
    (found,) = variant["replication"]["losses"]
    assert (found["replica"], found["rank"]) == (1, 3)
    return dict(found)


def test_every_sum_is_right(variants: dict[str, dict[str, Any]]) -> None:
    for variant in variants.values():
        held = {entry["name"]: entry["ok"] for entry in variant["verdict"]["invariants"]}
        assert held["payload_correct"], variant["name"]
        assert variant["verdict"]["status"] != "untrusted"
        assert variant["step_time_s"]["n"] == 12


def test_with_nobody_lost_ftar_takes_as_long_as_a_ring(variants: dict[str, dict[str, Any]]) -> None:
    ring, ftar = (variants[name]["replication"]["period_s"] for name in ("restart", "blocking"))
    assert ftar == pytest.approx(ring, rel=0.02)


def test_all_begin_again_from_the_checkpoint(variants: dict[str, dict[str, Any]]) -> None:
    found = variants["restart"]["replication"]
    period_s = found["period_s"]
    assert 5.0 < loss(variants["restart"])["stall_s"] < 5.0 + period_s
    # a warm-up step and three measured ones were done, the checkpoint is before the third
    assert found["steps_lost"] == 1
    assert loss(variants["restart"])["catch_up_bytes"] == 0


def test_survivors_stall_for_less_than_a_step(variants: dict[str, dict[str, Any]]) -> None:
    for name in ("blocking", "non-blocking", "machine"):
        found = variants[name]["replication"]
        cost = loss(variants[name])
        caught_up_s = cost["catch_up_s"] if name == "blocking" else 0.0
        assert cost["stall_s"] <= cost["detected_s"] + caught_up_s + found["period_s"]
        assert cost["steps_lost"] == 0
        assert cost["catch_up_bytes"] == pytest.approx(16 * PARAMETERS, rel=0.001)
        assert [commit["replicas"] for commit in found["commits"]].count(1) >= 3


def test_a_process_is_missed_at_once_and_a_machine_by_its_silence(
    variants: dict[str, dict[str, Any]],
) -> None:
    assert loss(variants["blocking"])["detected_s"] < 0.001
    assert 0.2 <= loss(variants["machine"])["detected_s"] <= 0.301
    assert "not heard" in loss(variants["machine"])["why"]


def test_who_goes_on_is_more_effective(variants: dict[str, dict[str, Any]]) -> None:
    share = {name: variant["replication"]["effective"] for name, variant in variants.items()}
    assert share["restart"] < share["blocking"] < share["non-blocking"]
