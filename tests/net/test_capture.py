"""Captures of WAN links in a run: read with scapy, they show what was asked and what the books say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP
from scapy.utils import PcapNgReader

from tests.net.runs import SMALLER, run_testbed, write_scenario

pytestmark = [pytest.mark.net, pytest.mark.quiet]


def test_a_run_captures_both_ends_of_each_direction(tmp_path: Path) -> None:
    options = (*SMALLER, "--trials", 1, "--set", "telemetry={capture: [north-south-0], interval: 20 ms}")
    done = run_testbed("run", write_scenario(tmp_path), "--output", tmp_path / "out", *options)
    assert done.returncode in (0, 3), done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == ["captures"]
    files = {path.name for path in (tmp_path / "out/captures").iterdir()}
    assert files == {"north-south-0.a_to_b.pcapng", "north-south-0.b_to_a.pcapng"}
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert [(entry["end"], entry["missed"]) for entry in manifest["captures"]] == [
        ("entry", 0),
        ("exit", 0),
    ] * 2

    with PcapNgReader(str(tmp_path / "out/captures/north-south-0.a_to_b.pcapng")) as reader:
        packets = list(reader)
    counts = Counter(packet.sniffed_on for packet in packets)
    recorded = {entry["end"]: entry["packets"] for entry in manifest["captures"][:2]}
    assert counts == recorded
    # its queue drops what slow start sends too much; what left had entered, 5 ms and its time on the wire before
    entered = {bytes(packet): float(packet.time) for packet in packets if packet.sniffed_on == "entry"}
    left = [packet for packet in packets if packet.sniffed_on == "exit"]
    assert len(entered) >= len(left) > 20
    for packet in left:
        assert float(packet.time) - entered[bytes(packet)] > 0.004
    assert all(packet[IP].src.startswith("10.0.") for packet in left)
    assert any(TCP in packet and (packet.wirelen or 0) > 8000 for packet in left)
    origin_s = manifest["origin_epoch_s"]
    samples = [json.loads(line) for line in (tmp_path / "out/samples.jsonl").read_text().splitlines()]
    last_s = max(sample["end_s"] for sample in samples)
    assert any(0 < time_s - origin_s < last_s for time_s in entered.values())

    links = [json.loads(line) for line in (tmp_path / "out/links.jsonl").read_text().splitlines()]
    times = sorted({line["time_s"] for line in links})
    assert len(times) > 20 * (times[-1] - times[0])  # 50 a second, on an idle machine


def test_a_link_that_is_not_there_cannot_be_captured(tmp_path: Path) -> None:
    done = run_testbed("check", write_scenario(tmp_path), "--set", "telemetry.capture=[north-west-0]")
    assert done.returncode == 2
    assert "telemetry.capture.0: got 'north-west-0', expected a WAN link: north-south-0" in done.stderr
