"""What is changed of a network that is up, and what is refused, as functions of plain data: no network is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.measure.execution.network_setup import require_command
from testbed.net.controller.process import ControllerApi
from testbed.net.errors import FabricError, ProgramNotFound, UnknownHost, check_host, need_root
from testbed.net.fabric import fabric_state as states
from testbed.net.fabric.fabric_state import CONTROLLER_FILE, FabricState, command_in_host
from testbed.net.fabric.flow_trace import Flow, Trace, check_trace
from testbed.net.fabric.running_fabric import (
    changed_directions,
    controller_of,
    parse_link_settings,
    parse_policy_args,
    with_queues,
)
from testbed.spec.errors import ConfigError
from testbed.spec.link_direction import Direction, QueueClass
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology

TOPOLOGY = load_topology("three-buildings").resolve()
NOW: dict[tuple[str, str], Direction] = {
    (link.name, which): getattr(link, which) for link in TOPOLOGY.wan for which in ("a_to_b", "b_to_a")
}
LINK = "north-south-0"
TENTH = Scale(size_scale=10.0)


def changed(
    link: str, direction: str | None, *settings: str, scale: Scale = TENTH
) -> dict[tuple[str, str], Direction]:
    return changed_directions(NOW, link, direction, parse_link_settings(settings), TOPOLOGY.mtu, scale)


def test_one_direction_of_a_link_is_changed_in_the_networks_scale_and_the_rest_stays() -> None:
    found = changed(LINK, "a_to_b", "rate=1 Gbit/s", "delay=30 ms")
    now = NOW[LINK, "a_to_b"]
    assert found == {(LINK, "a_to_b"): replace(now, rate_bps=1e8, delay_s=0.03)}


def test_a_link_has_two_directions_and_all_is_every_link() -> None:
    assert set(changed(LINK, None, "loss=1 %")) == {(LINK, "a_to_b"), (LINK, "b_to_a")}
    assert set(changed("all", None, "loss=1 %")) == set(NOW)
    assert {which for _, which in changed("all", "b_to_a", "loss=1 %")} == {"b_to_a"}


@pytest.mark.parametrize(
    ("link", "direction", "setting", "words"),
    [
        ("north-south-1", None, "loss=1 %", rf"LINK: got north-south-1, expected all, or .* mean {LINK}\?"),
        (LINK, "up", "loss=1 %", "--direction: got up, expected a_to_b or b_to_a"),
        (LINK, None, "jitter=1 s", "jitter: got 1 s with a delay of 0.005 s"),
        (LINK, None, "dealy=1 ms", "link set: dealy: got an unknown key"),
        (LINK, None, "delay", "expected KEY=VALUE"),
    ],
)
def test_what_does_not_fit_is_refused(link: str, direction: str | None, setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        changed(link, direction, setting)


def test_a_policy_is_asked_for_as_the_controller_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse_policy_args("failover", ["over=te"])["options"] == {"over": "te"}
    with pytest.raises(ConfigError, match="over with policy shortest"):
        parse_policy_args("shortest", ["over=ecmp"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=str(tmp_path / "mine.py")):
        parse_policy_args("mine.py:Mine")


def test_a_policys_queues_are_those_of_wan_links_only() -> None:
    classes = (QueueClass("gold", (46,), share=0.5), QueueClass("rest"))
    now = {**NOW, ("host-port", "a_to_b"): NOW[LINK, "a_to_b"]}
    found = with_queues(now, [LINK], classes)
    assert set(found) == {(LINK, "a_to_b"), (LINK, "b_to_a")}
    assert all(own == replace(NOW[where], classes=classes) for where, own in found.items())


def test_a_networks_controller_is_found_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "STATE_ROOT", tmp_path)
    state = FabricState("ab12", 1, 0.0)
    with pytest.raises(FabricError, match="ab12 has no controller"):
        controller_of(state)
    state.folder.mkdir()
    (state.folder / CONTROLLER_FILE).write_text(json.dumps({"port": 7, "token": "secret"}))
    assert controller_of(state) == ControllerApi(7, "secret")


@pytest.mark.parametrize(
    ("source", "target", "protocol", "words"),
    [
        ("north1", "nort", "udp", r"TARGET: got nort, expected a host: .* mean north2\?"),
        ("nowhere", "north1", "udp", "SOURCE: got nowhere"),
        ("north1", "north1", "udp", "expected a host other than SOURCE"),
        ("north1", "south1", "icmp", "--protocol: got icmp, expected udp or tcp"),
    ],
)
def test_a_flow_that_cannot_be_traced_is_refused(source: str, target: str, protocol: str, words: str) -> None:
    hosts = [host.name for host in TOPOLOGY.hosts]
    check_trace(hosts, "north1", "south1", Flow("tcp"))
    with pytest.raises(ConfigError, match=words):
        check_trace(hosts, source, target, Flow(protocol))


def test_a_traces_document_has_its_paths_by_their_packets() -> None:
    trace = Trace(sent=4, one_way_s=[0.1, 0.2, 0.3])
    trace.paths.update({(): 1, ((LINK, "a_to_b"),): 2})
    trace.dscp[46] = 3
    document = trace.document()
    assert document["arrived"] == 3
    assert document["paths"] == [
        {"links": [{"link": LINK, "direction": "a_to_b"}], "packets": 2},
        {"links": [], "packets": 1},
    ]
    assert json.loads(json.dumps(document))["dscp"] == {"46": 3}


def test_a_host_that_there_is_not_is_bad_input() -> None:
    check_host("east1", ["east1", "west1"])
    with pytest.raises(UnknownHost, match=r"host: got east9, expected one of east1, west1") as caught:
        check_host("east9", ["east1", "west1"])
    assert caught.value.status == 2
    assert ProgramNotFound("x").status == 127


def test_what_needs_root_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(FabricError, match="changing a link needs root: run it through sudo"):
        need_root("changing a link")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    need_root("changing a link")


def test_a_command_is_run_inside_a_host_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    state = FabricState("ab12", 1, 0.0, pids={"east1": 77}, details={"hosts": [{"name": "east1"}]})
    assert command_in_host(state, "east1", ("true", "-x")) == ["mnexec", "-a", "77", "true", "-x"]
    with pytest.raises(UnknownHost, match="HOST: got west1, expected one of east1"):
        command_in_host(state, "west1", ["true"], "HOST")
    with pytest.raises(ProgramNotFound, match="no-such-program: command not found"):
        command_in_host(state, "east1", ["no-such-program"])
    with pytest.raises(ConfigError, match="COMMAND: got nothing, expected a program"):
        require_command([])
