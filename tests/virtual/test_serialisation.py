"""Each hop takes a frame's own time, exactly, and a queue that is not the sender's own fills: against theory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.virtual.conftest import WALL_S, ordinary_user

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(WALL_S)]

DELAY_S = 2.5e-3
EXACT_S = 0.1e-6
HEADER_S = 1e-6  # what a cut-through switch takes


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the script says, from one guest."""
    inside = Path(__file__).with_name("serialisation_inside.py")
    with ordinary_user() as person:
        done = person.call("virtual", "exec", "--", sys.executable, str(inside))
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_store_and_forward_takes_a_frames_time_at_every_hop(found: dict[str, Any]) -> None:
    own_s = 1442 * 8 / 1e6
    assert found["one"]["inside"] == [pytest.approx(2 * own_s, abs=EXACT_S)]
    assert found["one"]["across"] == [pytest.approx(3 * own_s + DELAY_S, abs=EXACT_S)]


def test_a_transit_site_adds_its_links_delay_and_a_frames_time(found: dict[str, Any]) -> None:
    own_s = 1442 * 8 / 1e6
    assert found["transit_s"] == pytest.approx(4 * own_s + 1.5e-3 + 4e-3, abs=EXACT_S)


def test_cut_through_takes_it_once_within_a_building_and_stores_what_leaves(found: dict[str, Any]) -> None:
    own_s = 1442 * 8 / 1e6
    assert found["early"]["inside"] == [pytest.approx(own_s + HEADER_S, abs=EXACT_S)]
    # the far building's switch gets the frame whole, from the edge
    assert found["early"]["across"] == [pytest.approx(3 * own_s + DELAY_S, abs=EXACT_S)]


@pytest.mark.parametrize("where", ["inside", "across"])
def test_a_burst_of_400_frames_is_spaced_exactly(found: dict[str, Any], where: str) -> None:
    own_s = 1514 * 8 / 100e6
    hops, delay_s = (2, 0.0) if where == "inside" else (3, DELAY_S)
    expected = [delay_s + (hops + number) * own_s for number in range(400)]
    # whole nanoseconds, rounded off at each frame
    assert found["burst"][where] == pytest.approx(expected, abs=EXACT_S + 400e-9)


def test_frames_of_different_sizes_wait_for_each_other_as_on_a_wire(found: dict[str, Any]) -> None:
    sizes, rate = [1514, 100, 1514, 100], 100e6
    ends = [0.0] * len(sizes)
    for hop in range(3):
        free_s = 0.0
        for number, size in enumerate(sizes):
            free_s = ends[number] = max(ends[number], free_s) + size * 8 / rate
        if hop == 1:
            ends = [end + DELAY_S for end in ends]
    assert found["mixed"]["across"] == pytest.approx(ends, abs=EXACT_S)


def test_a_tenth_of_a_microsecond_is_kept_at_a_hundred_gigabits(found: dict[str, Any]) -> None:
    own_s = 1514 * 8 / 100e9
    expected = [DELAY_S + (3 + number) * own_s for number in range(3)]
    assert found["fast"]["across"] == pytest.approx(expected, abs=EXACT_S)


def test_one_flow_fills_four_bandwidth_delay_products(found: dict[str, Any]) -> None:
    """ns-3 3.44 has 64.9 ms of 80 here."""
    assert found["cubic_s"] == pytest.approx(0.0649, rel=0.1)
