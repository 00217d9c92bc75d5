"""Forwarding rules as plain data, and their JSON form, independent of controller libraries and switches.

Of all matching rules in a switch's first table the one of highest priority applies. Its actions may include going to a
later table; a rule without actions drops the packet. Field names are OpenFlow's.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from testbed.net.controller.ecmp_hash import TCP, UDP, flow_hash

FORMAT = 1
# The highest physical port in Open vSwitch; above it are OFPP_FLOOD, OFPP_CONTROLLER, ...
MAX_PORT = 0xFEFF
MAX_SEED = MAX_PRIORITY = MAX_TCP_PORT = 0xFFFF
MAX_DSCP = 63
PORT_FIELDS = ("tcp_src", "tcp_dst", "udp_src", "udp_dst")
MAX_GROUP = 0x7FFF_FFFF
MAX_TABLE = 253
MAX_BUNDLE_MEMBERS = 2048  # the limit of Open vSwitch's bundle action


@dataclass(frozen=True)
class Packet:
    """The header of an IPv4 packet; `ip_proto` is 6 for TCP, 17 for UDP."""

    ipv4_src: str
    ipv4_dst: str
    ip_proto: int = TCP
    source_port: int = 0
    destination_port: int = 0
    ip_dscp: int = 0

    @cached_property
    def source(self) -> int:
        """`ipv4_src` as a number."""
        return int(IPv4Address(self.ipv4_src))

    @cached_property
    def destination(self) -> int:
        """`ipv4_dst` as a number."""
        return int(IPv4Address(self.ipv4_dst))

    def flow_hash(self, seed: int) -> int:
        """Return the ECMP hash, which both directions of a flow share."""
        ports = self.source_port, self.destination_port
        return flow_hash(self.source, self.destination, self.ip_proto, *ports, seed)


@dataclass(frozen=True)
class Ports:
    """The TCP or UDP ports that equal `value` in the bits of `mask`: all bits for one port, low bits for a channel."""

    value: int
    mask: int = MAX_TCP_PORT

    def __post_init__(self) -> None:
        for name, number in (("value", self.value), ("mask", self.mask)):
            _check_range(f"port {name}", number, MAX_TCP_PORT)
        if self.value & ~self.mask:
            raise ValueError(f"port: got {self}, expected no bits outside the mask")

    def covers(self, port: int) -> bool:
        """Return whether a port is one of these."""
        return port & self.mask == self.value

    def __str__(self) -> str:
        return str(self.value) if self.mask == MAX_TCP_PORT else f"{self.value:#06x}/{self.mask:#06x}"


@dataclass(frozen=True)
class Match:
    """The packets that a rule applies to; a field that is None matches all packets.

    `ipv4_src` and `ipv4_dst` are networks such as "10.1.0.0/16", or one address such as "10.1.0.1/32". They and
    `ip_dscp` (0 to 63) restrict the match to IPv4 packets. TCP or UDP ports restrict it to packets of that protocol.

    Raises ValueError if a field is out of range or ports of both protocols are given.
    """

    in_port: int | None = None
    ipv4_dst: str | None = None
    ipv4_src: str | None = None
    ip_dscp: int | None = None
    tcp_src: Ports | None = None
    tcp_dst: Ports | None = None
    udp_src: Ports | None = None
    udp_dst: Ports | None = None

    def __post_init__(self) -> None:
        if self.ports(TCP) != (None, None) and self.ports(UDP) != (None, None):
            raise ValueError("ports: got TCP and UDP ports, expected ports of one protocol")
        if self.in_port is not None:
            _check_port("in_port", self.in_port)
        for name in ("ipv4_src", "ipv4_dst"):
            text = getattr(self, name)
            if text is not None and parse_network(text)[1] == 0:
                raise ValueError(f"{name}: got {text!r}, expected address/length with length 1 to 32")
        if self.ip_dscp is not None:
            _check_range("ip_dscp", self.ip_dscp, MAX_DSCP)

    def covers(self, in_port: int, packet: Packet) -> bool:
        """Return whether a packet that arrives at a port matches."""
        if self.in_port not in (None, in_port) or self.ip_dscp not in (None, packet.ip_dscp):
            return False
        for asked, address in ((self.ipv4_dst, packet.destination), (self.ipv4_src, packet.source)):
            if asked is not None:
                value, mask = parse_network(asked)
                if address & mask != value:
                    return False
        if self.ip_proto not in (None, packet.ip_proto):
            return False
        found = zip(self.ports(packet.ip_proto), (packet.source_port, packet.destination_port), strict=True)
        return all(asked is None or asked.covers(port) for asked, port in found)

    @property
    def ip_proto(self) -> int | None:
        """The IP protocol of the match's ports; None without ports."""
        return next((found for found in (TCP, UDP) if self.ports(found) != (None, None)), None)

    def ports(self, ip_proto: int) -> tuple[Ports | None, Ports | None]:
        """Return the source and destination ports for an IP protocol."""
        return (self.udp_src, self.udp_dst) if ip_proto == UDP else (self.tcp_src, self.tcp_dst)

    @property
    def ip_only(self) -> bool:
        """Whether the match is restricted to IPv4 packets."""
        return self.ip_proto is not None or (self.ipv4_src, self.ipv4_dst, self.ip_dscp) != (None, None, None)

    def __str__(self) -> str:
        named = ((item.name, getattr(self, item.name)) for item in fields(self))
        return " ".join(f"{name}={value}" for name, value in named if value is not None) or "any packet"


@lru_cache(maxsize=100_000)
def parse_network(text: str) -> tuple[int, int]:
    """Parse a network into (address, mask); mask 0 if it is not in canonical form or means all addresses."""
    try:
        found = IPv4Network(text)
    except ValueError:
        return 0, 0
    return (int(found.network_address), int(found.netmask)) if str(found) == text else (0, 0)


@dataclass(frozen=True)
class Output:
    """An action that sends the packet out of a port; as in OpenFlow, never out of its ingress port."""

    port: int

    def __post_init__(self) -> None:
        _check_port("port", self.port)

    def __str__(self) -> str:
        return f"output {self.port}"


@dataclass(frozen=True)
class Ecmp:
    """An action that sends the packet out of one of several ports, picked by a hash of its 5-tuple.

    Both directions of a flow have the same hash. A port listed several times is picked proportionally more often. Ports
    that are down are skipped. `seed` (0 to 65535) changes the assignment of flows to ports.
    """

    ports: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(set(self.ports)) < 2 or len(self.ports) > MAX_BUNDLE_MEMBERS:
            raise ValueError(
                f"ports: got {self.ports!r}, expected at least two different ports, at most {MAX_BUNDLE_MEMBERS}"
            )
        for port in self.ports:
            _check_port("ports", port)
        _check_range("seed", self.seed, MAX_SEED)

    def __str__(self) -> str:
        return f"ecmp {','.join(map(str, self.ports))} seed {self.seed}"


@dataclass(frozen=True)
class FastFailover:
    """An action that sends the packet out of the first port that is up: an OpenFlow fast-failover group."""

    ports: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.ports or len(set(self.ports)) != len(self.ports):
            raise ValueError(f"ports: got {self.ports!r}, expected one or more different ports")
        for port in self.ports:
            _check_port("ports", port)

    @property
    def group_id(self) -> int:
        """The group id, derived from the ports so that rules need not agree on ids."""
        return 1 + zlib.crc32(",".join(map(str, self.ports)).encode()) % MAX_GROUP

    def __str__(self) -> str:
        return f"first up of {','.join(map(str, self.ports))}"


@dataclass(frozen=True)
class SetDscp:
    """An action that sets the packet's DSCP."""

    dscp: int

    def __post_init__(self) -> None:
        _check_range("dscp", self.dscp, MAX_DSCP)

    def __str__(self) -> str:
        return f"dscp {self.dscp}"


@dataclass(frozen=True)
class Goto:
    """An action that continues with the rules of a later table."""

    table: int

    def __post_init__(self) -> None:
        _check_range("goto", self.table, MAX_TABLE, lowest=1)

    def __str__(self) -> str:
        return f"table {self.table}"


Action = Output | Ecmp | FastFailover | SetDscp | Goto
_ACTIONS: dict[str, Any] = {
    "output": Output,
    "ecmp": Ecmp,
    "fast_failover": FastFailover,
    "set_dscp": SetDscp,
    "goto": Goto,
}
"""The actions by their JSON key, whose value is the action's only field, or an object of all its fields."""


@dataclass(frozen=True)
class Rule:
    """One entry of a switch's flow table. `comment` is for people and is ignored when rules are compared."""

    priority: int
    match: Match
    actions: tuple[Action, ...] = ()
    comment: str = field(default="", compare=False)
    table: int = 0

    def __post_init__(self) -> None:
        _check_range("priority", self.priority, MAX_PRIORITY)
        _check_range("table", self.table, MAX_TABLE)
        for position, action in enumerate(self.actions):
            if isinstance(action, Goto) and (action.table <= self.table or action is not self.actions[-1]):
                raise ValueError(f"actions[{position}]: got {action}, expected a later table, last")
            if isinstance(action, SetDscp) and not self.match.ip_only:
                raise ValueError(f"actions[{position}]: got {action}, expected a match for IPv4 packets only")

    def __str__(self) -> str:
        done = ", ".join(map(str, self.actions)) or "drop"
        where = f"table {self.table}, " if self.table else ""
        text = f"{where}priority {self.priority}, {self.match} -> {done}"
        return f"{text} ({self.comment})" if self.comment else text


def ports_of(rules: Sequence[Rule]) -> set[int]:
    """Return all ports that occur in rules."""
    ports = {rule.match.in_port for rule in rules if rule.match.in_port is not None}
    for rule in rules:
        for action in rule.actions:
            if isinstance(action, Output):
                ports.add(action.port)
            elif isinstance(action, Ecmp | FastFailover):
                ports |= set(action.ports)
    return ports


def dumps(rules: Mapping[int, Sequence[Rule]], network: Mapping[str, Any] | None = None) -> str:
    """Serialise the rules of several switches, by datapath id, to JSON; `network` is a `Snapshot` as a mapping."""
    datapaths = [{"dpid": dpid, "rules": [rule_to_data(rule) for rule in own]} for dpid, own in rules.items()]
    document = {"format": FORMAT, "datapaths": datapaths}
    return json.dumps(document if network is None else {**document, "network": network})


def loads(text: str) -> tuple[dict[int, list[Rule]], Mapping[str, Any] | None]:
    """Parse the output of `dumps` into rules and network; ValueError names the invalid part."""
    document = _mapping("rules", json.loads(text), required=("format", "datapaths"), optional=("network",))
    if document["format"] != FORMAT:
        raise ValueError(f"format: got {document['format']!r}, expected {FORMAT}")
    rules: dict[int, list[Rule]] = {}
    for number, entry in enumerate(_list("datapaths", document["datapaths"])):
        datapath = _mapping(f"datapaths[{number}]", entry, required=("dpid", "rules"))
        dpid = _integer(f"datapaths[{number}].dpid", datapath["dpid"])
        if dpid in rules:
            raise ValueError(f"datapaths[{number}].dpid: got {dpid} twice, expected unique ids")
        rules[dpid] = [
            _rule_from_data(f"datapath {dpid}, rules[{position}]", data)
            for position, data in enumerate(_list(f"datapath {dpid}, rules", datapath["rules"]))
        ]
    return rules, document.get("network")


def rule_to_data(rule: Rule) -> dict[str, Any]:
    """Convert a rule to a JSON-compatible dictionary."""
    match: dict[str, Any] = {}
    for item in fields(Match):
        value = getattr(rule.match, item.name)
        if value is not None:
            match[item.name] = [value.value, value.mask] if isinstance(value, Ports) else value
    data = {
        "priority": rule.priority,
        "match": match,
        "actions": [_action_to_data(action) for action in rule.actions],
        "comment": rule.comment,
    }
    return {**data, "table": rule.table} if rule.table else data


def _action_to_data(action: Action) -> dict[str, Any]:
    kind = next(name for name, own in _ACTIONS.items() if isinstance(action, own))
    values = {item.name: getattr(action, item.name) for item in fields(action)}
    return {kind: values if len(values) > 1 else next(iter(values.values()))}


def _rule_from_data(where: str, data: Any) -> Rule:
    entry = _mapping(where, data, required=("priority", "match", "actions"), optional=("comment", "table"))
    match = _mapping(f"{where}.match", entry["match"], optional=tuple(item.name for item in fields(Match)))
    try:
        for name in PORT_FIELDS:
            if name in match:
                match = {**match, name: Ports(*(_integer(name, item) for item in _list(name, match[name])))}
        return Rule(
            _integer("priority", entry["priority"]),
            Match(**match),
            tuple(_action_from_data(action) for action in _list("actions", entry["actions"])),
            str(entry.get("comment", "")),
            _integer("table", entry.get("table", 0)),
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def _action_from_data(data: Any) -> Action:
    action = _mapping("action", data, optional=tuple(_ACTIONS))
    if len(action) != 1:
        raise ValueError(f"action: got {data!r}, expected one of {', '.join(_ACTIONS)}")
    ((kind, value),) = action.items()
    names = [item.name for item in fields(_ACTIONS[kind])]
    given = {names[0]: value} if len(names) == 1 else _mapping(kind, value, required=names)
    for name, item in given.items():
        if name == "ports":
            given[name] = tuple(_integer("ports", port) for port in _list("ports", item))
        else:
            _integer(kind if len(names) == 1 else name, item)
    made: Action = _ACTIONS[kind](**given)
    return made


def _check_port(name: str, port: int) -> None:
    _check_range(name, _integer(name, port), MAX_PORT, lowest=1)


def _check_range(name: str, value: int, highest: int, lowest: int = 0) -> None:
    if not lowest <= value <= highest:
        raise ValueError(f"{name}: got {value}, expected {lowest} to {highest}")


def _mapping(
    where: str, data: Any, required: Sequence[str] = (), optional: Sequence[str] = ()
) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: got {data!r}, expected an object")
    known = {*required, *optional}
    if wrong := sorted(set(data) - known | set(required) - set(data)):
        raise ValueError(f"{where}: key {wrong[0]!r} is {'unknown' if wrong[0] not in known else 'missing'}")
    return data


def _list(where: str, data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{where}: got {data!r}, expected a list")
    return data


def _integer(where: str, data: Any) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise ValueError(f"{where}: got {data!r}, expected a whole number")
    return data
