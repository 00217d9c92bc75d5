"""What is said of a run under the virtual clock before it begins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.measure.execution.resources import (
    GuestLoad,
    forecast,
    forecast_text,
    guest_loads,
    halving_option,
    required_bytes,
)
from testbed.prediction.dry_run import workloads_of
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario

MIB, GIB = 1 << 20, 1 << 30
SCENARIOS = Path(__file__).parents[3] / "scenarios"
SCALE = Scale(4000)
# As guests were seen to take, with what each might use
SEEN = json.loads((Path(__file__).parents[1] / "data/guests.json").read_text())


@pytest.fixture
def scenario() -> Scenario:
    """Two algorithms, five trials and one to warm up."""
    return load_scenario(SCENARIOS / "quickstart.yaml", ["trials=5", "warmup=1"])


@pytest.fixture
def loads(scenario: Scenario) -> dict[str, GuestLoad]:
    """Of its guests."""
    return guest_loads(scenario, workloads_of(scenario, Scale()), SCALE, None)


def test_a_step_is_counted_in_messages_bytes_and_arrays(loads: dict[str, GuestLoad]) -> None:
    ring, hierarchical = loads["ring"], loads["hierarchical"]
    assert (ring.ranks, ring.processes, ring.steps) == (8, 1, 1)
    # 2 (n - 1) / n of 8 billion parameters of four bytes, by eight ranks; each rank has as much in arrays
    assert ring.sent_bytes == pytest.approx(2 * 7 * 8.03e9 * 4 / 4000, rel=0.01)
    assert hierarchical.sent_bytes == pytest.approx(ring.sent_bytes, rel=0.01)
    assert ring.array_bytes == pytest.approx(8 * 8.03e9 * 4 / 4000, rel=0.01)
    assert ring.messages > hierarchical.messages


@pytest.mark.parametrize("seen", SEEN, ids=[seen["name"] for seen in SEEN])
def test_guests_took_what_the_laws_say(seen: dict[str, Any]) -> None:
    """Measured ones: memory to a fifth, time to two fifths."""
    names = ("ranks", "messages", "sent_bytes", "array_bytes", "alone_bytes", "steps")
    load = GuestLoad(processes=1, **{name: seen[name] for name in names})
    assert load.memory_bytes(seen["ceiling_bytes"]) == pytest.approx(seen["used_bytes"], rel=0.2)
    assert load.wall_s == pytest.approx(seen["wall_s"], rel=0.4)


def test_packets_that_ranks_carry_themselves_take_their_time() -> None:
    """128 MB between two hosts of 1 Gbit/s: a core took 21 s with datagrams, 52 for 512 MB."""
    kinds = "{tcp: {transport.kind: tcp}, nack: {}, erasure: {transport.datagram.recovery: erasure}}"
    scenario = load_scenario(SCENARIOS / "transports/incast.yaml", [f"variants={kinds}"])
    loads = guest_loads(scenario, workloads_of(scenario, Scale()), Scale(), None)
    tcp, nack, erasure = (loads[name] for name in ("tcp", "nack", "erasure"))
    assert tcp.packets_per_byte == 0
    assert nack.packets_per_byte == pytest.approx(1 / 8948)
    assert erasure.packets_per_byte == pytest.approx(1.25 / 8948)
    more_s = replace(nack, sent_bytes=512e6).wall_s - replace(nack, sent_bytes=128e6).wall_s
    assert more_s == pytest.approx(52 - 21, rel=0.2)


def test_a_run_takes_what_its_guests_do_side_by_side(scenario: Scenario, loads: dict[str, GuestLoad]) -> None:
    both = forecast(scenario, loads, 2, GIB)
    alone = forecast(scenario, loads, 1, GIB)
    assert [load.steps for load in both.loads] == [6, 6]
    assert both.wall_s == max(load.wall_s for load in both.loads)
    assert alone.wall_s == pytest.approx(sum(load.wall_s for load in both.loads))
    assert forecast(scenario, loads, 9, GIB).jobs == 2


def test_memory_is_at_most_what_a_guest_may_use(scenario: Scenario, loads: dict[str, GuestLoad]) -> None:
    assert forecast(scenario, loads, 2, 256 * MIB).memory_bytes == 256 * MIB
    assert required_bytes(forecast(scenario, loads, 2, 256 * MIB)) == 256 * MIB
    expected = forecast(scenario, loads, 2, GIB)
    assert expected.memory_bytes < required_bytes(expected) < GIB


def test_a_rank_to_a_process_needs_more(scenario: Scenario) -> None:
    workloads = workloads_of(scenario, Scale())
    packed, apart = (guest_loads(scenario, workloads, SCALE, each)["ring"] for each in (None, 1))
    assert apart.processes == 8
    assert apart.memory_bytes(GIB) - packed.memory_bytes(GIB) == 7 * 6 * MIB


def test_fewer_trials_halve_what_steps_take(scenario: Scenario, loads: dict[str, GuestLoad]) -> None:
    many = scenario.model_copy(update={"trials": 9, "warmup": 1})
    dear = {name: replace(load, messages=1e6) for name, load in loads.items()}
    assert halving_option(many, SCALE, dear, forecast(many, dear, 2, GIB)) == "--trials 3"


def test_smaller_sizes_halve_what_bytes_take(scenario: Scenario, loads: dict[str, GuestLoad]) -> None:
    single = scenario.model_copy(update={"trials": 1})
    dear = {name: replace(load, sent_bytes=10e9) for name, load in loads.items()}
    hint = halving_option(single, SCALE, dear, forecast(single, dear, 2, GIB))
    assert hint == "--set scale.size_scale=20000"


def test_nothing_halves_what_starting_takes(scenario: Scenario, loads: dict[str, GuestLoad]) -> None:
    quick = {name: replace(load, messages=1.0, sent_bytes=1.0) for name, load in loads.items()}
    assert halving_option(scenario, SCALE, quick, forecast(scenario, quick, 2, GIB)) == ""


@pytest.mark.parametrize(
    ("messages", "hint", "words"),
    [
        (5600, "", "about 14 s, and 400 MiB of memory for each guest"),
        (
            1e6,
            "--trials 2",
            "about 23 min, and 400 MiB of memory for each guest; in half the time with --trials 2",
        ),
        (1e7, "", "about 3.8 h, and 400 MiB of memory for each guest"),
    ],
)
def test_it_is_said_as_roughly_as_it_is_known(
    scenario: Scenario, loads: dict[str, GuestLoad], messages: float, hint: str, words: str
) -> None:
    these = {name: replace(load, messages=messages) for name, load in loads.items()}
    assert forecast_text(forecast(scenario, these, 2, GIB), hint) == words
