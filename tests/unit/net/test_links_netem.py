"""The netem engine's commands, and how it reads the kernel's answer (in the form of iproute2's `tc -j qdisc`)."""

from __future__ import annotations

import dataclasses
import json
import struct

import pytest

from testbed.net.links import LinkError, LinkWire, SettingMismatch, netem
from testbed.net.links.ingress import IngressDelay
from testbed.net.links.interfaces import NetemOptions, Qdisc
from testbed.net.links.netem import NetemEngine
from testbed.net.links.netlink import encode_attribute
from testbed.net.links.netlink_requests import encode_command
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape, shape_commands
from testbed.net.links.shaping_readback import match_requested_classes, parse_dscp_filters
from testbed.spec.link_direction import PACKET_FAULTS, Direction, LossBursts, QueueClass

FORTH = Direction(1e9, 0.005, 0.001, 0.01, 1_000_000, jitter_distribution="pareto", jitter_correlation=0.25)
BACK = Direction(
    1e9,
    0.007,
    0.0,
    0.0,
    2_000_000,
    loss_bursts=LossBursts(0.01, 0.3, 0.9, 0.02),
    duplicate=0.01,
    corrupt=0.02,
    reorder=0.03,
)
SEEDS = {"w0b": 1656835990, "w0a": 2103209090}  # by the interface, of run seed 1
WIRE = LinkWire("east-west-0", "w0a", "w0b", "p1", "p2", FORTH, BACK)


def qdisc(interface: str, **options: object) -> dict[str, object]:
    return {"kind": "netem", "handle": "1:", "dev": interface, "root": True, "options": options}


class Kernel:
    """Takes commands, answers as told."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.answers = {
            "w0b": qdisc(
                "w0b",
                limit=1000,
                delay={"delay": 0.005, "jitter": 0.001, "correlation": 0.25},
                **{"loss-random": {"loss": 0.01, "correlation": 0}},
            ),
            "w0a": qdisc(
                "w0a",
                delay={"delay": 0.007, "jitter": 0, "correlation": 0},
                duplicate={"duplicate": 0.01, "correlation": 0},
                reorder={"reorder": 0.03, "correlation": 0},
                corrupt={"corrupt": 0.02, "correlation": 0},
                **{"loss-gemodel": {"p": 0.01, "r": 0.3, "1-h": 0.9, "1-k": 0.02}},
            ),
            "lo": {"kind": "noqueue", "dev": "lo"},
        }
        self.shapes = {"p1": Shape(1e9, 1_000_000), "p2": Shape(1e9, 2_000_000)}
        self.held: dict[str, IngressDelay] = {}  # as asked when read back last
        self.classes: dict[str, Shape] = {}
        self.seeds: dict[str, int] | None = None  # that it says it holds, other than those it was given

    def netems(self) -> dict[str, Qdisc]:
        """As the kernel tells of them, with the seeds that they were given."""
        words = [command.split() for command in self.commands if " seed " in command]
        given = SEEDS | {line[3]: int(line[line.index("seed") + 1]) for line in words}
        return {
            interface: Qdisc(
                0,
                0,
                0,
                "netem",
                bytes(24) + encode_attribute(14, struct.pack("=Q", seed)),
                0,
                0,
                0,
                0,
                0,
                b"",
            )
            for interface, seed in (given if self.seeds is None else self.seeds).items()
        }


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(netem, "run_script", lambda pid, script: json.dumps([*made.answers.values()]))
    monkeypatch.setattr(netem, "read_shape", lambda netlink, interface, filters: made.shapes[interface])
    for dump in ("read_interfaces", "read_qdiscs"):
        monkeypatch.setattr(netem, dump, lambda netlink: [])
    monkeypatch.setattr(
        netem, "verify_ingress_delays", lambda netlink, holds, names, found: made.held.update(holds)
    )
    monkeypatch.setattr(
        netem,
        "verify_classes",
        lambda netlink, interface, shape, mtu: made.classes.update({interface: shape}),
    )
    monkeypatch.setattr(NetemEngine, "_netems", lambda engine, links: made.netems())
    monkeypatch.setattr(NetemEngine, "_netlink", lambda engine, pid: None)
    monkeypatch.setattr(Setup, "apply", lambda setup, pid: made.commands.extend(setup.tc))
    return made


def engine() -> NetemEngine:
    return NetemEngine(1, {}, [WIRE], mtu=9000, seed=1)


def test_each_way_is_delayed_where_it_leaves_and_shaped_before_it_enters(kernel: Kernel) -> None:
    engine().start()
    # 1 Gbit/s of the smallest frames for the delay, the jitter and some room: far above the default of 1000 packets
    assert [command for command in kernel.commands if "netem" in command and " in-" not in command] == [
        "qdisc add dev w0b root netem limit 212891 delay 5000.000us 1000.000us 25.00000000%"
        " distribution pareto loss random 1.00000000% seed "
        f"{SEEDS['w0b']}",
        "qdisc add dev w0a root netem limit 208985 delay 7000.000us"
        " loss gemodel 1.00000000% 30.00000000% 90.00000000% 2.00000000%"
        " duplicate 1.00000000% reorder 3.00000000% corrupt 2.00000000% seed "
        f"{SEEDS['w0a']}",
    ]
    assert "qdisc replace dev p1 parent 1:10 handle 110: bfifo limit 1000000" in kernel.commands
    assert "qdisc replace dev p2 parent 1:10 handle 110: bfifo limit 2000000" in kernel.commands
    # and held for its own time where it comes in
    for entry in ("w0a", "w0b"):
        assert f"qdisc add dev in-{entry} root netem limit 1000000 rate 125000000bps" in kernel.commands
        led = f"filter add dev {entry} parent ffff: protocol all pref 20 matchall"
        assert f"{led} action mirred egress redirect dev in-{entry}" in kernel.commands
    assert kernel.held == {"w0a": IngressDelay(1e9), "w0b": IngressDelay(1e9)}
    assert kernel.classes == {"p1": Shape.from_direction(FORTH), "p2": Shape.from_direction(BACK)}


def test_each_direction_has_a_seed_of_its_own_that_is_read_back(kernel: Kernel) -> None:
    engine().start()
    held = {name: NetemOptions.parse(one.options).seed for name, one in kernel.netems().items()}
    assert len({*held.values()}) == 2
    assert engine().is_seeded()
    kernel.seeds = {"w0a": held["w0b"], "w0b": held["w0a"]}  # type: ignore[dict-item]
    with pytest.raises(
        SettingMismatch, match=rf"link east-west-0 a_to_b: seed: asked for {held['w0b']}, the"
    ):
        engine().verify()
    older = dataclasses.replace(kernel.netems()["w0a"], options=bytes(24))  # Linux 6.5 has no such attribute
    kernel.netems = lambda: dict.fromkeys(("w0a", "w0b"), older)  # type: ignore[method-assign]
    assert not engine().is_seeded()


def test_settings_are_read_back_and_a_difference_is_an_error(kernel: Kernel) -> None:
    assert engine().settings() == {("east-west-0", "a_to_b"): FORTH, ("east-west-0", "b_to_a"): BACK}
    kernel.shapes["p1"] = Shape(0.9e9, 1_000_000)
    with pytest.raises(
        SettingMismatch, match=r"link east-west-0 a_to_b: rate_bps: asked for 1000000000\.0, the system has"
    ):
        engine().start()
    kernel.shapes["p1"] = Shape(1e9, 1_000_000)
    kernel.answers["w0a"] = qdisc("w0a", delay={"delay": 0.006})
    with pytest.raises(SettingMismatch, match=r"link east-west-0 b_to_a: delay_s: asked for 0.007"):
        engine().start()
    del kernel.answers["w0a"]
    with pytest.raises(LinkError, match="netem was removed from w0a"):
        engine().settings()


@pytest.mark.parametrize("fault", PACKET_FAULTS)
def test_every_declared_fault_is_set_and_read_back(fault: str, kernel: Kernel) -> None:
    asked = Direction(1e9, 0.0, 0.0, 0.0, 1_000_000, **{fault: 0.25})  # type: ignore[arg-type]
    kernel.answers["w0b"] = qdisc("w0b", delay={"delay": 0.0}, **{fault: {fault: 0.25}})
    running = engine()
    running.change({("east-west-0", "a_to_b"): asked})
    assert running.settings()["east-west-0", "a_to_b"] == asked
    (command,) = (line for line in kernel.commands if f" {fault} 25.00000000%" in line)
    request = encode_command("tc", command, lambda name: 1)
    assert request is not None
    assert struct.pack("=I", round(0.25 * 0xFFFFFFFF)) in request.body


def test_a_change_is_made_in_place(kernel: Kernel) -> None:
    running = engine()
    kernel.answers["w0b"] = qdisc("w0b", delay={"delay": 0.0})
    running.change({("east-west-0", "a_to_b"): Direction(1e9, 0.0, 0.0, 0.0, 1_000_000)})
    assert [command.split()[1] for command in kernel.commands] == ["change"] * 5


def test_queues_of_the_same_kind_change_in_place_and_others_are_replaced() -> None:
    now, marking = Shape(1e9, 100_000), Shape(1e9, 100_000, ecn_bytes=20_000)
    assert "qdisc change dev x parent 1:10 handle 110: bfifo limit 50000" in shape_commands(
        "x", dataclasses.replace(now, queue_bytes=50_000), 1500, now=now
    )
    (command,) = (line for line in shape_commands("x", marking, 1500, now=now) if "red" in line)
    assert command.startswith("qdisc replace dev x parent 1:10 handle 310: red limit 100000 min 20000 ")
    assert command.endswith("ecn nodrop")
    packets = Shape(1e9, 0, queue_packets=7)
    assert "qdisc replace dev x parent 1:10 handle 210: pfifo limit 7" in shape_commands("x", packets, 1500)
    with pytest.raises(LinkError, match="limited in bytes"):
        shape_commands("x", dataclasses.replace(marking, queue_packets=7), 1500)


CLASSES = (
    QueueClass("pipeline", (46, 34), priority=0),
    QueueClass("jobs", (40,), priority=1, share=0.25, limit=0.5),
    QueueClass("rest", priority=2, share=0.5),
)


def test_classes_get_their_own_queues_and_filters_and_all_are_taken_away_again() -> None:
    plain, queued = Shape(1e9, 100_000), Shape(1e9, 100_000, classes=CLASSES)
    commands = shape_commands("x", queued, 1500, now=plain)
    assert [line for line in commands if "filter" in line] == [
        f"filter add dev x parent 1: protocol ip pref 10 u32 match ip dsfield {field} 0xfc flowid 1:{minor}"
        for field, minor in (("0xb8", 11), ("0x88", 11), ("0xa0", 12))
    ]
    added = [line for line in commands if line.startswith("class")]
    assert [line.split("classid ")[1].split(" burst")[0] for line in added] == [
        "1:1 htb rate 125000000bps ceil 125000000bps",
        "1:11 htb rate 125000bps ceil 125000000bps",
        "1:12 htb rate 31250000bps ceil 62500000bps",
        "1:10 htb rate 62500000bps ceil 125000000bps",
    ]
    assert [line.split()[1] for line in added] == ["change", "add", "add", "change"]
    undone = shape_commands("x", plain, 1500, now=queued)
    assert undone[1:6] == [
        "filter del dev x parent 1: pref 10",
        "qdisc del dev x parent 1:11",
        "qdisc del dev x parent 1:12",
        "class del dev x classid 1:11",
        "class del dev x classid 1:12",
    ]


def test_classes_that_are_read_back_as_asked_get_their_names() -> None:
    found = (
        QueueClass("1:10", (), 2, 0.5, 1.0),
        QueueClass("1:11", (34, 46), 0, 0.001, 1.0),
        QueueClass("1:12", (40,), 1, 0.25, 0.5),
    )
    assert match_requested_classes(found, CLASSES, 1e9) == CLASSES
    for wrong in (
        found[:2],
        (dataclasses.replace(found[0], share=0.4), *found[1:]),
        (*found[:2], dataclasses.replace(found[2], priority=0)),
        (*found[:2], dataclasses.replace(found[2], dscps=(41,))),
    ):
        assert match_requested_classes(wrong, CLASSES, 1e9) == wrong


def test_filters_are_read_from_what_tc_shows() -> None:
    shown = """filter parent 1: protocol ip pref 10 u32 chain 0
filter parent 1: protocol ip pref 10 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 *flowid 1:11 not_in_hw
  match 00b80000/00fc0000 at 0
filter parent 1: protocol ip pref 10 u32 chain 0 fh 800::801 order 2049 key ht 800 bkt 0 flowid 1:12 not_in_hw
  match 00a00000/00fc0000 at 0
"""
    assert parse_dscp_filters(shown) == {0x11: {46}, 0x12: {40}}
