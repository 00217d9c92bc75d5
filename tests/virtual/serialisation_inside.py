"""Runs in a guest: what single frames, a burst and one TCP flow do on a small network; prints figures as JSON."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

from testbed.net.fabric.network import Fabric
from testbed.net.links import network_namespace
from testbed.net.links.packet_sockets import receive_stamped, udp_pair
from testbed.spec.buildings import Host
from testbed.spec.topology import Topology, TopologySpec

HEADER_BYTES = 14 + 20 + 8


def topology(rate: str, wan: dict[str, Any], switching: str = "store_and_forward") -> Topology:
    """Two buildings of two hosts."""
    building = {"hosts": 2, "nic": {"rate": rate}, "switching": switching}
    document = {
        "name": "hops",
        "mtu": 1500,
        "buildings": {"east": building, "west": building},
        "wan": [{"a": "east", "b": "west", **wan}],
    }
    return TopologySpec.model_validate(document).resolve()


def arrivals_s(fabric: Fabric, here: Host, there: Host, sizes: list[int]) -> list[float]:
    """From when datagrams were sent, at once, to when each was there; sizes are of frames."""
    ends = [(fabric.state.pids[host.name], host.ip) for host in (here, there)]
    with udp_pair(ends[0], ends[1], 1 << 24) as (sender, receiver):
        receiver.settimeout(10)
        began_ns = time.time_ns()
        for size in sizes:
            sender.send(bytes(size - HEADER_BYTES))
        return [(receive_stamped(receiver)[1] - began_ns) / 1e9 for _ in sizes]


def frames(rate: str, switching: str, sizes: list[int]) -> dict[str, list[float]]:
    """Within a building, and across."""
    made = topology(rate, {"rate": rate, "delay": "2.5 ms"}, switching)
    east, neighbour, west = (made.host(name) for name in ("east1", "east2", "west1"))
    with Fabric(made, link_engine="netem", datapath="system") as fabric:
        return {
            "inside": arrivals_s(fabric, east, neighbour, sizes),
            "across": arrivals_s(fabric, east, west, sizes),
        }


def frame_through_transit_s(rate: str, size: int) -> float:
    """From a building to another one by way of a transit site, over links of 1.5 and 4 ms."""
    building = {"hosts": 1, "nic": {"rate": rate}}
    links = {"relay": "1.5 ms", "west": "4 ms"}
    document = {
        "name": "transit",
        "mtu": 1500,
        "buildings": {"east": building, "relay": {"hosts": 0}, "west": building},
        "wan": [
            {"a": here, "b": there, "rate": rate, "delay": delay}
            for here, (there, delay) in zip(("east", "relay"), links.items(), strict=True)
        ],
    }
    made = TopologySpec.model_validate(document).resolve()
    with Fabric(made, link_engine="netem", datapath="system") as fabric:
        return arrivals_s(fabric, made.host("east1"), made.host("west1"), [size])[0]


def mean_queue_s(congestion_control: str, seconds: float) -> float:
    """What one flow keeps waiting on 100 Mbit/s, 20 ms there and back, four bandwidth-delay products of queue."""
    made = topology("1 Gbit/s", {"rate": "100 Mbit/s", "delay": "10 ms", "queue": "1 MB"})
    with Fabric(made, link_engine="netem", datapath="system") as fabric:
        assert fabric.engine is not None
        here, there = (made.host(name) for name in ("east1", "west1"))
        sockets = []
        for host in (here, there):
            with network_namespace(fabric.state.pids[host.name]):
                sockets.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        client, server = sockets
        server.bind((there.ip, 0))
        server.listen(1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        client.connect(server.getsockname())
        stream, _ = server.accept()
        client.setblocking(False)
        block, began_s, waiting = bytes(1 << 20), time.monotonic(), []
        next_s = began_s + seconds / 4  # without the beginning
        while time.monotonic() < began_s + seconds:
            readable, writable, _ = select.select([stream], [client], [], 0.01)
            if writable:
                client.send(block)
            if readable:
                stream.recv(1 << 20)
            if time.monotonic() >= next_s:
                (books,) = [
                    books for (_, way), books in fabric.engine.stats().directions.items() if way == "a_to_b"
                ]
                waiting.append(books.queue_bytes)
                next_s += 0.05
        return sum(waiting) / len(waiting) * 8 / 100e6


def main() -> None:
    """All of it."""
    found = {
        "one": frames("1 Mbit/s", "store_and_forward", [1442]),
        "early": frames("1 Mbit/s", "cut_through", [1442]),
        "transit_s": frame_through_transit_s("1 Mbit/s", 1442),
        "burst": frames("100 Mbit/s", "store_and_forward", [1514] * 400),
        "mixed": frames("100 Mbit/s", "store_and_forward", [1514, 100, 1514, 100]),
        "fast": frames("100 Gbit/s", "store_and_forward", [1514] * 3),
        "cubic_s": mean_queue_s("cubic", 12),
    }
    print(json.dumps(found))


main()
