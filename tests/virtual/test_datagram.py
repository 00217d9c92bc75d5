"""Datagrams under the virtual clock: the line's rate, losses as the model has them, incast without a drop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.virtual.conftest import finished_run, variants_of

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]

MESSAGE_BYTES, RATE_BPS, DELAY_S = 32_000_000, 1e9, 0.010
PAYLOAD_BYTES, FRAME_BYTES = 8920, 9010
LOSSY = """
name: lossy
topology:
  name: line
  mtu: 9000
  buildings:
    east: {hosts: 1, nic: {rate: 1 Gbit/s}}
    west: {hosts: 1, nic: {rate: 1 Gbit/s}}
  wan:
    - {a: east, b: west, rate: 1 Gbit/s, delay: 10 ms}
ranks: 2
trials: 2
warmup: 0
scale: {size_scale: 1}
workload: {collectives: [{collective: scatter, size: 64 MB, algorithm: direct}]}
transport: {kind: datagram}
variants:
  clean: {}
  go-back-n: {transport.datagram.recovery: go_back_n, topology.wan.0.loss: 0.1 %}
  nack: {transport.datagram.recovery: nack, topology.wan.0.loss: 0.1 %}
  erasure: {transport.datagram.recovery: erasure, topology.wan.0.loss: 0.1 %}
"""
INCAST = """
name: incast
topology:
  name: hall
  mtu: 9000
  buildings:
    east: {hosts: 9, nic: {rate: 1 Gbit/s}}
    west: {hosts: 1, nic: {rate: 1 Gbit/s}}
  wan:
    - {a: east, b: west, rate: 1 Gbit/s, delay: 1 ms}
ranks: 9
trials: 1
warmup: 0
scale: {size_scale: 1}
workload: {collectives: [{collective: gather, size: 27 MB, algorithm: direct}]}
transport: {kind: datagram, datagram: {control: credits}}
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with finished_run(LOSSY) as folder:
        yield folder


def step_s(folder: Path, name: str) -> float:
    found: float = variants_of(folder)[name]["step_time_s"]["median"]
    return found


def told(folder: Path, name: str | None = None, rank: int = 0) -> dict[str, Any]:
    """What a rank's pair says, of those across the network that sent the message."""
    manifest = json.loads((folder / "manifest.json").read_text())
    pairs = [
        pair for pair in manifest["sockets"] if pair["rank"] == rank and pair.get("variant") in (None, name)
    ]
    found: dict[str, Any] = max(pairs, key=lambda pair: int(pair["packets_sent"]))
    return found


def test_a_clean_line_is_full_to_a_thousandth(folder: Path) -> None:
    packets, rest = divmod(MESSAGE_BYTES, PAYLOAD_BYTES)
    frames_bytes = packets * FRAME_BYTES + rest + FRAME_BYTES - PAYLOAD_BYTES
    least_s = frames_bytes * 8 / RATE_BPS + DELAY_S
    # each of the hops holds a frame, of 72 us; before the message and after it ranks say that they are there
    assert least_s <= step_s(folder, "clean") <= 1.001 * least_s + 0.0008
    assert variants_of(folder)["clean"]["verdict"]["status"] == "trusted"
    assert told(folder, "clean")["packets_resent"] == 0


@pytest.mark.parametrize("name", ["go-back-n", "nack", "erasure"])
def test_the_model_knows_what_losses_do(folder: Path, name: str) -> None:
    variant = variants_of(folder)[name]
    assert variant["verdict"]["status"] != "untrusted"
    # some four losses of go-back-N, each of which costs a round trip of 20 ms; of one trial alone they may be ten
    assert abs(variant["predicted"]["error"]) < (0.25 if name == "go-back-n" else 0.1)


def test_the_wire_shows_what_each_sends_again(folder: Path) -> None:
    window = told(folder, "go-back-n")["window_packets"]
    assert told(folder, "go-back-n")["packets_resent"] > window / 2
    lost = told(folder, "nack")["packets_lost"]
    assert told(folder, "nack")["packets_resent"] == lost > 0
    erasure = told(folder, "erasure")
    assert erasure["packets_resent"] == 0
    assert told(folder, "erasure", rank=1)["packets_mended"] > 0
    assert 0.25 <= erasure["parity_sent"] / (erasure["packets_sent"] - erasure["parity_sent"]) < 0.26


@pytest.mark.thorough
def test_granted_incast_drops_nothing_and_fills_the_port() -> None:
    with finished_run(INCAST) as folder:
        summary = json.loads((folder / "summary.json").read_text())["variants"][0]
        manifest = json.loads((folder / "manifest.json").read_text())
    bytes_ = 8 * 3_000_000 / PAYLOAD_BYTES * FRAME_BYTES
    assert bytes_ * 8 / RATE_BPS / summary["step_time_s"]["median"] > 0.95
    assert sum(pair["packets_resent"] for pair in manifest["sockets"] if pair["peer"] == 0) == 0
