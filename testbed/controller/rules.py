"""Forwarding rules as plain data, and their JSON form. Nothing here knows a controller library or a switch.

A switch takes, of all its rules that match a packet, the one of highest priority and carries out its actions; a rule
without actions drops. The field names are those of OpenFlow 1.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any

FORMAT = 1
MAX_PORT = (
    0xFEFF  # of a physical port as Open vSwitch numbers them; above are OFPP_FLOOD, OFPP_CONTROLLER, ...
)
MAX_SEED = 0xFFFF
MAX_PRIORITY = 0xFFFF


@dataclass(frozen=True)
class Match:
    """Which packets a rule is for; a field that is None matches all.

    `ipv4_dst` is a network such as "10.1.0.0/16" or one address "10.1.0.1/32" and means: IPv4 packets only.
    ValueError when a field is out of range.
    """

    in_port: int | None = None
    ipv4_dst: str | None = None

    def __post_init__(self) -> None:
        if self.in_port is not None:
            _check_port("in_port", self.in_port)
        if self.ipv4_dst is not None:
            network = IPv4Network(self.ipv4_dst)
            if str(network) != self.ipv4_dst or network.prefixlen == 0:
                raise ValueError(
                    f"ipv4_dst: got {self.ipv4_dst!r}, expected address/length with length 1 to 32"
                )

    @property
    def network(self) -> IPv4Network | None:
        """`ipv4_dst` as a network."""
        return None if self.ipv4_dst is None else IPv4Network(self.ipv4_dst)

    def covers(self, in_port: int, ipv4_dst: str) -> bool:
        """Whether an IPv4 packet to that address, come in at that port, is one of these."""
        if self.in_port not in (None, in_port):
            return False
        return self.network is None or IPv4Address(ipv4_dst) in self.network


@dataclass(frozen=True)
class Output:
    """Send the packet out of one port. As in OpenFlow, never out of the port it came in at."""

    port: int

    def __post_init__(self) -> None:
        _check_port("port", self.port)


@dataclass(frozen=True)
class Ecmp:
    """Send the packet out of one of several ports, chosen by a hash of its 5-tuple, so that a flow keeps its port.

    The hash is the same for both directions of a flow. `seed` (0 to 65535) changes which flow goes where.
    """

    ports: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(set(self.ports)) != len(self.ports) or len(self.ports) < 2:
            raise ValueError(f"ports: got {self.ports!r}, expected two or more different ports")
        for port in self.ports:
            _check_port("ports", port)
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed: got {self.seed}, expected 0 to {MAX_SEED}")


Action = Output | Ecmp


@dataclass(frozen=True)
class Rule:
    """One entry of a switch's flow table. `comment` is for people and plays no part when rules are compared."""

    priority: int
    match: Match
    actions: tuple[Action, ...] = ()
    comment: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise ValueError(f"priority: got {self.priority}, expected 0 to {MAX_PRIORITY}")

    def __str__(self) -> str:
        wanted = [f"in_port={self.match.in_port}"] if self.match.in_port is not None else []
        wanted += [f"ipv4_dst={self.match.ipv4_dst}"] if self.match.ipv4_dst is not None else []
        done = [
            f"output {action.port}"
            if isinstance(action, Output)
            else f"ecmp {','.join(map(str, action.ports))} seed {action.seed}"
            for action in self.actions
        ]
        text = f"priority {self.priority}, {' '.join(wanted) or 'any packet'} -> {', '.join(done) or 'drop'}"
        return f"{text} ({self.comment})" if self.comment else text


def ports_of(rules: Sequence[Rule]) -> set[int]:
    """All ports that the rules name."""
    ports = {rule.match.in_port for rule in rules if rule.match.in_port is not None}
    for rule in rules:
        for action in rule.actions:
            ports |= {action.port} if isinstance(action, Output) else set(action.ports)
    return ports


def dumps(rules: Mapping[int, Sequence[Rule]]) -> str:
    """The rules of several switches, by datapath id, as JSON."""
    datapaths = [
        {"dpid": dpid, "rules": [_rule_to_data(rule) for rule in own]} for dpid, own in rules.items()
    ]
    return json.dumps({"format": FORMAT, "datapaths": datapaths})


def loads(text: str) -> dict[int, list[Rule]]:
    """Read what `dumps` wrote. ValueError says which part is not as it should be."""
    document = _mapping("rules", json.loads(text), required=("format", "datapaths"))
    if document["format"] != FORMAT:
        raise ValueError(f"format: got {document['format']!r}, expected {FORMAT}")
    rules: dict[int, list[Rule]] = {}
    for number, entry in enumerate(_list("datapaths", document["datapaths"])):
        datapath = _mapping(f"datapaths[{number}]", entry, required=("dpid", "rules"))
        dpid = _integer(f"datapaths[{number}].dpid", datapath["dpid"])
        if dpid in rules:
            raise ValueError(f"datapaths[{number}].dpid: {dpid} stands twice")
        rules[dpid] = [
            _rule_from_data(f"datapath {dpid}, rules[{position}]", data)
            for position, data in enumerate(_list(f"datapath {dpid}, rules", datapath["rules"]))
        ]
    return rules


def _rule_to_data(rule: Rule) -> dict[str, Any]:
    match = {"in_port": rule.match.in_port, "ipv4_dst": rule.match.ipv4_dst}
    actions: list[dict[str, Any]] = [
        {"output": action.port}
        if isinstance(action, Output)
        else {"ecmp": {"ports": list(action.ports), "seed": action.seed}}
        for action in rule.actions
    ]
    return {
        "priority": rule.priority,
        "match": {key: value for key, value in match.items() if value is not None},
        "actions": actions,
        "comment": rule.comment,
    }


def _rule_from_data(where: str, data: Any) -> Rule:
    entry = _mapping(where, data, required=("priority", "match", "actions"), optional=("comment",))
    match = _mapping(f"{where}.match", entry["match"], optional=("in_port", "ipv4_dst"))
    try:
        return Rule(
            _integer("priority", entry["priority"]),
            Match(**match),
            tuple(_action_from_data(action) for action in _list("actions", entry["actions"])),
            str(entry.get("comment", "")),
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _action_from_data(data: Any) -> Action:
    action = _mapping("action", data, optional=("output", "ecmp"))
    if len(action) != 1:
        raise ValueError(f"action: got {data!r}, expected one of output, ecmp")
    if "output" in action:
        return Output(_integer("output", action["output"]))
    ecmp = _mapping("ecmp", action["ecmp"], required=("ports", "seed"))
    ports = tuple(_integer("ports", port) for port in _list("ports", ecmp["ports"]))
    return Ecmp(ports, _integer("seed", ecmp["seed"]))


def _check_port(name: str, port: int) -> None:
    if not 1 <= _integer(name, port) <= MAX_PORT:
        raise ValueError(f"{name}: got {port}, expected 1 to {MAX_PORT}")


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
