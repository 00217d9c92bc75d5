"""The netem engine's commands, and how it reads the kernel's answer (in the form of iproute2's `tc -j qdisc`)."""

from __future__ import annotations

import dataclasses
import json

import pytest

from testbed.config import Direction, LossBursts
from testbed.links import LinkError, LinkWire, SettingMismatch, netem
from testbed.links.netem import NetemEngine
from testbed.links.setup import Setup
from testbed.links.shaping import Shape, shape_commands

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


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(netem, "run_script", lambda pid, script: json.dumps([*made.answers.values()]))
    monkeypatch.setattr(netem, "read_shape", lambda ipr, interface: made.shapes[interface])
    monkeypatch.setattr(netem, "tc_takes_seeds", lambda: False)
    monkeypatch.setattr(Setup, "apply", lambda setup, pid: made.commands.extend(setup.tc))
    return made


def engine() -> NetemEngine:
    return NetemEngine(1, {}, [WIRE], mtu=9000, seed=1)


def test_each_way_is_delayed_where_it_leaves_and_shaped_before_it_enters(kernel: Kernel) -> None:
    engine().start()
    # 1 Gbit/s of the smallest frames for the delay, the jitter and some room: far above the default of 1000 packets
    assert [command for command in kernel.commands if "netem" in command] == [
        "qdisc add dev w0b root netem limit 212891 delay 5000.000us 1000.000us 25.00000000%"
        " distribution pareto loss random 1.00000000%",
        "qdisc add dev w0a root netem limit 208985 delay 7000.000us"
        " loss gemodel 1.00000000% 30.00000000% 90.00000000% 2.00000000%"
        " duplicate 1.00000000% corrupt 2.00000000% reorder 3.00000000%",
    ]
    assert "qdisc replace dev p1 parent 1:1 handle 10: bfifo limit 1000000" in kernel.commands
    assert "qdisc replace dev p2 parent 1:1 handle 10: bfifo limit 2000000" in kernel.commands


def test_a_seed_is_given_where_tc_takes_one(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netem, "tc_takes_seeds", lambda: True)
    engine().start()
    seeds = {command.split(" seed ")[1] for command in kernel.commands if "netem" in command}
    assert len(seeds) == 2


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
    with pytest.raises(LinkError, match="netem is gone from w0a"):
        engine().settings()


def test_a_change_is_made_in_place(kernel: Kernel) -> None:
    running = engine()
    kernel.answers["w0b"] = qdisc("w0b", delay={"delay": 0.0})
    running.change({("east-west-0", "a_to_b"): Direction(1e9, 0.0, 0.0, 0.0, 1_000_000)})
    assert [command.split()[1] for command in kernel.commands] == ["change"] * 3


def test_queues_of_the_same_kind_change_in_place_and_others_are_replaced() -> None:
    now, marking = Shape(1e9, 100_000), Shape(1e9, 100_000, ecn_bytes=20_000)
    assert "qdisc change dev x parent 1:1 handle 10: bfifo limit 50000" in shape_commands(
        "x", dataclasses.replace(now, queue_bytes=50_000), 1500, now=now
    )
    (command,) = (line for line in shape_commands("x", marking, 1500, now=now) if "red" in line)
    assert command.startswith("qdisc replace dev x parent 1:1 handle 30: red limit 100000 min 20000 ")
    assert command.endswith("ecn nodrop")
    packets = Shape(1e9, 0, queue_packets=7)
    assert "qdisc replace dev x parent 1:1 handle 20: pfifo limit 7" in shape_commands("x", packets, 1500)
    with pytest.raises(LinkError, match="limited in bytes"):
        shape_commands("x", dataclasses.replace(marking, queue_packets=7), 1500)
