"""The netem engine's commands, and how it reads the kernel's answer (in the form of iproute2's `tc -j -s qdisc`)."""

from __future__ import annotations

import json

import pytest

from testbed.links import LinkError, LinkWire, SettingMismatch, netem
from testbed.links.netem import NetemEngine
from testbed.links.setup import Setup
from testbed.links.wire import Impairment

WIRE = LinkWire("east-west-0", "w0a", "w0b", Impairment(0.005, 0.001, 0.01), Impairment(0.007))


def qdisc(interface: str, delay_s: float, jitter_s: float = 0.0, loss: float = 0.0) -> dict[str, object]:
    options: dict[str, object] = {"limit": 1000, "ecn": False, "gap": 0}
    options["delay"] = {"delay": delay_s, "jitter": jitter_s, "correlation": 0}
    if loss:
        options["loss-random"] = {"loss": loss, "correlation": 0}
    return {"kind": "netem", "handle": "1:", "dev": interface, "root": True, "options": options}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[dict[str, object]]]:
    """(commands that were run, what the kernel answers)."""
    commands: list[str] = []
    answers: list[dict[str, object]] = [
        qdisc("w0b", 0.005, 0.001, 0.01),
        qdisc("w0a", 0.007),
        {"kind": "noqueue", "dev": "lo"},
    ]

    def run_script(pid: int | None, script: list[str]) -> str:
        return json.dumps(answers)

    monkeypatch.setattr(netem, "run_script", run_script)
    monkeypatch.setattr(Setup, "apply", lambda setup, pid: commands.extend(setup.tc))
    return commands, answers


def test_each_way_is_delayed_where_it_leaves(kernel: tuple[list[str], list[dict[str, object]]]) -> None:
    NetemEngine(1, [WIRE], {"east-west-0": 1e9}).start()
    made = [command for command in kernel[0] if "netem" in command]
    # 1 Gbit/s of the smallest frames for the delay, the jitter and some room: far above the default of 1000 packets
    assert made == [
        "qdisc add dev w0b root netem limit 207032 delay 5000.000us 1000.000us loss random 1.00000000%",
        "qdisc add dev w0a root netem limit 208985 delay 7000.000us",
    ]


def test_settings_are_read_back_and_a_difference_is_an_error(
    kernel: tuple[list[str], list[dict[str, object]]],
) -> None:
    engine = NetemEngine(1, [WIRE], {"east-west-0": 1e9})
    assert engine.settings() == {
        ("east-west-0", "a_to_b"): WIRE.a_to_b,
        ("east-west-0", "b_to_a"): WIRE.b_to_a,
    }
    kernel[1][1] = qdisc("w0a", 0.006)
    with pytest.raises(
        SettingMismatch, match=r"link east-west-0 b_to_a: delay_s: asked for 0.007, the system has"
    ):
        engine.start()
    del kernel[1][1]
    with pytest.raises(LinkError, match="netem is gone from w0a"):
        engine.settings()
