"""What steps used of links, by readings of counters at their edges."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.measure.results.link_summary import group_by_link, jain_index, plane_balance, summarise_wan_links
from testbed.measure.results.records import LinkKey
from testbed.spec.scale import Scale
from testbed.spec.topology import TopologySpec

FORTH = LinkKey("east", "west", 0, "a_to_b")
Record = dict[str, Any]


def reading(time_s: float, size: int, edge: str = "", queue: int = 0, **counted: int) -> Record:
    """Of packets of 1000 bytes."""
    key = {"a": "east", "b": "west", "plane": 0, "direction": "a_to_b"}
    counts = {"drops": 0, "losses": 0, "cut_losses": 0, "marks": 0, **counted}
    edges = {"edge": edge} if edge else {}
    return {
        **key,
        "time_s": time_s,
        "bytes": size,
        "packets": size // 1000,
        "queue_bytes": queue,
        **counts,
        **edges,
    }


def test_a_step_has_what_crossed_between_its_edges_whatever_other_readings_say() -> None:
    """Ten milliseconds between two readings by the clock, in which a straight line would see a tenth."""
    readings = group_by_link(
        [
            reading(0.0, 0),
            reading(0.05, 2000, "start", losses=1),
            reading(0.06, 902_000, "end", losses=4, drops=2, marks=7, queue=5),
            reading(0.1, 903_000, losses=4, drops=2, marks=7),
        ]
    )[FORTH]
    found = readings.during((0.05, 0.06))
    assert (found.bytes, found.packets) == (900_000, 900)
    assert (found.losses, found.drops, found.cut_losses, found.marks) == (3, 2, 0, 7)
    assert found.queue_peak_bytes == 5
    assert found.beyond_s == 0


def test_readings_beside_the_edges_miss_nothing_and_say_how_far_off_they_were() -> None:
    rows = [reading(0.9, 0), reading(0.99, 4000, "start"), reading(1.5, 9000), reading(2.02, 15_000, "end")]
    found = group_by_link(rows)[FORTH].during((1.0, 2.0))
    assert found.bytes == 11_000
    assert found.beyond_s == pytest.approx(0.03)
    # one that goes by the clock may have been begun before the end
    rows.insert(3, reading(2.001, 14_000))
    assert group_by_link(rows)[FORTH].during((1.0, 2.0)).bytes == 11_000


def test_without_readings_at_edges_the_nearest_around_the_step_are_taken() -> None:
    """As after a rank's death, when nobody says that all have ended."""
    rows = [reading(0.0, 0), reading(0.1, 1000), reading(0.2, 5000), reading(0.3, 9000)]
    readings = group_by_link(rows)[FORTH]
    assert readings.during((0.15, 0.25)).bytes == 8000
    assert readings.during((0.15, 0.25)).beyond_s == pytest.approx(0.1)
    # a reading that came too late for a start is not the step's
    late = group_by_link([*rows[:2], reading(0.2, 5000, "start"), rows[3]])[FORTH]
    assert late.during((0.19, 0.25)).bytes == 8000
    assert readings.during((-1.0, 9.0)).bytes == 9000


def test_use_of_links_is_in_real_units_by_step_and_over_all() -> None:
    topology = TopologySpec.model_validate(
        {
            "name": "pair",
            "buildings": {name: {"hosts": 1, "nic": {"rate": "1 Gbit/s"}} for name in ("east", "west")},
            "wan": [{"a": "east", "b": "west", "rate": "80 Mbit/s", "delay": "1 ms"}],
        }
    ).resolve(Scale(10))
    times = [(0.0, 0, "start"), (0.5, 250_000, "end"), (1.0, 251_000, "start"), (2.0, 751_000, "end")]
    rows = [reading(time_s, size, edge, losses=size // 50_000) for time_s, size, edge in times]
    back = [{**row, "direction": "b_to_a"} for row in rows]
    readings, steps = group_by_link([*rows, *back]), [(0.0, 0.5), (1.0, 2.0)]
    forth, _ = summarise_wan_links(topology, readings, steps, Scale(10), (0, 1))
    assert (forth["bytes"], forth["losses"], forth["beyond_s"]) == (3_750_000, 15, 0)
    assert [step["bytes"] for step in forth["steps"]] == [2_500_000, 5_000_000]
    # of a step that some replicas missed packets count, and medians leave it out
    partial, _ = summarise_wan_links(topology, readings, steps, Scale(10), (1,))
    assert (partial["bytes"], partial["losses"]) == (5_000_000, 15)
    assert [step["losses"] for step in forth["steps"]] == [5, 10]
    assert [step["utilisation"] for step in forth["steps"]] == pytest.approx([0.5, 0.5])


def test_jains_index_is_one_for_equals_and_a_share_where_one_has_all() -> None:
    assert jain_index([0.3, 0.3, 0.3]) == pytest.approx(1.0)
    assert jain_index([0.9, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain_index([0.0, 0.0]) == 1.0


def test_balance_is_that_of_parallel_planes_in_each_direction() -> None:
    rows = [
        {"a": "east", "b": "west", "plane": plane, "direction": direction, "utilisation": used}
        for direction, use in (("a_to_b", (0.5, 0.5)), ("b_to_a", (0.8, 0.0)))
        for plane, used in enumerate(use)
    ]
    rows.append({"a": "east", "b": "north", "plane": 0, "direction": "a_to_b", "utilisation": 0.1})
    assert plane_balance(rows) == [
        {"from": "east", "to": "west", "planes": 2, "jain_index": 1.0},
        {"from": "west", "to": "east", "planes": 2, "jain_index": 0.5},
    ]
