"""What a run counts of links and ports in its steps: to the byte, and packets by what became of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.comm.transport.wire import HEADER_BYTES, PACKET_HEADERS_BYTES
from tests.virtual.conftest import REPOSITORY, finished_run, variants_of

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]

PAYLOAD = 2 * 1024 * 1024
MTU, IP_HEADERS = 9000, PACKET_HEADERS_BYTES - 14
PLANS = REPOSITORY / "scenarios/transports/messages.py"
SCENARIO = f"""\
name: counted
topology:
  name: counted
  mtu: {MTU}
  buildings:
    east: {{hosts: 2, nic: {{rate: 1 Gbit/s}}}}
    west: {{hosts: 2, nic: {{rate: 1 Gbit/s}}}}
  wan:
    - {{a: east, b: west, rate: 2 Gbit/s, delay: 1 ms}}
ranks: 4
workload: {{plan: "{PLANS}:pairs", options: {{size: 2 MiB, flows: 1}}}}
transport: {{congestion_control: cubic}}
algorithms: [ring]
variants:
  one: {{}}
  lossy: {{topology.wan.0.loss: 5 %}}
  crowded: {{workload: {{plan: "{PLANS}:incast", options: {{size: 2 MiB}}}}}}
trials: 1
warmup: 1
seed: 1
scale: {{size_scale: 1}}
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with finished_run(SCENARIO) as folder:
        yield folder


def ways(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A variant's use of the link: there and back."""
    there, back = variants_of(folder)[name]["wan_links"]
    return there, back


def test_the_bytes_of_a_short_step_are_its_payload_and_headers(folder: Path) -> None:
    there, back = ways(folder, "one")
    stream = PAYLOAD + HEADER_BYTES
    # the sender is done before the receiver, and begins to agree on what comes next: one frame with eight bytes
    segments = -(-stream // (MTU - IP_HEADERS)) + 1
    stream += 8 + HEADER_BYTES
    assert there["beyond_s"] == back["beyond_s"] == 0
    (step,) = there["steps"]
    assert step["packets"] == segments
    assert step["bytes"] == there["bytes"] == stream + segments * PACKET_HEADERS_BYTES
    # acknowledgements: at most one for each segment
    assert back["bytes"] % PACKET_HEADERS_BYTES == 0
    assert segments / 64 < back["steps"][0]["packets"] <= segments
    step_s = variants_of(folder)["one"]["step_time_s"]["median"]
    assert there["utilisation"] == pytest.approx(there["bytes"] * 8 / 2e9 / step_s)
    assert not any(there[name] or back[name] for name in ("drops", "losses", "cut_losses", "marks"))


def test_losses_are_what_entered_a_link_and_did_not_arrive(folder: Path) -> None:
    last = [json.loads(line) for line in (folder / "links.jsonl").read_text().splitlines()][-2:]
    variant = variants_of(folder)["lossy"]
    (row,) = (row for row in variant["verdict"]["invariants"] if row["name"] == "loss_accuracy")
    found = re.search(
        r"links?, (\S+) (\S+) deviates .* of (\d+) frames .* (\d+) did not arrive", row["sentence"]
    )
    assert found is not None, row["sentence"]
    (counted,) = (line for line in last if line["direction"] == found[2])
    assert counted["losses"] == int(found[4]) > 0  # no other variant loses any
    there, back = ways(folder, "lossy")
    assert 0.02 * PAYLOAD / MTU < there["losses"] < 0.1 * PAYLOAD / MTU
    for way in (there, back):
        assert way["losses"] == way["steps"][0]["losses"] <= max(line["losses"] for line in last)
        assert way["drops"] == 0


def test_drops_inside_buildings_are_named_by_place_and_cautioned_where_nobody_gave_the_queue(
    folder: Path,
) -> None:
    variant = variants_of(folder)["crowded"]
    (port,) = variant["port_drops"]
    assert port["place"] == "the port of west-leaf to west2"
    assert (port["queue_bytes"], port["given"]) == (64 * MTU, False)
    assert port["drops"] > 10
    assert variant["verdict"]["status"] == "caution"
    failed = {row["name"]: row for row in variant["verdict"]["invariants"] if row["ok"] is False}
    assert set(failed) == {"drops_only_where_modelled"}
    assert f"{port['drops']} at {port['place']}" in failed["drops_only_where_modelled"]["sentence"]
    assert variants_of(folder)["one"]["port_drops"] == []
