"""What a namespace's interfaces, and its kernel's protocols, have counted: whole dumps of netlink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from testbed.net.links.netlink import Netlink
from testbed.net.links.netns import network_namespace
from testbed.net.links.protocol_counters import ProtocolCounts, read_protocols
from testbed.net.links.rtnetlink_dumps import Discipline, disciplines, interfaces

_ROOT, _SHAPER_MAJOR = 0xFFFFFFFF, 1


@dataclass(frozen=True)
class PortCounts:
    """One interface since it was made.

    dropped, waiting: frames, by and in its shaper's queues; 0 where it has none. dropped_otherwise: by any other
    queueing discipline, on its way out or in.
    """

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    dropped: int = 0
    waiting: int = 0
    dropped_otherwise: int = 0

    @property
    def sent_packets(self) -> int:
        """Frames that were given to it to send: those that left, that its queues dropped, that wait in them."""
        return self.tx_packets + self.dropped + self.waiting


@dataclass(frozen=True)
class NodeCounts:
    """All interfaces of a namespace by name; `protocols` of a host's."""

    ports: Mapping[str, PortCounts]
    protocols: ProtocolCounts | None = None

    def with_packets(self, sent: int) -> NodeCounts:
        """The same of a host that has sent so many more than its protocols know of: a card with verbs, or in trains."""
        assert self.protocols is not None
        protocols = replace(self.protocols, out_packets=self.protocols.out_packets + sent)
        return replace(self, protocols=protocols)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> NodeCounts:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        ports = {name: PortCounts(**entry) for name, entry in document["ports"].items()}
        protocols = document["protocols"]
        return cls(ports, protocols and ProtocolCounts(**protocols))


def read_node(pid: int | None, protocols: bool = False) -> NodeCounts:
    """Of the network namespace of process `pid` (None: here)."""
    with network_namespace(pid), Netlink() as netlink:
        ports = read_ports(netlink)
    return NodeCounts(ports, read_protocols(pid) if protocols else None)


def read_ports(netlink: Netlink) -> dict[str, PortCounts]:
    """All interfaces: one dump of them and one of the queueing disciplines, whatever their number."""
    shapers: dict[int, Discipline] = {}
    otherwise: Counter[int] = Counter()
    for found in disciplines(netlink):
        # HTB counts what its queues drop as its own, too
        if found.parent == _ROOT and found.kind == "htb":
            shapers[found.index] = found
        elif found.parent >> 16 != _SHAPER_MAJOR:
            otherwise[found.index] += found.dropped_packets
    ports = {}
    for link in interfaces(netlink, statistics=True):
        shaper = shapers.get(link.index)
        ports[link.name] = PortCounts(
            *(link.rx_packets, link.rx_bytes, link.tx_packets, link.tx_bytes),
            dropped=shaper.dropped_packets if shaper else 0,
            waiting=shaper.waiting_packets if shaper else 0,
            dropped_otherwise=otherwise[link.index],
        )
    return ports
