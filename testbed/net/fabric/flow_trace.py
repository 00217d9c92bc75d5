"""Which path a flow takes through a running fabric, what becomes of its DSCP, and how long it takes: by packets.

Probe packets made with scapy leave the sending host's card as the flow's own would; whoever forwards by addresses and
ports treats them alike. Packet sockets on every WAN link's entry and on the receiving host see them pass.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.errors import did_you_mean
from testbed.net.errors import need_root
from testbed.net.fabric.fabric_state import FabricState
from testbed.net.links.netns import network_namespace
from testbed.net.links.packet_sockets import open_packet_socket, receive_stamped
from testbed.processes import wait_readable
from testbed.spec.errors import ConfigError, Problem

PAUSE_S = 0.02
LAST_WAIT_S = 1.0  # beyond any delay on Earth
TOKEN_BYTES = 12
PROTOCOLS = ("udp", "tcp")
LARGEST_PORT, LARGEST_DSCP = 65_535, 63
_NUMBER = struct.Struct("!I")
_TOS_AT, _SOURCE = 15, slice(26, 30)


@dataclass(frozen=True)
class Flow:
    """What identifies a flow for switches: protocol ("udp" or "tcp"), ports, DSCP."""

    protocol: str = "udp"
    source_port: int = 40_000
    destination_port: int = 40_001
    dscp: int = 0


@dataclass
class Trace:
    """What became of the packets of one flow.

    `paths` counts those that arrived by the WAN links that they crossed, as (link name, direction) in order;
    `one_way_s` are their times from one host's socket to the other's card, `dscp` counts what they carried when they
    arrived.
    """

    sent: int = 0
    paths: Counter[tuple[tuple[str, str], ...]] = field(default_factory=Counter)
    one_way_s: list[float] = field(default_factory=list)
    dscp: Counter[int] = field(default_factory=Counter)

    @property
    def arrived(self) -> int:
        """How many packets arrived."""
        return len(self.one_way_s)

    def document(self) -> dict[str, Any]:
        """Ready for JSON: paths with their packets, most first; times in seconds."""
        paths = [
            {
                "links": [dict(zip(("link", "direction"), link, strict=True)) for link in path],
                "packets": packets,
            }
            for path, packets in self.paths.most_common()
        ]
        return {
            "sent": self.sent,
            "arrived": self.arrived,
            "paths": paths,
            "one_way_s": self.one_way_s,
            "dscp": dict(self.dscp),
        }


def check_trace(hosts: Sequence[str], source: str, target: str, flow: Flow) -> None:
    """ConfigError, in the words of the command `probe`, for what cannot be traced between these hosts."""
    if flow.protocol not in PROTOCOLS:
        raise _wrong("--protocol", flow.protocol, " or ".join(PROTOCOLS))
    for argument, host in (("SOURCE", source), ("TARGET", target)):
        if host not in hosts:
            raise _wrong(argument, host, f"a host: {did_you_mean(host, hosts)}")
    if source == target:
        raise _wrong("TARGET", target, "another host than SOURCE")


def trace_flow(state: FabricState, source: str, target: str, flow: Flow, count: int) -> Trace:
    """Send `count` packets of a flow from host to host and watch them. As root; ConfigError, FabricError."""
    check_trace([host["name"] for host in state.details["hosts"]], source, target, flow)
    need_root("probing")
    from scapy.layers.inet import IP, TCP, UDP  # noqa: PLC0415 (takes a second to load)
    from scapy.layers.l2 import Ether  # noqa: PLC0415
    from scapy.packet import Raw  # noqa: PLC0415

    hosts = {host["name"]: host for host in state.details["hosts"]}
    here, there = hosts[source], hosts[target]
    layer = (UDP if flow.protocol == "udp" else TCP)(sport=flow.source_port, dport=flow.destination_port)
    head = Ether(src=here["mac"], dst=there["mac"]) / IP(src=here["ip"], dst=there["ip"], tos=flow.dscp << 2)
    with contextlib.ExitStack() as stack:
        watch = _Watch(stack, state, socket.inet_aton(here["ip"]), target)
        with network_namespace(state.pids[source]):
            sender = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        sender.bind(("eth0", 0))
        for number in range(count):
            packet = bytes(head / layer / Raw(watch.token + _NUMBER.pack(number)))
            watch.sent_ns[number] = time.time_ns()
            sender.send(packet)
            watch.collect(PAUSE_S)
        watch.collect(LAST_WAIT_S, enough=count)
    return watch.trace


def _wrong(field: str, value: str, expected: str) -> ConfigError:
    return ConfigError([Problem("command line", None, field, value, expected)])


class _Watch:
    """Packet sockets on the entries of all WAN links and on the receiving host's card."""

    def __init__(self, stack: contextlib.ExitStack, state: FabricState, source: bytes, target: str) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.sent_ns: dict[int, int] = {}
        self.trace = Trace()
        self._stack = stack
        self._source = source
        self._crossed: dict[int, list[tuple[int, tuple[str, str]]]] = {}
        self._links: dict[socket.socket, tuple[str, str]] = {}
        wires = {wire["name"]: wire for wire in state.details["wires"]}
        for link in state.details["wan"]:
            for direction, entry in (("a_to_b", "inner_a"), ("b_to_a", "inner_b")):
                self._links[self._open(state.pids["wan"], wires[link["name"]][entry])] = (
                    link["name"],
                    direction,
                )
        self._end = self._open(state.pids[target], "eth0")

    def _open(self, pid: int, interface: str) -> socket.socket:
        with network_namespace(pid):
            return self._stack.enter_context(open_packet_socket(interface))

    def collect(self, wait_s: float, enough: int | None = None) -> None:
        """Note what passes within the time, or until so many have arrived."""
        deadline = time.monotonic() + wait_s
        while self.trace.arrived != enough and (left_s := deadline - time.monotonic()) > 0:
            found = wait_readable([*self._links, self._end], left_s)
            # links before the host, which sees a packet last
            for one in sorted(found, key=lambda one: one is self._end):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        self._note(one, *receive_stamped(one))
        self.trace.sent = len(self.sent_ns)

    def _note(self, where: socket.socket, packet: bytes, time_ns: int) -> None:
        at = packet.find(self.token)
        if at < 0 or packet[_SOURCE] != self._source:  # a closed port is answered with a piece of the packet
            return
        (number,) = _NUMBER.unpack_from(packet, at + TOKEN_BYTES)
        if where is not self._end:
            self._crossed.setdefault(number, []).append((time_ns, self._links[where]))
            return
        self.trace.one_way_s.append((time_ns - self.sent_ns[number]) / 1e9)
        self.trace.paths[tuple(link for _, link in sorted(self._crossed.get(number, [])))] += 1
        self.trace.dscp[packet[_TOS_AT] >> 2] += 1
