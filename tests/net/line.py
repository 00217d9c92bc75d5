"""Two hosts with a link engine between them, for tests of engines, and what can be sent across."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.net.links import LinkEngine, LinkWire
from testbed.net.links.netem import NetemEngine
from testbed.net.links.netns import command_in_namespace, run_script
from testbed.net.links.packet_sockets import receive_stamped, udp_pair
from testbed.net.links.setup import Setup
from testbed.net.links.userspace import UserspaceEngine
from testbed.spec.link_direction import Direction
from tests.net.namespaces import Namespace, namespaces

MTU = 9000
LEFT, RIGHT = "10.99.0.1", "10.99.0.2"
# More than one bit apart: a corrupted source must not teach the bridges that the other host lives here.
MACS = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:ff:f5"}
FORTH, BACK = ("l", "a_to_b"), ("l", "b_to_a")


@dataclass(frozen=True)
class Line:
    """Two hosts, each on a bridge in `edges` whose other port leads to `middle`, where the link engine is."""

    left: Namespace
    right: Namespace
    edges: Namespace
    middle: Namespace


@contextlib.contextmanager
def two_hosts() -> Iterator[Line]:
    """The line, its namespaces gone with the block."""
    with namespaces(4) as spaces:
        left, right, edges, middle = spaces
        for space in spaces:
            run_script(space.pid, ["sysctl -qw net.ipv6.conf.all.disable_ipv6=1"])
        for host, side, address in ((left, "a", LEFT), (right, "b", RIGHT)):
            veth = f"mtu {MTU} type veth peer name"
            run_script(
                edges.pid,
                [
                    f"ip link add h{side} {veth} eth0 mtu {MTU} netns {host.pid}",
                    f"ip link add p{side} {veth} w{side} mtu {MTU} netns {middle.pid}",
                    f"ip link add br{side} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
                    *(f"ip link set {port} master br{side}" for port in (f"h{side}", f"p{side}")),
                    f"ip link set br{side} mtu {MTU} up",
                ],
            )
            ends = [(host, ["eth0"]), (edges, [f"h{side}", f"p{side}"]), (middle, [f"w{side}"])]
            for space, interfaces in ends:
                setup = Setup()
                for interface in interfaces:
                    setup.add_interface(interface, MTU)
                setup.apply(space.pid)
            mac, other_mac = (MACS[end] for end in (side, "ba"[side == "b"]))
            other = RIGHT if host is left else LEFT
            run_script(
                host.pid,
                [
                    f"ip link set eth0 address {mac}",
                    f"ip address add {address}/24 dev eth0",
                    f"ip neigh replace {other} lladdr {other_mac} dev eth0 nud permanent",
                ],
            )
        yield Line(*spaces)


@contextlib.contextmanager
def back_to_back() -> Iterator[tuple[Namespace, Namespace]]:
    """Two hosts, one cable, whose cards are set up as a fabric's are."""
    with namespaces(2) as (left, right):
        Setup(ip=[f"link add eth0 mtu {MTU} type veth peer name eth0 netns {right.pid}"]).apply(left.pid)
        for host, address in ((left, LEFT), (right, RIGHT)):
            setup = Setup(sysctls={"net/ipv6/conf/all/disable_ipv6": "1"})
            setup.add_interface("eth0", MTU)
            setup.ip.append(f"address add {address}/24 dev eth0")
            setup.apply(host.pid)
        yield left, right


def direction(rate_bps: float = 1e9, delay_s: float = 0.0, **more: Any) -> Direction:
    return Direction(rate_bps, delay_s, **({"jitter_s": 0.0, "loss": 0.0, "queue_bytes": 10_000_000} | more))


@contextlib.contextmanager
def running(
    kind: str, line: Line, folder: Path, forth: Direction, back: Direction | None = None, seed: int = 1
) -> Iterator[LinkEngine]:
    """An engine that carries the line's frames."""
    wire = LinkWire("l", "wa", "wb", "pa", "pb", forth, back or direction(), "edges", "edges")
    engine: LinkEngine = (
        NetemEngine(line.middle.pid, {"edges": line.edges.pid}, [wire], MTU, seed)
        if kind == "netem"
        else UserspaceEngine(line.middle.pid, [wire], folder / "links.sock", seed)
    )
    try:
        engine.start()
        run_script(line.left.pid, [f"ping -q -c 1 -w 20 {RIGHT}"])  # the bridges know who is where
        yield engine
    finally:
        engine.stop()


@dataclass(frozen=True)
class Arrival:
    """A datagram: its number, seconds from sending to arrival, and from the sending of the first one to its arrival."""

    number: int
    took_s: float
    at_s: float


def stream(
    line: Line, count: int, pause_s: float = 0.0, size: int = 100, settle_s: float = 0.3
) -> list[Arrival]:
    """Send numbered datagrams from left to right; what arrives, in its order."""
    found = []
    with udp_pair((line.left.pid, LEFT), (line.right.pid, RIGHT)) as (sender, receiver):
        receiver.settimeout(settle_s)
        sent_ns = []
        for number in range(count):
            sent_ns.append(time.time_ns())
            sender.send(number.to_bytes(4, "big") + bytes(size - 4))
            if pause_s:
                time.sleep(pause_s)
        with contextlib.suppress(TimeoutError):
            while True:
                packet, arrived_ns = receive_stamped(receiver)
                number = int.from_bytes(packet[:4], "big")
                took_ns, at_ns = arrived_ns - sent_ns[number], arrived_ns - sent_ns[0]
                found.append(Arrival(number, took_ns / 1e9, at_ns / 1e9))
    return found


def fastest_ping_s(line: Line, count: int = 30, interval_s: float = 0.03) -> float:
    """What the link itself takes there and back; on a busy machine other packets also wait for a core.

    interval_s: ping spins while the next one is due within 10 ms and none is under way, which in a guest is a minute.
    """
    command = command_in_namespace(
        line.left.pid, ["ping", "-c", str(count), "-i", str(interval_s), "-W", "1", RIGHT]
    )
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return min(float(found) for found in re.findall(r"time=([\d.]+) ms", said)) / 1000


def balanced(engine: LinkEngine) -> bool:
    """Whether the books of both directions account for every packet."""
    return all(
        books.in_packets + books.duplicated
        == books.out_packets + books.lost + books.cut + books.dropped + books.overrun + books.held
        for books in engine.stats().directions.values()
    )
