"""Networks whose switches pause who sends to them: as files say it, as they are built, and what a run says of it."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from testbed.measure.execution.network_evidence import pause_invariants, paused_links
from testbed.measure.execution.network_setup import link_engine_for
from testbed.measure.fidelity.building_invariants import lossless, no_pause_circle
from testbed.measure.results.link_summary import PausedLink, merge_paused_links
from testbed.net.fabric.bridges import HOST_QUEUE_BYTES, cables
from testbed.net.fabric.plan import Plan
from testbed.net.links.link_engine import DirectionStats, EngineStats, wire_from_json
from testbed.net.paths.buffer_checks import find_pause_cycle
from testbed.show.exchange.topology_export import list_losses
from testbed.show.report.shared_sections import describe_pauses, pause_rows
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.spec.topology import Topology, TopologySpec, load_topology

WAN = {"rate": "1 Gbit/s", "delay": "10 ms"}


def written(nic: dict[str, Any] | None = None, **wan: Any) -> dict[str, Any]:
    """Two buildings of two hosts."""
    building = {"hosts": 2, "nic": {"rate": "1 Gbit/s", **(nic or {})}}
    return {
        "name": "pair",
        "buildings": {"east": building, "west": building},
        "wan": [{"a": "east", "b": "west", **WAN, **wan}],
    }


def built(nic: dict[str, Any] | None = None, **wan: Any) -> Topology:
    return TopologySpec.model_validate(written(nic, **wan)).resolve()


@pytest.mark.parametrize(
    ("nic", "wan", "words"),
    [
        (
            {},
            {"pause": {"headroom": "1 MB"}},
            "wan.0.pause.headroom: got 1 MB, expected auto, or at least 2.527356 MB: what arrives at 1 Gbit/s "
            "in a round trip of 20 ms after a pause is sent, and three frames",
        ),
        (
            {},
            {"pause": {"headroom": "2 MB"}, "b_to_a": {"delay": "2 ms"}},
            None,
        ),
        (
            {},
            {"pause": {"headroom": "2 MB"}, "b_to_a": {"delay": "20 ms"}},
            "wan.0.pause.headroom: got 2 MB, expected auto, or at least 3.777356 MB: what arrives at 1 Gbit/s "
            "in a round trip of 30 ms after a pause is sent, and three frames",
        ),
        (
            {"pause": {"headroom": "20 kB"}},
            {},
            "buildings.east.nic.pause.headroom: got 20 kB, expected auto, or at least 27.356 kB: what arrives at "
            "1 Gbit/s in a round trip of 0 ms after a pause is sent, and three frames",
        ),
        (
            {},
            {"pause": {"xoff": "1 MB", "xon": "2 MB"}},
            "wan.0.pause.xon: got 2 MB, expected at most xoff (1 MB)",
        ),
        (
            {},
            {"pause": {}, "jitter": "1 ms"},
            "wan.0.jitter: got jitter with pause, expected only one of the two: pause must know what is in flight",
        ),
    ],
)
def test_pauses_that_cannot_be(nic: dict[str, Any], wan: dict[str, Any], words: str | None) -> None:
    if words is None:
        load_topology(written(nic, **wan))
        return
    with pytest.raises(ConfigError) as caught:
        load_topology(written(nic, **wan))
    assert words in str(caught.value).splitlines()[0]


def test_the_link_engine_carries_all_cables_of_a_network_that_pauses_and_hosts_cards_feed_them() -> None:
    plain, pausing = built(), built(pause={})
    assert (plain.pauses, pausing.pauses) == (False, True)
    assert not any(cable.needs_engine for cable in cables(plain))
    assert all(cable.needs_engine for cable in cables(pausing))
    plan = Plan(pausing, "tb0")
    wires = {wire.name: wire for wire in plan.wires()}
    assert (wires["east-west-0"].switch_a, wires["east-west-0"].switch_b) == ("east-leaf", "west-leaf")
    card = wires["east1-east-leaf"]
    assert (card.switch_a, card.switch_b) == (None, "east-leaf")
    # a paused host keeps what it cannot send, and its card lets through what the cable carries
    assert card.a_to_b.queue_bytes == HOST_QUEUE_BYTES > card.b_to_a.queue_bytes
    assert set(plan.shapes) == {(host.name, "eth0") for host in pausing.hosts}
    assert wire_from_json(json.loads(json.dumps(asdict(wires["east-west-0"])))) == wires["east-west-0"]


def test_every_tier_may_pause() -> None:
    clos = {"leaves": 2, "spines": 2, "leaf": {"pause": {}}, "spine": {"pause": {"xoff": "1 MB"}}}
    document = written({"pause": {}})
    document["buildings"]["east"] = {**document["buildings"]["east"], "hosts": 4, "clos": clos}
    topology = TopologySpec.model_validate(document).resolve()
    found = topology.building("east").clos
    assert found is not None
    assert found.leaf_uplink.pause is not None
    assert found.spine_uplink.pause is not None
    assert found.spine_uplink.pause.xoff_bytes == 1_000_000
    assert all(cable.needs_engine for cable in cables(topology))
    named = {wire.name: wire for wire in Plan(topology, "tb0").wires()}
    assert named["east-spine1-east-core"].switch_b == named["east-west-0"].switch_a == "east-core"


def test_programs_that_pause_nobody_are_given_a_topology_with_a_word() -> None:
    spec, plain = (TopologySpec.model_validate(document) for document in (written(pause={}), written()))
    assert list(list_losses(spec)) == ["pause frames of switches: queues drop instead"]
    assert list(list_losses(plain)) == []


def ring(buildings: int, pause: bool = True) -> Topology:
    names = [f"b{number}x" for number in range(buildings)]
    more: dict[str, Any] = {"pause": {}} if pause else {}
    return TopologySpec.model_validate(
        {
            "name": "ring",
            "buildings": {name: {"hosts": 1, "nic": {"rate": "1 Gbit/s"}} for name in names},
            "wan": [
                {"a": names[n], "b": names[(n + 1) % buildings], **WAN, **more} for n in range(buildings)
            ],
        }
    ).resolve()


def test_a_ring_through_which_packets_go_on_is_a_circle_of_pauses() -> None:
    circle = find_pause_cycle(ring(5))
    assert circle[0] == circle[-1]
    assert sorted(circle[1:]) == [f"b{number}x" for number in range(5)]
    steps = {(int(one[1]) - int(other[1])) % 5 for one, other in itertools.pairwise(circle)}
    assert steps in ({1}, {4})
    assert find_pause_cycle(ring(5, pause=False)) == []
    assert find_pause_cycle(ring(3)) == []  # each is everybody's neighbour
    assert find_pause_cycle(ring(4)) == []  # who is opposite is reached through the first two alone
    assert find_pause_cycle(built(pause={}, planes=2)) == []
    found = no_pause_circle(circle)
    assert (found.ok, found.severity) == (False, "caution")
    assert " to ".join(circle) in found.sentence


def test_overflowing_buffers_make_figures_untrusted() -> None:
    found = lossless(3, 10, "east-west-0 a_to_b", 1.0)
    assert (found.ok, found.severity, found.measured) == (False, "untrusted", "3 dropped")
    assert lossless(0, 10, "", 0.0).ok


def account(pauses: int = 0, paused_s: float = 0.0, peak: int = 0, drops: int = 0) -> DirectionStats:
    nothing = DirectionStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return replace(nothing, pauses=pauses, paused_s=paused_s, buffer_peak_bytes=peak, buffer_drops=drops)


def rows_of(topology: Topology, scale: Scale) -> list[dict[str, Any]]:
    keys = [(wire.name, which) for wire in Plan(topology, "tb0").wires() for which in ("a_to_b", "b_to_a")]
    first = EngineStats(10.0, dict.fromkeys(keys, account(1, 0.5)))
    late = {**dict.fromkeys(keys, account(1, 0.5)), ("east-west-0", "a_to_b"): account(5, 1.5, 4000, 2)}
    return paused_links(topology, first, EngineStats(14.0, late), scale)


def test_a_run_says_how_long_each_link_was_paused() -> None:
    assert paused_links(built(), EngineStats(0.0), EngineStats(1.0), Scale()) == []
    assert pause_invariants(built(), []) == []
    topology = built(pause={"xoff": "1 MB"})
    rows = {(row["link"], row["direction"]): row for row in rows_of(topology, Scale(size_scale=10))}
    assert len(rows) == 2 + 4  # to hosts nobody pauses
    busy = rows["east-west-0", "a_to_b"]
    assert (busy["pauses"], busy["paused_share"], busy["dropped"]) == (4, 0.25, 2)
    assert busy["buffer_peak_bytes"] == 40_000
    assert busy["buffer_bytes"] == pytest.approx(10 * 3_527_356, rel=1e-6)
    assert rows["east1-east-leaf", "a_to_b"]["buffer_bytes"] == 0
    first, second = pause_invariants(topology, list(rows.values()))
    assert (first.ok, second.ok) == (False, True)
    assert "4 pauses" in first.sentence


def test_shards_are_put_together() -> None:
    one = PausedLink(
        link="l",
        direction="a_to_b",
        pauses=3,
        paused_share=0.5,
        buffer_bytes=100,
        buffer_peak_bytes=50,
        dropped=0,
    )
    other = one.model_copy(update={"pauses": 4, "paused_share": 0.1, "buffer_peak_bytes": 70})
    (found,) = merge_paused_links([[one], [other]])
    assert (found.pauses, found.buffer_peak_bytes) == (7, 70)
    assert found.paused_share == pytest.approx(0.3)
    assert merge_paused_links([(), ()]) == ()


class _Variant:
    """As much of a variant as its pauses need."""

    def __init__(self, *pauses: PausedLink) -> None:
        self.name, self.pauses = "ours", pauses


def test_reports_name_who_stood_longest() -> None:
    links = [
        PausedLink(
            link=f"east{n}-east-leaf",
            direction="a_to_b",
            pauses=n,
            paused_share=n / 10,
            buffer_bytes=100,
            buffer_peak_bytes=50,
            dropped=0,
        )
        for n in range(3)
    ]
    variant: Any = _Variant(*links)
    assert describe_pauses(variant) == (
        "ours: 3 pauses; the sender of east2-east-leaf, a to b was paused longest, 20% of the time."
    )
    assert describe_pauses(_Variant()) == ""  # type: ignore[arg-type]
    assert [row["link"] for row in pause_rows([variant])] == ["east2-east-leaf", "east1-east-leaf"]


def test_the_engine_that_pauses_is_taken_and_another_is_refused() -> None:
    assert link_engine_for(None, pauses=False) is None
    assert link_engine_for("netem", pauses=False) == "netem"
    assert link_engine_for(None, pauses=True) == "userspace"
    with pytest.raises(ConfigError, match="expected userspace: the kernel's queues do not know"):
        link_engine_for("netem", pauses=True)


def test_the_scenario_that_comes_along_pauses_in_one_variant() -> None:
    scenario = load_scenario(Path(__file__).parents[3] / "scenarios" / "pause.yaml")
    assert [scenario.variant(name).topology.pauses for name in scenario.variant_names] == [False, False, True]
