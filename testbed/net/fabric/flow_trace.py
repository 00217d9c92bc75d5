"""Trace a flow through a running fabric with probe packets: its path, DSCP and one-way delay.

Probe packets, made with scapy, leave the sending host's NIC with the flow's addresses and ports, so switches forward
them like the flow's own. Packet sockets at every WAN link's entry and at the receiving host capture them.
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
from testbed.net.fabric.fabric_state import FabricState, host_names
from testbed.net.fabric.running_fabric import command_line_error
from testbed.net.links.netns import network_namespace
from testbed.net.links.packet_sockets import open_packet_socket, receive_stamped
from testbed.processes import wait_readable

SEND_INTERVAL_S = 0.02
LAST_WAIT_S = 1.0  # longer than any delay on Earth
TOKEN_BYTES = 12
PROTOCOLS = ("udp", "tcp")
MAX_PORT, MAX_DSCP = 65_535, 63
_NUMBER = struct.Struct("!I")
_TOS_AT, _SOURCE = 15, slice(26, 30)


@dataclass(frozen=True)
class Flow:
    """The header fields of a flow that switches use: protocol ("udp" or "tcp"), ports and DSCP."""

    protocol: str = "udp"
    source_port: int = 40_000
    destination_port: int = 40_001
    dscp: int = 0


@dataclass
class Trace:
    """The result of tracing a flow.

    Attributes:
        sent: Packets sent.
        paths: Packets that arrived, by the WAN links they crossed, as (link name, direction) in order.
        one_way_s: Seconds from the sending host's socket to the receiving host's NIC, per packet.
        dscp: Packets that arrived, by their DSCP on arrival.
    """

    sent: int = 0
    paths: Counter[tuple[tuple[str, str], ...]] = field(default_factory=Counter)
    one_way_s: list[float] = field(default_factory=list)
    dscp: Counter[int] = field(default_factory=Counter)

    @property
    def arrived(self) -> int:
        """The number of packets that arrived."""
        return len(self.one_way_s)

    def document(self) -> dict[str, Any]:
        """Convert the trace to a JSON-compatible dictionary, with the most used paths first."""
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
    """Check the arguments of a trace; ConfigError, in terms of the command `probe`, if they are invalid."""
    if flow.protocol not in PROTOCOLS:
        raise command_line_error("--protocol", flow.protocol, " or ".join(PROTOCOLS))
    for argument, host in (("SOURCE", source), ("TARGET", target)):
        if host not in hosts:
            raise command_line_error(argument, host, f"a host: {did_you_mean(host, hosts)}")
    if source == target:
        raise command_line_error("TARGET", target, "a host other than SOURCE")


def trace_flow(state: FabricState, source: str, target: str, flow: Flow, count: int) -> Trace:
    """Send packets of a flow from host to host and trace them; this needs root.

    Args:
        state: The fabric's state.
        source: The sending host.
        target: The receiving host.
        flow: The flow's header fields.
        count: The number of packets.

    Raises:
        ConfigError: The arguments are invalid.
        FabricError: The caller is not root.
    """
    check_trace(host_names(state), source, target, flow)
    need_root("probing")
    from scapy.layers.inet import IP, TCP, UDP  # noqa: PLC0415 (takes a second to load)
    from scapy.layers.l2 import Ether  # noqa: PLC0415
    from scapy.packet import Raw  # noqa: PLC0415

    hosts = {host["name"]: host for host in state.details["hosts"]}
    here, there = hosts[source], hosts[target]
    layer = (UDP if flow.protocol == "udp" else TCP)(sport=flow.source_port, dport=flow.destination_port)
    head = Ether(src=here["mac"], dst=there["mac"]) / IP(src=here["ip"], dst=there["ip"], tos=flow.dscp << 2)
    with contextlib.ExitStack() as stack:
        watch = _PacketWatch(stack, state, socket.inet_aton(here["ip"]), target)
        with network_namespace(state.pids[source]):
            sender = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        sender.bind(("eth0", 0))
        for number in range(count):
            packet = bytes(head / layer / Raw(watch.token + _NUMBER.pack(number)))
            watch.sent_ns[number] = time.time_ns()
            sender.send(packet)
            watch.collect(SEND_INTERVAL_S)
        watch.collect(LAST_WAIT_S, enough=count)
    return watch.trace


class _PacketWatch:
    """Packet sockets at the entries of all WAN links and at the receiving host's NIC."""

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
        """Record captured packets for `wait_s` seconds, or until `enough` have arrived."""
        deadline = time.monotonic() + wait_s
        while self.trace.arrived != enough and (remaining_s := deadline - time.monotonic()) > 0:
            readable = wait_readable([*self._links, self._end], remaining_s)
            # links before the host, which sees a packet last
            for capture in sorted(readable, key=lambda capture: capture is self._end):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        self._record(capture, *receive_stamped(capture))
        self.trace.sent = len(self.sent_ns)

    def _record(self, where: socket.socket, packet: bytes, time_ns: int) -> None:
        at = packet.find(self.token)
        if at < 0 or packet[_SOURCE] != self._source:  # an ICMP error for a closed port quotes the packet
            return
        (number,) = _NUMBER.unpack_from(packet, at + TOKEN_BYTES)
        if where is not self._end:
            self._crossed.setdefault(number, []).append((time_ns, self._links[where]))
            return
        self.trace.one_way_s.append((time_ns - self.sent_ns[number]) / 1e9)
        self.trace.paths[tuple(link for _, link in sorted(self._crossed.get(number, [])))] += 1
        self.trace.dscp[packet[_TOS_AT] >> 2] += 1
