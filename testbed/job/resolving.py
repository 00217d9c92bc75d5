"""From what a scenario says to how the ranks of a job, and the hosts of others, are joined."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from testbed.config import BackgroundTrafficSpec, Host, Topology, TransportSpec, distance
from testbed.config.model import Strict
from testbed.fabric.plan import Multipath
from testbed.job.background import BackgroundHost
from testbed.job.socket_rules import SocketRules
from testbed.job.wiring import SUBFLOW_PORT, THIS_NAMESPACE, RankEndpoint, Wiring
from testbed.plugins import blamed
from testbed.scale import Scale
from testbed.transport.kinds import TRANSPORTS, transport_kind
from testbed.transport.kinds.base import source_of
from testbed.virtual import clock_here

# above those of ranks; the same in every run with the same seed, as hashes go by ports
BACKGROUND_PORT_BASE = 54_000
BACKGROUND_PORTS = 5_000


def endpoints_on(topology: Topology, hosts: Sequence[Host], pids: Mapping[str, int]) -> list[RankEndpoint]:
    """One rank on each of these hosts; `pids`: a process in the namespace of each host."""
    index = {building.name: building.index for building in topology.buildings}
    return [
        RankEndpoint(rank, host.name, index[host.building], host.ip, pids[host.name])
        for rank, host in enumerate(hosts)
    ]


@contextlib.contextmanager
def loopback_endpoints(ranks: int) -> Iterator[list[RankEndpoint]]:
    """Endpoints of ranks on this machine, at ports that are free."""
    with contextlib.ExitStack() as stack:
        endpoints = []
        for rank in range(ranks):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            endpoints.append(RankEndpoint(rank, "localhost", 0, "127.0.0.1", THIS_NAMESPACE, port))
        stack.close()
        yield endpoints


def options_of(spec: TransportSpec, scale: Scale) -> dict[str, Any]:
    """What the kind of transport is made with, emulated: its own keys of `transport`, and `options`. PluginError."""
    kind = TRANSPORTS.find(spec.kind)
    with blamed(f"transport {spec.kind}", source_of(kind)):
        own = {key: getattr(spec, key) for key in kind.config_keys}
        plain = {
            key: value.model_dump() if isinstance(value, Strict) else value for key, value in own.items()
        }
        return kind.emulated({**plain, **(spec.options or {})}, scale)


def multipath_of(spec: TransportSpec, hosts: Sequence[Host]) -> Multipath | None:
    """MPTCP's other subflows between the ranks on these hosts, of which the later ones dial; None without any."""
    added = transport_kind(spec.kind, options_of(spec, Scale())).added_subflows
    if not added:
        return None
    return Multipath(tuple(range(SUBFLOW_PORT, SUBFLOW_PORT + added)), tuple(host.name for host in hosts))


def wiring_of(
    spec: TransportSpec,
    scale: Scale,
    topology: Topology | None,
    endpoints: Sequence[RankEndpoint],
    seed: int,
    timeout_s: float | None = None,
    congestion_control: str | None = None,
    sockets: SocketRules | None = None,
) -> Wiring:
    """From what a scenario says, in real figures. topology: emulated; None for ranks on this machine's loopback.

    timeout_s: real; None: as `spec` says. congestion_control: None leaves the kernel's.
    """
    message_s, byte_s = software_cost(spec, scale)
    ranks = len(endpoints)
    hosts = {host.name: host for host in topology.hosts} if topology else {}
    return Wiring(
        token=secrets.token_hex(8),
        ranks=tuple(endpoints),
        seed=seed,
        timeout_s=scale.emulated_s(spec.timeout_s if timeout_s is None else timeout_s),
        kind=spec.kind,
        options=options_of(spec, scale),
        protocol=spec.protocol,
        bootstrap=spec.bootstrap,
        congestion_control=congestion_control,
        sockets=sockets or SocketRules(),
        distances=distances_of(topology, [hosts[endpoint.host] for endpoint in endpoints])
        if topology
        else (("same_rack",) * ranks,) * ranks,
        per_message_s=message_s,
        per_byte_s=byte_s,
    )


def software_cost(spec: TransportSpec, scale: Scale) -> tuple[float, float]:
    """What a message and a byte cost, emulated: where software takes no time of its own, else nothing on top."""
    return modelled_cost(spec, scale) if clock_here() == "free" else (0.0, 0.0)


def modelled_cost(spec: TransportSpec, scale: Scale) -> tuple[float, float]:
    """What a message and a byte cost the software of real hosts, as the scenario has it; emulated."""
    cost = spec.software_cost
    per_byte_s = scale.real_bytes(cost.per_gigabyte_s / 1e9)
    return scale.emulated_s(cost.per_message_s), scale.emulated_s(per_byte_s)


def distances_of(topology: Topology, hosts: Sequence[Host]) -> tuple[tuple[str, ...], ...]:
    """Per rank, how far every rank is."""
    return tuple(tuple(distance(topology, one, other) for other in hosts) for one in hosts)


def background_hosts(
    specs: Sequence[BackgroundTrafficSpec],
    topology: Topology,
    pid_of: Callable[[str], int],
    congestion_control: str | None,
    seed: int,
) -> list[BackgroundHost]:
    """Every host with background traffic; pid_of: a process in a host's network namespace."""
    hosts: dict[str, Host] = {host.name: host for host in topology.hosts}
    found = []
    for spec in specs:
        for name in spec.hosts:
            here = hosts[name]
            there = [hosts[other] for other in spec.hosts if hosts[other].building != here.building]
            first = (seed * 7919 + here.index * 64) % BACKGROUND_PORTS
            found.append(
                BackgroundHost(
                    spec.name,
                    name,
                    here.ip,
                    pid_of(name),
                    tuple(host.ip for host in there),
                    spec.connections,
                    spec.dscp,
                    congestion_control,
                    BACKGROUND_PORT_BASE + first,
                )
            )
    return found
