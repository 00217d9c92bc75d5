"""Networks whose switches pause who sends to them, built for real: nothing is dropped, and the books say who stood."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from testbed.clock import clock_here
from testbed.net.errors import FabricError
from testbed.net.fabric.network import Fabric
from testbed.net.links import network_namespace
from testbed.net.links.link_engine import DirectionStats
from testbed.net.links.packet_sockets import SO_RCVBUFFORCE, SO_SNDBUFFORCE
from testbed.spec.topology import TopologySpec

pytestmark = [pytest.mark.net, pytest.mark.quiet]

SENDERS, DATAGRAMS, PAYLOAD, FRAME = 3, 300, 8972, 9014
LINE_BPS = 100e6
PAUSE = {"xoff": "90 kB", "xon": "45 kB"}


def fabric(pause: Mapping[str, str] | None, engine: str = "userspace") -> Fabric:
    """A hall of hosts, and another building of one."""
    nic: dict[str, Any] = {"rate": "100 Mbit/s", "queue": "600 kB"} | ({"pause": pause} if pause else {})
    document = {
        "name": "hall",
        "buildings": {"east": {"hosts": SENDERS + 2, "nic": nic}, "west": {"hosts": 1, "nic": nic}},
        "wan": [{"a": "east", "b": "west", "rate": "100 Mbit/s", "delay": "1 ms"}],
    }
    topology = TopologySpec.model_validate(document).resolve()
    return Fabric(topology, link_engine=engine, datapath="system" if clock_here() else "netdev")


def arrivals(up: Fabric, flows: Sequence[tuple[str, str]]) -> list[int]:
    """How many of DATAGRAMS of each (sender, receiver), all sent at once, arrive."""
    receivers, senders = [], []
    for number, (source, target) in enumerate(flows):
        address = up.topology.host(target).ip, 5000 + number
        with network_namespace(up.pids[target]):
            receivers.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receivers[-1].setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        receivers[-1].bind(address)
        with network_namespace(up.pids[source]):
            senders.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        senders[-1].setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
        senders[-1].connect(address)
    for _ in range(DATAGRAMS):
        for sender in senders:
            sender.send(bytes(PAYLOAD))
    for sender in senders:
        sender.close()
    found = []
    for receiver in receivers:
        receiver.settimeout(2.0)
        count = 0
        try:
            while count < DATAGRAMS:
                receiver.recv(FRAME)
                count += 1
        except TimeoutError:
            pass
        receiver.close()
        found.append(count)
    return found


def books(up: Fabric) -> dict[tuple[str, str], DirectionStats]:
    assert up.engine is not None
    return up.engine.stats().directions


JAM = [(f"east{number + 1}", f"east{SENDERS + 1}") for number in range(SENDERS)]
VICTIM = ("east1", f"east{SENDERS + 2}")


def test_with_pauses_all_of_an_incast_arrives_and_its_senders_stood() -> None:
    with fabric(PAUSE) as up:
        before = books(up)
        began_s = time.monotonic()
        assert arrivals(up, [*JAM, VICTIM]) == [DATAGRAMS] * (SENDERS + 1)
        took_s = time.monotonic() - began_s
        after = books(up)
        assert up.changed_settings() is None
        assert took_s > SENDERS * DATAGRAMS * FRAME * 8 / LINE_BPS
        for number in range(SENDERS):
            key = f"east{number + 1}-east-leaf", "a_to_b"
            assert after[key].pauses - before[key].pauses >= 2
            # as long as its share of the busy port leaves it, but for what its buffer holds when the jam is over
            stood_s = after[key].paused_s - before[key].paused_s
            assert stood_s > 0.2 * took_s
            assert after[key].buffer_peak_bytes > 90_000
        assert all(book.buffer_drops == book.dropped == 0 for book in after.values())


def test_without_pauses_the_same_incast_loses_what_the_port_cannot_hold() -> None:
    with fabric(None) as up:
        *jam, victim = arrivals(up, [*JAM, VICTIM])
        assert sum(jam) < SENDERS * DATAGRAMS * 0.8
        assert victim == DATAGRAMS
        assert not any(book.pauses for book in books(up).values())


def test_an_engine_that_pauses_nobody_is_refused() -> None:
    with pytest.raises(FabricError, match="netem does not support PAUSE, userspace does"):
        fabric(PAUSE, "netem").up()
