"""Replicas that come and go, under the virtual clock: what their loss costs, in three ways."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scapy.layers.inet import IP, TCP
from scapy.utils import PcapNgReader

from testbed.measure.results.result import Result
from testbed.show.report.variant_text import comparisons
from testbed.workload.job.endpoints import LISTEN_PORT
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
  machine:
    events: [{step: 3, at: 100 ms, action: host_kill, target: east2, for: 2 s}]
    telemetry.capture: all
trials: 12
warmup: 1
scale: {size_scale: 8000}
"""
PARAMETERS = 4 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 2 * 4096 * 32000


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with finished_run(SCENARIO) as found:
        yield found


@pytest.fixture(scope="module")
def variants(folder: Path) -> dict[str, dict[str, Any]]:
    assert "Replicas that came and went" in (folder / "report.html").read_text()
    return variants_of(folder)


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
    assert "silent" in loss(variants["machine"])["why"]


def test_who_goes_on_is_more_effective(variants: dict[str, dict[str, Any]]) -> None:
    share = {name: variant["replication"]["effective"] for name, variant in variants.items()}
    assert share["restart"] < share["blocking"] < share["non-blocking"]


def test_rates_and_the_headline_are_of_work_that_was_done_over_all_the_time(
    folder: Path, variants: dict[str, dict[str, Any]]
) -> None:
    """Taken again from the ranks' own samples: whoever ended a step trained 4 sequences of 8192 tokens in it."""
    steps = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    found = {}
    for name, variant in variants.items():
        own = [one for one in steps if one["operation"] == "step" and one["variant"] == name]
        elapsed_s = max(one["end_s"] for one in own) - min(one["start_s"] for one in own)
        found[name] = len(own) * 4 * 8192 / elapsed_s
        assert variant["rates"]["tokens_per_s"] == pytest.approx(found[name], rel=0.01), name
        ended = Counter(one["step"] for one in own)
        assert variant["work"]["partial_steps"] == sum(ranks < 4 for ranks in ended.values()), name
    said = next(one for one in comparisons(Result.open(folder).variants) if " of restart " in one)
    told = re.match(r"(\S+) does (\S+)x the work of restart in the same time: .*, stalls included\.$", said)
    assert told, said
    assert float(told[2]) == pytest.approx(found[told[1]] / found["restart"], rel=0.01)
    assert float(told[2]) == pytest.approx(max(found.values()) / found["restart"], rel=0.01)


def test_what_crossed_is_held_against_the_plan_in_steps_of_all(variants: dict[str, dict[str, Any]]) -> None:
    for variant in variants.values():
        crossed = variant["wan_bytes"]
        assert crossed["observed"] == pytest.approx(crossed["expected"], rel=0.001), variant["name"]


class Segment(NamedTuple):
    """A TCP segment as it began to cross: who to whom, at which ports, what it holds and acknowledges, its class."""

    time_s: float
    ends: tuple[str, int, str, int]
    first: int
    size: int
    acknowledges: int | None
    dscp: int


@pytest.fixture(scope="module")
def segments(folder: Path) -> list[Segment]:
    """All that crossed in the variant in which a machine is lost, in the order of time."""
    found = []
    for file in sorted((folder / "captures" / "machine").glob("*.pcapng")):
        with PcapNgReader(str(file)) as reader:
            for packet in reader:
                if packet.sniffed_on == "entry" and IP in packet:
                    assert TCP in packet, "ranks' connections, and nothing of the coordinator's"
                    ip, tcp = packet[IP], packet[TCP]
                    assert LISTEN_PORT in (tcp.sport, tcp.dport)
                    size = ip.len - 4 * ip.ihl - 4 * tcp.dataofs
                    ends = ip.src, tcp.sport, ip.dst, tcp.dport
                    acknowledges = tcp.ack if tcp.flags.A else None
                    found.append(Segment(float(packet.time), ends, tcp.seq, size, acknowledges, ip.tos >> 2))
    return sorted(found, key=lambda one: one.time_s)


@pytest.fixture(scope="module")
def dead(folder: Path) -> str:
    """The machine that is lost."""
    hosts = json.loads((folder / "manifest.json").read_text())["fabric"]["hosts"]
    return str(next(host["ip"] for host in hosts if host["name"] == "east2"))


@pytest.fixture(scope="module")
def silence_s(segments: list[Segment], dead: str) -> tuple[float, float]:
    """From its last word until it is back."""
    sent_s = [segment.time_s for segment in segments if segment.ends[0] == dead]
    return max(pairwise(sent_s), key=lambda pair: pair[1] - pair[0])


def test_nothing_goes_to_a_lost_replica(
    segments: list[Segment], dead: str, silence_s: tuple[float, float]
) -> None:
    begin_s, end_s = silence_s
    assert end_s - begin_s > 1.5
    # within 300 ms of silence it is known, and what tells of the end of connections takes a moment
    late = [one for one in segments if one.ends[2] == dead and begin_s + 0.5 < one.time_s < end_s - 0.1]
    assert not late


def test_no_more_is_under_way_to_a_neighbour_than_is_allowed(
    segments: list[Segment], silence_s: tuple[float, float]
) -> None:
    """TCP's unacknowledged bytes are no more than those of chunks that the neighbour has not acknowledged."""
    chunks, chunk_bytes, headers = 8, 8000, 64 * 9
    sent: dict[tuple[str, int, str, int], int] = {}
    most = 0
    # once both are members again; before the first step there was a ring without limits
    for one in (one for one in segments if one.time_s > silence_s[1] + 1.0 and not one.dscp):
        if one.size > 0:
            sent[one.ends] = (one.first + one.size) % 2**32
        back = (*one.ends[2:], *one.ends[:2])
        if back in sent and one.acknowledges is not None:
            under_way = (sent[back] - one.acknowledges) % 2**32
            most = max(most, under_way if under_way < 2**31 else 0)
    assert chunk_bytes < most <= chunks * (chunk_bytes + headers)


def test_state_goes_in_a_class_of_its_own(
    segments: list[Segment], variants: dict[str, dict[str, Any]]
) -> None:
    of_class = [one for one in segments if one.dscp == 8]
    assert sum(one.size for one in of_class) == pytest.approx(
        loss(variants["machine"])["catch_up_bytes"] / 8000, rel=0.01
    )
    assert all(one.dscp in (0, 8) for one in segments)
