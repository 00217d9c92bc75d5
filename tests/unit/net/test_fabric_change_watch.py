"""What is left out of a fingerprint where events change things, and what HTB's classes should be."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from testbed.net.fabric.change_watch import excluded_interfaces
from testbed.net.fabric.fingerprint import EVERYTHING
from testbed.net.fabric.namespace_setup import ROOT_NAME, namespace_settings
from testbed.net.fabric.plan import Plan
from testbed.net.links import SettingMismatch
from testbed.net.links.interfaces import HtbClass
from testbed.net.links.shaping import Shape, shape_commands
from testbed.net.links.shaping_readback import compare_classes
from testbed.spec.topology import load_topology

TOPOLOGIES = Path(__file__).parents[3] / "topologies"
PLAN = Plan(load_topology(TOPOLOGIES / "two-buildings.yaml").resolve(), "tb1234", link_engine="netem")
SHAPE = Shape(100e6, 576_000)
COMMANDS = shape_commands("p0", SHAPE, 9000)
BURST_TICKS = int(int(COMMANDS[1].split("burst ")[1].split()[0]) / 12_500_000 * 1e9 / 64)
WHOLE = HtbClass(12_500_000, 12_500_000, BURST_TICKS, BURST_TICKS, 12_500, 0)


def test_of_a_link_that_events_change_both_ends_and_its_fibre_are_left_out() -> None:
    assert excluded_interfaces(PLAN, ["east-west-1"], []) == [
        (ROOT_NAME, "tb1234e0p4"),
        (ROOT_NAME, "tb1234e1p4"),
        ("wan", "br1"),
        ("wan", "in-w1a"),
        ("wan", "in-w1b"),
        ("wan", "w1a"),
        ("wan", "w1b"),
    ]
    assert excluded_interfaces(PLAN, [], []) == []


def test_of_a_leaf_that_goes_down_its_hosts_are_left_out_as_well() -> None:
    found = excluded_interfaces(PLAN, [], ["east-leaf"])
    assert {("east-leaf", EVERYTHING), ("east1", EVERYTHING), (ROOT_NAME, "tb1234e0p1")} <= set(found)
    assert not {name for name, _ in found} & {"west-leaf", "west1", "wan"}


def test_of_an_edge_that_goes_down_its_links_are_left_out_as_well() -> None:
    found = set(excluded_interfaces(PLAN, [], ["east-edge"]))
    assert {("east-leaf", EVERYTHING), ("east-probe", EVERYTHING), ("wan", "w0b")} <= found
    assert {(ROOT_NAME, name) for name in PLAN.edges[0].interfaces} <= found
    assert ("west-leaf", EVERYTHING) not in found


def test_of_a_card_its_host_and_its_port_are_left_out() -> None:
    assert excluded_interfaces(PLAN, [], [], ["east2"]) == [
        ("east-leaf", "in-p1"),
        ("east-leaf", "p1"),
        ("east2", EVERYTHING),
    ]


def test_namespaces_know_which_queues_the_link_engine_has_put_there() -> None:
    pids = dict.fromkeys(
        ("wan", *(bridge.name for bridge in PLAN.bridges), "east-probe", "west-probe"), 1
    ) | dict.fromkeys((host.name for host in PLAN.topology.hosts), 1)
    carried = {settings.name: settings.engine_disciplines for settings in namespace_settings(PLAN, pids)}
    assert carried["wan"]["w0a"] == ["ingress", "netem"]
    assert carried["wan"]["in-w0a"] == ["netem"]
    assert carried[ROOT_NAME]["tb1234e0p3"] == ["bfifo", "htb"]
    assert carried["east1"] == {}
    userspace = dataclasses.replace(PLAN, link_engine="userspace")
    assert all(not settings.engine_disciplines for settings in namespace_settings(userspace, pids))


def test_every_class_of_htb_is_as_its_command_makes_it() -> None:
    compare_classes("p0", COMMANDS, {0x10001: WHOLE, 0x10010: WHOLE})
    rounded = dataclasses.replace(WHOLE, burst=WHOLE.burst - 1)  # tc rounds down
    compare_classes("p0", COMMANDS, {0x10001: WHOLE, 0x10010: rounded})
    unused = dataclasses.replace(
        WHOLE, quantum=1000
    )  # HTB shares by the quantum of leaves, and forgets an inner one's
    compare_classes("p0", COMMANDS, {0x10001: unused, 0x10010: WHOLE})


@pytest.mark.parametrize(
    ("handle", "changed", "words"),
    [
        (0x10010, {"rate": 6_250_000}, "p0: class 1:10: rate: asked for 12500000, the system has 6250000"),
        (0x10010, {"cburst": 62_500_000}, "p0: class 1:10: cburst in ticks of 64 ns"),
        (0x10010, {"quantum": 1000}, "p0: class 1:10: quantum: asked for 12500, the system has 1000"),
        (0x10010, {"prio": 3}, "p0: class 1:10: prio"),
    ],
)
def test_a_class_that_is_otherwise_is_named(handle: int, changed: dict[str, int], words: str) -> None:
    found = {0x10001: WHOLE, 0x10010: WHOLE}
    found[handle] = dataclasses.replace(WHOLE, **changed)
    with pytest.raises(SettingMismatch, match=words):
        compare_classes("p0", COMMANDS, found)


def test_classes_that_are_missing_or_that_nobody_asked_for_are_named() -> None:
    with pytest.raises(SettingMismatch, match="class 1:10: class: asked for present, the system has none"):
        compare_classes("p0", COMMANDS, {0x10001: WHOLE})
    with pytest.raises(SettingMismatch, match="class 1:77: class: asked for none, the system has present"):
        compare_classes("p0", COMMANDS, {0x10001: WHOLE, 0x10010: WHOLE, 0x10077: WHOLE})
