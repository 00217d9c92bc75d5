"""How long packets are lost when a plane is cut, seen from the wire: what switches and controller are given, no more.

Exact under the virtual clock, where the `virtual` lane runs this too; by the real one a busy machine adds to it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from testbed.clock import clock_here
from testbed.net.fabric.faults import HEALTHY, Condition, Faults
from testbed.net.fabric.network import Fabric
from testbed.net.links.packet_sockets import receive_stamped, udp_pair
from testbed.spec.control_delays import Control
from testbed.spec.topology import Topology, TopologySpec
from tests.net.conftest import skip_without

pytestmark = [pytest.mark.net, pytest.mark.quiet]

EVERY_S = 0.00025
EXACT = clock_here() == "free"
MS = 0.001 if EXACT else 0.01  # a machine that is busy for a moment must not look like a cut
CONTROL = Control(10 * MS, carrier_up_s=20 * MS, reaction_s=50 * MS, rule_s=15 * MS, silence_s=30 * MS)
LATE_S = 0.001 if EXACT else 0.3
# Open vSwitch lets so much pass from one look at its cached flows to the next: of two edges whose rules change at once
# the packets of one may go by the old ones that much longer
REVALIDATION_S = 0.005
CUT = Condition(links_down=frozenset({"east-west-0"}))
DARK = Condition(links_dark=frozenset({"east-west-0"}))


def topology() -> Topology:
    hosts = {"hosts": 1, "nic": {"rate": "1 Gbit/s"}}
    document = {
        "name": "two",
        "mtu": 1500,
        "buildings": {"east": hosts, "west": hosts},
        "wan": [{"a": "east", "b": "west", "planes": 2, "rate": "100 Mbit/s", "delay": "100 us"}],
    }
    return TopologySpec.model_validate(document).resolve()


@pytest.fixture(scope="module", params=["userspace", "netem"])
def fabric(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    skip_without(request.param)
    datapath = "system" if clock_here() else "netdev"
    with Fabric(topology(), link_engine=request.param, datapath=datapath, control=CONTROL) as built:
        yield built


@dataclass(frozen=True)
class Silence:
    """Between two datagrams that arrived: when it began after the stream did, how long it was."""

    begin_s: float
    lasted_s: float


def silence(fabric: Fabric, events: Sequence[tuple[float, Condition]], lasting_s: float) -> Silence:
    """What a steady stream of datagrams from east to west shows of these events, by the receiving kernel's stamps.

    Under the virtual clock the only one, else the longest: there may be others on a busy machine.
    """
    faults, coming = Faults(fabric), list(events)
    east, west = ((fabric.state.pids[host.name], host.ip) for host in fabric.topology.hosts)
    with udp_pair(east, west) as (sender, receiver):
        receiver.setblocking(False)
        arrived_s = []
        begin_s = time.monotonic()
        offset_s = time.time() - time.monotonic()
        while time.monotonic() < begin_s + lasting_s:
            sender.send(struct.pack("!i", 0))
            while coming and time.monotonic() >= begin_s + coming[0][0]:
                faults.apply(coming.pop(0)[1])
            if faults.due_s is not None and time.monotonic() >= faults.due_s:
                faults.apply_due()
            time.sleep(EVERY_S)
            try:
                while True:
                    arrived_s.append(receive_stamped(receiver)[1] / 1e9 - offset_s - begin_s)
            except BlockingIOError:
                pass
    faults.apply(HEALTHY)
    faults.flush()
    found = [Silence(before, after - before) for before, after in pairwise(arrived_s)]
    longest = max(found, key=lambda between: between.lasted_s)
    if EXACT:
        assert [between for between in found if between.lasted_s > 3 * MS] == [longest]
    return longest


def test_a_group_takes_the_spare_when_the_switch_sees_the_cut(fabric: Fabric) -> None:
    assert fabric.controller is not None
    fabric.controller.api.set({"name": "failover", "options": {"replan": False}})
    found = silence(fabric, [(50 * MS, CUT), (200 * MS, HEALTHY)], 300 * MS)
    assert found.begin_s == pytest.approx(50 * MS, abs=LATE_S)
    assert 0 <= found.lasted_s - CONTROL.carrier_down_s <= LATE_S


def test_a_controller_has_to_hear_of_it_to_decide_and_to_write_its_rule(fabric: Fabric) -> None:
    assert fabric.controller is not None
    fabric.controller.api.set({"name": "shortest", "replan": True})
    found = silence(fabric, [(50 * MS, CUT)], 300 * MS)
    expected_s = CONTROL.carrier_down_s + CONTROL.reaction_s + CONTROL.rule_s
    assert 0 <= found.lasted_s - expected_s <= REVALIDATION_S + LATE_S
    wait_for_all_links(fabric)


@pytest.mark.parametrize("policy", ["failover", "shortest"])
def test_edges_that_exchange_hellos_miss_those_of_a_link_that_goes_dark(fabric: Fabric, policy: str) -> None:
    assert fabric.controller is not None
    assert CONTROL.silence_s is not None
    wait_for_all_links(fabric)
    options = {"options": {"replan": False}} if policy == "failover" else {"replan": True}
    fabric.controller.api.set({"name": policy, **options})
    found = silence(fabric, [(50 * MS, DARK), (200 * MS, HEALTHY)], 350 * MS)
    by_controller_s = CONTROL.reaction_s + CONTROL.rule_s + REVALIDATION_S if policy == "shortest" else 0.0
    assert 0 <= found.lasted_s - CONTROL.silence_s <= by_controller_s + LATE_S
    wait_for_all_links(fabric)


def test_what_nobody_sees_moves_nothing(fabric: Fabric) -> None:
    assert fabric.controller is not None
    fabric.controller.api.set({"name": "failover", "options": {"replan": False}})
    found = silence(fabric, [(50 * MS, CUT), (56 * MS, HEALTHY)], 150 * MS)
    assert 5 * MS <= found.lasted_s <= 6 * MS + LATE_S


def test_a_mended_link_is_taken_again_without_a_loss_when_that_was_seen(fabric: Fabric) -> None:
    assert fabric.controller is not None
    assert fabric.engine is not None
    fabric.controller.api.set({"name": "failover", "options": {"replan": False}})
    before = fabric.engine.stats().directions["east-west-0", "a_to_b"].out_packets
    found = silence(fabric, [(50 * MS, CUT), (100 * MS, HEALTHY)], 250 * MS)
    assert 0 <= found.lasted_s - CONTROL.carrier_down_s <= LATE_S
    carried = fabric.engine.stats().directions["east-west-0", "a_to_b"].out_packets - before
    if EXACT:  # 50 ms before the cut, and what is left when the 20 ms after the mending are over
        assert carried == pytest.approx((200 * MS - CONTROL.carrier_up_s) / EVERY_S, rel=0.02)


def test_an_edge_that_dies_is_missed_by_its_neighbours_later(fabric: Fabric) -> None:
    assert fabric.controller is not None
    fabric.controller.api.set({"name": "shortest", "replan": False})
    dead = Condition(switches_down=frozenset({"west-edge"}))
    found = silence(fabric, [(50 * MS, dead), (100 * MS, HEALTHY)], 250 * MS)
    assert 0 <= found.lasted_s - 50 * MS - CONTROL.carrier_up_s <= LATE_S


def wait_for_all_links(fabric: Fabric) -> None:
    """Until the controller, which is as slow here as anywhere, has all links in use again."""
    assert fabric.controller is not None
    deadline_s = time.monotonic() + 10
    while fabric.controller.api.show()["down"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
