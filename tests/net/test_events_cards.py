"""What events do to hosts' cards, and to links that go dark unseen, with packets on a real network."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from testbed.clock import clock_here
from testbed.measure.execution.event_player import changed_by, condition
from testbed.net.fabric.faults import HEALTHY, Condition, Faults
from testbed.net.fabric.network import Fabric
from testbed.net.links import LinkError
from testbed.net.links.netns import network_namespace, run_script
from testbed.net.links.packet_sockets import measure_one_way_delays, udp_pair
from testbed.processes import suppress_tcp_close
from testbed.spec.events import EventSpec
from testbed.spec.scale import UNSCALED
from testbed.spec.topology import Topology, TopologySpec
from tests.net.conftest import skip_without

pytestmark = [pytest.mark.net, pytest.mark.quiet]

PATIENCE_S = 3.0
QUIET_S = 0.15  # after which nothing more of what was sent arrives
DARK = Condition(links_dark=frozenset({"east-west-0"}))
CUT_AND_DARK = Condition(frozenset({"east-west-0"}), links_dark=frozenset({"east-west-0"}))
CARD_DELAY_S = 0.002


def topology() -> Topology:
    """The cards of west take time, so that a link engine carries them; those of east do not."""
    document = {
        "name": "two",
        "mtu": 1500,
        "buildings": {
            "east": {"hosts": 2, "nic": {"rate": "1 Gbit/s"}, "switching": "cut_through"},
            "west": {"hosts": 2, "nic": {"rate": "1 Gbit/s", "delay": "2 ms"}},
        },
        "wan": [{"a": "east", "b": "west", "planes": 1, "rate": "100 Mbit/s", "delay": "1 ms"}],
    }
    return TopologySpec.model_validate(document).resolve()


@dataclass
class Network:
    """One that is up, and what it is made to be."""

    fabric: Fabric
    faults: Faults

    def end(self, host: str) -> tuple[int, str]:
        """Where packets come from or go to."""
        (found,) = (one for one in self.fabric.topology.hosts if one.name == host)
        return self.fabric.pids[host], found.ip

    def arrive(self, source: str, target: str, packets: int = 3) -> int:
        """How many datagrams, sent one after the other, come through."""
        arrived = 0
        with udp_pair(self.end(source), self.end(target)) as (sender, receiver):
            receiver.settimeout(QUIET_S)
            for number in range(packets):
                with contextlib.suppress(OSError):  # the card has no carrier
                    sender.send(b"%d" % number)
                time.sleep(0.0005)
            with contextlib.suppress(TimeoutError):
                while receiver.recv(100):
                    arrived += 1
        return arrived

    def wait_for(self, source: str, target: str) -> None:
        """An end that has its carrier again sends a moment later."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.arrive(source, target, 1) and time.monotonic() < deadline:
            pass

    def carrier(self, node: str | None, interface: str) -> bool:
        """Whether an interface has one."""
        shown = run_script(self.fabric.pids[node] if node else None, [f"ip link show dev {interface}"])
        return "LOWER_UP" in shown

    def edges_see_carrier(self) -> list[bool]:
        """At both ends of the WAN link."""
        return [self.carrier(None, port.edge_interface) for port in self.fabric.plan.wan_ports]

    def rules(self) -> list[tuple[str, Any, Any]]:
        """The controller's, without what they have counted."""
        assert self.fabric.controller is not None
        shown = self.fabric.controller.api.rules()
        return [(edge, rule["match"], rule["actions"]) for edge, own in shown.items() for rule in own]

    def event(self, **values: Any) -> None:
        """Have one thing happen, and nothing else."""
        made = EventSpec.model_validate({"at": "0 s", **values})
        self.faults.apply(condition([made], self.fabric.topology, UNSCALED))

    def whole(self) -> None:
        """Undo all; it is as it was."""
        self.faults.apply(HEALTHY)
        for source, target in (("east1", "east2"), ("east1", "west1"), ("west1", "west2")):
            self.wait_for(source, target)
            assert self.arrive(source, target) == 3, (source, target)
        assert self.fabric.changed_settings() is None
        assert self.fabric.failure() is None


@pytest.fixture(scope="module", params=["userspace", "netem"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    skip_without(request.param)
    datapath = "system" if clock_here() else "netdev"
    with Fabric(topology(), link_engine=request.param, datapath=datapath) as built:
        yield Network(built, Faults(built))


def test_a_link_goes_dark_and_nobody_is_told(network: Network) -> None:
    before = network.rules()
    network.faults.apply(DARK)
    assert network.arrive("east1", "west1") == 0
    assert network.arrive("west2", "east2") == 0
    assert network.arrive("east1", "east2") == 3
    assert network.edges_see_carrier() == [True, True]
    assert network.rules() == before
    network.whole()


def test_a_dark_link_that_is_cut_and_mended_stays_dark(network: Network) -> None:
    network.faults.apply(DARK)
    network.faults.apply(CUT_AND_DARK)
    assert network.edges_see_carrier() == [False, False]
    network.faults.apply(DARK)
    assert network.edges_see_carrier() == [True, True]
    assert network.arrive("east1", "west1") == 0
    network.faults.apply(CUT_AND_DARK)
    network.faults.apply(Condition(links_down=frozenset({"east-west-0"})))
    assert network.arrive("east1", "west1") == 0
    network.whole()


@pytest.mark.parametrize("host", ["east1", "west1"])
def test_a_card_that_is_down_is_seen_by_itself_and_its_port_alone(network: Network, host: str) -> None:
    other = host.replace("1", "2")
    leaf, port = network.faults._nics.cables[host].b
    network.event(action="nic_down", target=host)
    assert not network.carrier(host, "eth0")
    assert not network.carrier(leaf, port)
    assert network.carrier(other, "eth0")
    assert network.arrive(other, host) == network.arrive(host, other) == 0
    assert network.arrive("east2", "west2") == 3
    network.whole()


def test_a_card_stays_down_when_its_switch_comes_back(network: Network) -> None:
    card = frozenset({"east1"})
    network.faults.apply(Condition(switches_down=frozenset({"east-leaf"}), cards_down=card))
    assert network.arrive("east2", "west1") == 0
    network.faults.apply(Condition(cards_down=card))
    network.wait_for("east2", "west1")
    assert network.arrive("east2", "west1") == 3
    assert not network.carrier("east1", "eth0")
    network.whole()


def test_a_degraded_card_takes_longer_one_way(network: Network) -> None:
    def fastest_s(source: str, target: str) -> float:
        return min(measure_one_way_delays(network.end(source), network.end(target), 5))

    there_s, back_s = fastest_s("west2", "west1"), fastest_s("west1", "west2")
    network.event(action="nic_degrade", target="west1", direction="in", set={"delay": "12 ms"})
    more_s = fastest_s("west2", "west1") - there_s
    tolerance_s = 0.0001 if clock_here() else 0.003
    assert more_s == pytest.approx(0.012 - CARD_DELAY_S, abs=tolerance_s)
    assert fastest_s("west1", "west2") == pytest.approx(back_s, abs=tolerance_s)
    network.whole()


def test_a_slow_card_sends_at_its_rate(network: Network) -> None:
    """A hundred datagrams at once, of 1 kB each: 0.81 ms at the card's rate, 80.8 ms at a hundredth of it."""
    for host in ("east1", "west1"):
        network.event(action="nic_degrade", target=host, direction="out", set={"rate": "10 Mbit/s"})
        other = host.replace("1", "2")
        with udp_pair(network.end(host), network.end(other), 1 << 20) as (sender, receiver):
            receiver.settimeout(2.0)
            for _ in range(100):
                sender.send(bytes(1000))
            receiver.recv(2000)
            begin_s = time.monotonic()
            for _ in range(99):
                receiver.recv(2000)
            took_s = time.monotonic() - begin_s
        assert took_s == pytest.approx(99 * 1042 * 8 / 10e6, rel=0.2), host
    network.whole()


def test_a_lossy_card_loses_its_share(network: Network) -> None:
    """Of 400 packets a tenth is lost: 22 to 58 by four standard deviations; in the other direction none."""
    hosts = ["west1", "east1"] if network.fabric.link_engine == "netem" else ["west1"]
    for host in hosts:
        other = host.replace("1", "2")
        network.event(action="nic_loss", target=host, loss="10 %", direction="out")
        assert 342 <= network.arrive(host, other, 400) <= 378, host
        assert network.arrive(other, host, 100) == 100, host
    network.whole()


def test_an_engine_that_does_not_carry_a_card_says_so(network: Network) -> None:
    if network.fabric.link_engine == "netem":
        pytest.skip("netem's kernels hold what comes in at every card")
    with pytest.raises(LinkError, match="east1-east-leaf: this link engine supports no delay or loss"):
        network.event(action="nic_loss", target="east1", loss="10 %")
    network.whole()


@pytest.mark.parametrize(
    "values",
    [
        {"action": "nic_down", "target": "east1"},
        {"action": "nic_down", "target": "west2"},
        {"action": "nic_degrade", "target": "east1", "set": {"rate": "500 Mbit/s"}},
        {"action": "nic_degrade", "target": "west1", "set": {"rate": "500 Mbit/s", "delay": "3 ms"}},
        {"action": "link_blackhole", "target": "east-west-0"},
    ],
)
def test_what_events_change_is_theirs_and_seen_where_it_is_nobodys(
    network: Network, values: dict[str, Any]
) -> None:
    event = EventSpec.model_validate({"at": "0 s", **values})
    carried = values["target"] in ("west1", "east-west-0") and values["action"] != "nic_down"
    told = network.fabric.link_engine == "netem" or not carried  # the other engine's settings are no kernel's
    for excused in (True, False) if told else (True,):
        watch = network.fabric.watch(*(changed_by([event], network.fabric.topology) if excused else ()))
        try:
            network.event(**values)
            watch.look(thorough=True)
            network.whole()
            watch.look(thorough=True)
            assert (watch.changes == []) == excused, [change.words for change in watch.changes]
        finally:
            watch.close()


CLIENT = """
import socket, sys, time
made = socket.create_connection((sys.argv[1], int(sys.argv[2])))
made.sendall(b"here")
print("sent", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("silently", [True, False])
def test_who_is_gone_silently_says_nothing_even_when_its_card_is_back(
    network: Network, silently: bool
) -> None:
    (pid, _), (other, address) = network.end("east1"), network.end("east2")
    with contextlib.ExitStack() as stack:
        with network_namespace(other):
            listener = stack.enter_context(socket.create_server((address, 0)))
        port = str(listener.getsockname()[1])
        client = subprocess.Popen(
            ["mnexec", "-a", str(pid), sys.executable, "-c", CLIENT, address, port],
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(client.wait)
        stack.callback(client.kill)
        assert client.stdout is not None
        stack.enter_context(client.stdout)
        listener.settimeout(10)
        accepted = stack.enter_context(listener.accept()[0])
        accepted.settimeout(1.0)
        assert accepted.recv(10) == b"here"
        assert client.stdout.readline() == "sent\n"
        if silently:
            network.event(action="nic_down", target="east1")
            os.kill(client.pid, signal.SIGSTOP)
            assert suppress_tcp_close(client.pid) == 1
        client.kill()
        client.wait()
        time.sleep(QUIET_S)  # what the other end still says in answer is lost, too
        network.faults.apply(HEALTHY)
        if silently:
            with pytest.raises(TimeoutError):
                accepted.recv(10)
            assert f":{port}" not in run_script(pid, ["ss -Htan"])
        else:
            assert accepted.recv(10) == b""
