"""Hosts of other jobs on the same network: where each is, whom it sends to. Ready for JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.config import Host, NeighbourSpec, Topology

# above those of ranks; the same in every run with the same seed, as hashes go by ports
SOURCE_PORT_BASE = 54_000
SOURCE_PORTS = 5_000


@dataclass(frozen=True)
class NeighbourPlace:
    """One host of another job. targets: addresses to which it sends; source_port: of its first connection."""

    job: str
    host: str
    ip: str
    namespace_pid: int
    targets: tuple[str, ...]
    connections: int
    dscp: int
    congestion_control: str | None
    source_port: int

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> NeighbourPlace:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        return cls(**{**document, "targets": tuple(document["targets"])})


def neighbour_places(
    specs: Sequence[NeighbourSpec],
    topology: Topology,
    pid_of: Callable[[str], int],
    congestion_control: str | None,
    seed: int,
) -> list[NeighbourPlace]:
    """Everybody's place; pid_of: a process in a host's network namespace."""
    hosts: dict[str, Host] = {host.name: host for host in topology.hosts}
    places = []
    for spec in specs:
        for name in spec.hosts:
            here = hosts[name]
            there = [hosts[other] for other in spec.hosts if hosts[other].building != here.building]
            first = (seed * 7919 + here.index * 64) % SOURCE_PORTS
            places.append(
                NeighbourPlace(
                    spec.name,
                    name,
                    here.ip,
                    pid_of(name),
                    tuple(host.ip for host in there),
                    spec.connections,
                    spec.dscp,
                    congestion_control,
                    SOURCE_PORT_BASE + first,
                )
            )
    return places
