"""What a namespace's interfaces, and its kernel's protocols, have counted: whole dumps of netlink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from testbed.links.netns import network_namespace
from testbed.links.protocols import ProtocolCounts, read_protocols

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

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> NodeCounts:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        ports = {name: PortCounts(**entry) for name, entry in document["ports"].items()}
        protocols = document["protocols"]
        return cls(ports, protocols and ProtocolCounts(**protocols))


def read_node(pid: int | None, protocols: bool = False) -> NodeCounts:
    """Of the network namespace of process `pid` (None: here)."""
    with network_namespace(pid), IPRoute() as ipr:
        ports = read_ports(ipr)
    return NodeCounts(ports, read_protocols(pid) if protocols else None)


def read_ports(ipr: IPRoute) -> dict[str, PortCounts]:
    """All interfaces: one dump of them and one of the queueing disciplines, whatever their number."""
    shapers: dict[int, Any] = {}
    otherwise: Counter[int] = Counter()
    for message in ipr.get_qdiscs():
        index, queue = message["index"], message.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")
        # HTB counts what its queues drop as its own, too
        if message["parent"] == _ROOT and message.get_attr("TCA_KIND") == "htb":
            shapers[index] = queue
        elif message["parent"] >> 16 != _SHAPER_MAJOR:
            otherwise[index] += int(queue["drops"])
    found = {}
    for link in ipr.get_links():
        stats, queue = link.get_attr("IFLA_STATS64"), shapers.get(link["index"], {})
        counted = {name: int(stats[name]) for name in ("rx_packets", "rx_bytes", "tx_packets", "tx_bytes")}
        found[link.get_attr("IFLA_IFNAME")] = PortCounts(
            **counted,
            dropped=int(queue.get("drops", 0)),
            waiting=int(queue.get("qlen", 0)),
            dropped_otherwise=otherwise[link["index"]],
        )
    return found
