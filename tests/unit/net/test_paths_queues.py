"""Which queues are too short for what is under way."""

from __future__ import annotations

from testbed.net.paths.buffer_checks import ShortQueue, short_queues
from testbed.spec.scenario import load_scenario

SCENARIO = {
    "name": "queues",
    "topology": {
        "name": "queues",
        "buildings": {
            name: {"hosts": 1, "nic": {"rate": "100 Gbit/s"}} for name in ("east", "west", "north")
        },
        "wan": [
            {"a": "east", "b": "west", "planes": 2, "rate": "100 Gbit/s", "delay": "10 ms"},
            {"a": "west", "b": "north", "rate": "100 Gbit/s", "delay": "1 ms", "queue": "25 MB"},
        ],
    },
    "workload": {"collectives": [{"collective": "all_reduce", "size": "1 MB"}]},
}


def test_a_queue_is_short_that_holds_less_than_a_round_trip_of_bytes() -> None:
    fitting = load_scenario(SCENARIO)
    assert short_queues(fitting.topology.resolve()) == []  # auto is a round trip of bytes, and 25 MB are
    shallow = load_scenario(
        SCENARIO, ["topology.wan.0.queue=100 MB", 'topology.wan.1.a_to_b={"queue": "24 MB"}']
    )
    assert short_queues(shallow.topology.resolve()) == [
        ShortQueue("east", "west", 100_000_000, 250_000_000),  # once for both planes
        ShortQueue("west", "east", 100_000_000, 250_000_000),
        ShortQueue("west", "north", 24_000_000, 25_000_000),
    ]
