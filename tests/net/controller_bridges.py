"""Edge switches for tests of the controller: Open vSwitch bridges, one host and one probe namespace at each.

Each building's host namespace holds the addresses of all its hosts on one interface. WAN links are plain veth pairs
between the bridges, without delay. Everything is removed at the end, also when the test run is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from testbed.net.controller import EdgePorts
from testbed.net.links import network_namespace
from testbed.net.links.netns import run_script
from testbed.net.links.packet_sockets import SO_RCVBUFFORCE
from testbed.spec.topology import Topology, mac_address, probe_address
from tests.net.namespaces import Namespace, namespaces

LOCAL, PROBE, FIRST_WAN = 1, 2, 3
ETH_P_ALL = 0x0003
ETH_P_IP = 0x0800
ANSWER_TIMEOUT_S = 1.0
TCP_TIMEOUT_S = 10.0
TRIES = 5
SILENCE_S = 0.3

_sites = itertools.count()


@dataclass
class Site:
    """Bridges, hosts and probes of one topology."""

    topology: Topology
    prefix: str
    hosts: dict[str, Namespace]
    probes: dict[str, Namespace]
    edges: list[EdgePorts] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def bridge(self, building: str) -> str:
        return f"{self.prefix}e{self.topology.building(building).index}"

    def edge(self, building: str) -> EdgePorts:
        return next(edge for edge in self.edges if edge.building == building)

    def wan_interfaces(self, building: str) -> dict[str, str]:
        """Interface names of a building's WAN link ends, by the link's name."""
        ports = self.edge(building).wan
        return {
            link.name: f"{self.bridge(building)}p{ports[there, link.plane]}"
            for link in self.topology.wan
            for here, there in ((link.a, link.b), (link.b, link.a))
            if here == building
        }

    def set_controller(self, port: int) -> None:
        vsctl(
            *(word for b in self._bridges() for word in ("--", "set-controller", b, f"tcp:127.0.0.1:{port}"))
        )

    def flows(self, building: str) -> list[str]:
        command = ["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", self.bridge(building)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line for line in lines if "actions=" in line]

    def _bridges(self) -> list[str]:
        return [self.bridge(building.name) for building in self.topology.buildings]

    def build(self) -> None:
        for building in self.topology.buildings:
            ends = [
                (there, link.plane)
                for link in self.topology.wan
                for here, there in ((link.a, link.b), (link.b, link.a))
                if here == building.name
            ]
            wan = {end: FIRST_WAN + number for number, end in enumerate(ends)}
            self.edges.append(EdgePorts(building.name, building.index + 1, LOCAL, PROBE, wan))
        for building in self.topology.buildings:
            bridge = self.bridge(building.name)
            for port, node in ((LOCAL, self.hosts[building.name]), (PROBE, self.probes[building.name])):
                run_script(None, [f"ip link add {bridge}p{port} type veth peer name eth0 netns {node.pid}"])
                run_script(node.pid, ["ip link set lo up", *_up("eth0")])
            self._address_hosts(building.name)
            self._address_probe(building.name)
        for link in self.topology.wan:
            a, b = (self.wan_interfaces(end)[link.name] for end in (link.a, link.b))
            run_script(None, [f"ip link add {a} type veth peer name {b}"])
        words: list[str] = []
        for edge in self.edges:
            bridge = self.bridge(edge.building)
            words += ["--", "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev"]
            words += [
                "fail_mode=secure",
                "protocols=OpenFlow13",
                f"other_config:datapath-id={edge.dpid:016x}",
                "other_config:disable-in-band=true",
            ]
            for port in (edge.entry[1], edge.probe, *edge.wan.values()):
                run_script(None, _up(f"{bridge}p{port}"))
                words += ["--", "add-port", bridge, f"{bridge}p{port}"]
                words += ["--", "set", "interface", f"{bridge}p{port}", f"ofport_request={port}"]
        vsctl(*words)

    def _address_hosts(self, name: str) -> None:
        commands = [f"ip address add {host.ip}/8 dev eth0" for host in self.topology.building(name).hosts]
        mine = self.topology.building(name).index
        commands += [f"ip link set eth0 address {mac_address(f'10.{mine}.0.1')}"]
        for building in self.topology.buildings:
            if building.name != name:
                # unknown addresses too: what is to be dropped must be sent first
                addresses = [*(host.ip for host in building.hosts), f"10.{building.index}.9.9"]
                mac = mac_address(f"10.{building.index}.0.1")
                commands += [f"ip neigh replace {ip} lladdr {mac} dev eth0 nud permanent" for ip in addresses]
        commands.append(
            f"ip neigh replace 10.99.0.1 lladdr {mac_address('10.99.0.1')} dev eth0 nud permanent"
        )
        run_script(self.hosts[name].pid, commands)

    def _address_probe(self, name: str) -> None:
        commands = [f"ip link set eth0 address {_probe_mac(self.topology, name)}"]
        for index, link in enumerate(self.topology.wan):
            a, b = probe_address(index, "a"), probe_address(index, "b")
            for here, there, mine, theirs in ((link.a, link.b, a, b), (link.b, link.a, b, a)):
                if here == name:
                    commands += [
                        f"ip address add {mine}/32 dev eth0",
                        f"ip route add {theirs}/32 dev eth0 src {mine}",
                        f"ip neigh replace {theirs} lladdr {_probe_mac(self.topology, there)} dev eth0 nud permanent",
                    ]
        run_script(self.probes[name].pid, commands)


@contextlib.contextmanager
def site(topology: Topology) -> Iterator[Site]:
    """Build the edge switches of a topology, without rules and without a controller."""
    prefix = f"ct{os.getpid():x}n{next(_sites)}"
    count = len(topology.buildings)
    with namespaces(2 * count) as nodes, _removed(prefix, topology):
        hosts = {building.name: nodes[building.index] for building in topology.buildings}
        probes = {building.name: nodes[count + building.index] for building in topology.buildings}
        built = Site(topology, prefix, hosts, probes)
        built.build()
        yield built


@contextlib.contextmanager
def _removed(prefix: str, topology: Topology) -> Iterator[None]:
    """Remove bridges and interfaces at the end: by a process that waits for the end of its input, however it comes."""
    bridges = [f"{prefix}e{building.index}" for building in topology.buildings]
    script = f"""
        cat
        ovs-vsctl --timeout=20 {" ".join(f"-- --if-exists del-br {bridge}" for bridge in bridges)}
        for link in /sys/class/net/{prefix}e*; do
            [ -e $link ] && ip link del $(basename $link) 2>/dev/null
        done
        true
    """
    remover = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        remover.communicate()
        assert remover.returncode == 0


def vsctl(*words: str) -> str:
    command = ["ovs-vsctl", "--timeout=20", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _up(interface: str) -> list[str]:
    # a userspace switch takes frames as they are: without their checksums TCP would hang
    return [f"ethtool -K {interface} tx off tso off gso off gro off sg off", f"ip link set {interface} up"]


def _probe_mac(topology: Topology, building: str) -> str:
    return f"02:00:0a:ff:00:{topology.building(building).index:02x}"


Flow = tuple[int, int]
"""IP protocol and the client's port."""


def udp_exchange(here: Namespace, there: Namespace, source: str, target: str) -> bool:
    """Send a datagram to a server that answers it; whether an answer came back."""
    with (
        _socket(there, socket.SOCK_DGRAM, target) as server,
        _socket(here, socket.SOCK_DGRAM, source) as client,
    ):
        return _exchange(client, server)


def _exchange(client: socket.socket, server: socket.socket) -> bool:
    """Question and answer, asked again when lost: a busy userspace switch loses packets (its socket buffer is full)."""
    for _ in range(TRIES):
        client.sendto(b"question", server.getsockname())
        try:
            question, address = server.recvfrom(100)
            server.sendto(question, address)
            return client.recv(100) == b"question"
        except TimeoutError:
            continue
    return False


def open_flows(here: Namespace, there: Namespace, source: str, target: str, count: int) -> set[Flow]:
    """Move data both ways over `count` TCP and `count` UDP flows from one host to another.

    All sockets stay open to the end, for a port that is free again may be given out twice.
    """
    flows: set[Flow] = set()
    with ExitStack() as opened:
        listener = opened.enter_context(_socket(there, socket.SOCK_STREAM, target))
        listener.listen(count)
        for _ in range(count):
            client = opened.enter_context(_socket(here, socket.SOCK_STREAM, source))
            client.connect(listener.getsockname())
            accepted, address = listener.accept()
            opened.enter_context(accepted)
            accepted.settimeout(TCP_TIMEOUT_S)
            client.sendall(b"x" * 5000)
            _receive(accepted, 5000)
            accepted.sendall(b"y" * 5000)
            _receive(client, 5000)
            flows.add((socket.IPPROTO_TCP, address[1]))
        server = opened.enter_context(_socket(there, socket.SOCK_DGRAM, target))
        for _ in range(count):
            client = opened.enter_context(_socket(here, socket.SOCK_DGRAM, source))
            assert all(_exchange(client, server) for _ in range(3))
            flows.add((socket.IPPROTO_UDP, client.getsockname()[1]))
    return flows


def _receive(connection: socket.socket, size_bytes: int) -> None:
    while size_bytes > 0:
        data = connection.recv(size_bytes)
        assert data, "the connection ended early"
        size_bytes -= len(data)


def _socket(node: Namespace, kind: socket.SocketKind, address: str) -> socket.socket:
    with network_namespace(node.pid):
        made = socket.socket(socket.AF_INET, kind)
    made.settimeout(TCP_TIMEOUT_S if kind is socket.SOCK_STREAM else ANSWER_TIMEOUT_S)
    made.bind((address, 0))
    return made


@contextlib.contextmanager
def tcp_pair(
    here: Namespace, there: Namespace, source: str, target: str
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of one connection."""
    with (
        _socket(there, socket.SOCK_STREAM, target) as listener,
        _socket(here, socket.SOCK_STREAM, source) as client,
    ):
        listener.listen()
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            server.settimeout(TCP_TIMEOUT_S)
            yield client, server


def received(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or TimeoutError."""
    found = b""
    while len(found) < size:
        found += sock.recv(size - len(found))
    return found


def send_datagrams(here: Namespace, source: str, target: str) -> None:
    """Send UDP datagrams to port 9 of a host, expecting no answer."""
    with _socket(here, socket.SOCK_DGRAM, source) as client:
        for _ in range(TRIES):
            client.sendto(b"lost", (target, 9))
            time.sleep(0.02)


@dataclass(frozen=True)
class Seen:
    """An IPv4 packet seen on an interface; ports are 0 for other protocols than TCP and UDP."""

    source: str
    target: str
    ip_proto: int
    source_port: int
    target_port: int


class Sniffer:
    """Sees what passes interfaces, in both directions, while it is open."""

    def __init__(self, *interfaces: str, node: Namespace | None = None) -> None:
        self._sockets: dict[str, socket.socket] = {}
        with network_namespace(node.pid if node else None):
            for interface in interfaces:
                # nothing until it is bound: with a protocol it would take what passes any interface till then
                self._sockets[interface] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
                self._sockets[interface].setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
                self._sockets[interface].bind((interface, ETH_P_ALL))
                self._sockets[interface].setblocking(False)

    def __enter__(self) -> Sniffer:
        return self

    def __exit__(self, *_: object) -> None:
        for sniffing in self._sockets.values():
            sniffing.close()

    def seen(self) -> dict[str, list[Seen]]:
        """IPv4 packets since it was opened, by interface; waits a moment for stragglers."""
        time.sleep(SILENCE_S)
        return {name: list(_packets(sniffing)) for name, sniffing in self._sockets.items()}


def _packets(sniffing: socket.socket) -> Iterator[Seen]:
    with contextlib.suppress(BlockingIOError):
        while True:
            frame = sniffing.recv(65536)
            if struct.unpack_from("!H", frame, 12)[0] != ETH_P_IP:
                continue
            header_bytes = (frame[14] & 0x0F) * 4
            ports = (0, 0)
            if frame[23] in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
                ports = struct.unpack_from("!HH", frame, 14 + header_bytes)
            yield Seen(socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34]), frame[23], *ports)
