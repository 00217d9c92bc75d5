"""Reader of containerlab labs: the topology file and its netem script."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import BadInput, did_you_mean
from testbed.show.exchange.containerlab_netem import Setting, linux_name, read_script, tc_setting
from testbed.show.exchange.graph_attributes import Element, number, unused_attributes
from testbed.show.exchange.imported_graph import Edge, ImportedNetwork, LinkDirection, Node
from testbed.show.exchange.topology_export import HOST, KIND_LABEL, NETEM_FILE, SCALE_LABEL
from testbed.spec.yaml_loader import Document, Location, read_document

BRIDGES = ("bridge", "ovs-bridge")
_ONE_ENDED = ("host", "mgmt-net", "macvlan")
"""Pseudo-nodes at the end of a link that leaves the lab."""

End = tuple[str, str]
"""A node, and the Linux name of one of its interfaces."""


def read_lab(path: Path, netem: Path | None = None) -> ImportedNetwork:
    """Return the network of a lab.

    A node of kind linux whose only link leads to a node with more links is a host of that node; all others are
    buildings. If some buildings have hosts, buildings without hosts are transit sites.

    Args:
        path: The topology file.
        netem: A script with `tools netem set` commands; by default netem.sh next to the file, if it exists.

    Raises:
        ConfigError: If the file is not YAML, or has a duplicate key.
        BadInput: If it is not a topology, a link names no node, or two links share an interface.
    """
    document = read_document(path, any_keys=True)
    topology = document.data.get("topology")
    if not isinstance(topology, Mapping) or not isinstance(topology.get("nodes"), Mapping):
        expected = "a containerlab topology, with topology.nodes"
        raise BadInput(where=str(path), got="none", expected=expected)
    lab = _Lab(path, document, topology, ImportedNetwork(path))
    return lab.network(netem or path.with_name(NETEM_FILE), required=netem is not None)


@dataclass
class _Lab:
    """One topology file."""

    path: Path
    document: Document
    topology: Mapping[str, Any]
    found: ImportedNetwork
    nodes: dict[str, Element] = field(default_factory=dict)
    links: list[Element] = field(default_factory=list)
    settings: dict[End, Setting] = field(default_factory=dict)
    used: set[End] = field(default_factory=set)
    node_settings: list[Setting] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The lab's name; by default the file's."""
        own = self.document.data.get("name")
        return str(own) if own else self.path.name.removesuffix(self.path.suffix).removesuffix(".clab")

    def network(self, script: Path, required: bool) -> ImportedNetwork:
        """Return the network, with descriptions of everything left out or assumed."""
        found, left_out = self.found, self.found.left_out
        found.name = self.name
        self.nodes = {name: self._node(name) for name in self.topology["nodes"]}
        ends = list(self._links())
        self._report_other_keys()
        self._place_settings(self.node_settings, ends)
        if required or script.is_file():
            self._place_settings(read_script(script, self._scale(), found), ends)
        hosts = self._hosts(ends)
        for name in self.nodes:
            if name not in hosts:
                own = [link for link in ends if name in (hosts.get(link[0][0]), hosts.get(link[1][0]))]
                card, kind = self._card(name, own), self._kind(name)
                shown_kind = "" if kind == "linux" else kind
                count = len(own) if hosts else None
                found.nodes[name] = Node(name, count, card.rate_bps, card.delay_s or 0.0, shown_kind)
                if kind in BRIDGES:
                    found.assumed.append(f"{name}, of kind {kind}, is a building")
        for a, b in ends:
            if a[0] not in hosts and b[0] not in hosts:
                found.edges.append(Edge(a[0], b[0], self._direction(a), self._direction(b)))
        left_out += [
            f"{setting.where}: all NICs of a building are the same, in both directions"
            for end, setting in self.settings.items()
            if end not in self.used
        ]
        left_out += unused_attributes("node", list(self.nodes.values()))
        left_out += unused_attributes("link", self.links)
        return found

    # --- nodes

    def _where(self, *location: Any) -> str:
        origin = self.document.origins.get(("topology", *location))
        return f"{self.path}:{origin.line}" if origin else str(self.path)

    def _node(self, name: str) -> Element:
        values = self._mapping(("nodes", name))
        node = Element(self._where("nodes", name), f"node {name}", dict(values))
        node.use("kind")
        if "kind" not in values and "kind" in self._mapping(("groups", str(values.get("group")))):
            node.use("group")
        commands = values.get("exec")
        commands = list(map(str, commands)) if isinstance(commands, list) else []
        others = []
        for command in commands:
            where = f"{node.where}: exec of {name}: {command}"
            if (setting := tc_setting(where, name, command, self._scale())) is not None:
                self.node_settings.append(setting)
                continue
            others.append(command)
            if re.search(r"\btc\b|\bnetem\b", command):
                self.found.left_out.append(where)
        if commands:
            node.attributes["exec"] = others
            if not others:
                node.use("exec")
        labels = {key: value for key, value in (values.get("labels") or {}).items() if key != KIND_LABEL}
        if labels:
            node.attributes["labels"] = labels
        else:
            node.attributes.pop("labels", None)
        return node

    def _mapping(self, location: Location) -> Mapping[str, Any]:
        """Return a mapping of the topology, empty if there is none; raise BadInput if the value is not a mapping."""
        found: Any = self.topology
        for key in location:
            found = found.get(key)
            if found is None:
                return {}
            if not isinstance(found, Mapping):
                where = f"{self._where(*location)}: topology.{'.'.join(location)}"
                raise BadInput(where=where, got=str(found), expected="a mapping (keys and values)")
        return dict(found)

    def _kind(self, name: str) -> str:
        """Return a node's kind: its own, its group's, the default group's, or the default kind."""
        node, defaults = self._mapping(("nodes", name)), self._mapping(("defaults",))
        candidates = (
            node.get("kind"),
            self._mapping(("groups", str(node.get("group")))).get("kind"),
            self._mapping(("groups", str(defaults.get("group")))).get("kind"),
            defaults.get("kind"),
        )
        return str(next((kind for kind in candidates if kind), ""))

    def _report_other_keys(self) -> None:
        """Report the file's content other than nodes and links."""
        others = [key for key in self.document.data if key not in ("name", "prefix", "topology")]
        for key in self.topology:
            if key in ("kinds", "groups"):
                for name in self._mapping((key,)):
                    own = (
                        inner for inner in self._mapping((key, name)) if (key, inner) != ("groups", "kind")
                    )
                    others += [f"{key}.{name}.{inner}" for inner in own]
            elif key == "defaults":
                known, labels = ("kind", "group", "labels"), self._mapping(("defaults", "labels"))
                others += [f"defaults.{inner}" for inner in self._mapping((key,)) if inner not in known]
                others += [f"defaults.labels.{label}" for label in labels if label != SCALE_LABEL]
            elif key not in ("nodes", "links"):
                others.append(key)
        if others:
            self.found.left_out.append(f"of the lab: {', '.join(others)}")

    def _scale(self) -> float:
        text = self._mapping(("defaults", "labels")).get(SCALE_LABEL, 1.0)
        scale = number(text)
        if scale is None or scale <= 0:
            where = f"{self._where('defaults')}: {SCALE_LABEL}"
            raise BadInput(where=where, got=str(text), expected="a number above 0")
        return scale

    # --- links

    def _links(self) -> Iterator[tuple[End, End]]:
        """Yield the links between two nodes of the file, in short or extended form; report one-ended links."""
        claimed: dict[End, int] = {}
        links = self.topology.get("links") or []
        if not isinstance(links, list):
            where = f"{self._where('links')}: topology.links"
            raise BadInput(where=where, got=str(links)[:60], expected="a list")
        for position, link in enumerate(links):
            where = f"{self._where('links', position)}: topology.links[{position}]"
            if not isinstance(link, Mapping):
                raise BadInput(where=where, got=str(link), expected="a link, with endpoints")
            if "endpoint" in link:
                node, interface = self._end(f"{where}.endpoint", link["endpoint"])
                kind = str(link.get("type", "one-ended"))
                self.found.left_out.append(f"{_article(kind)} {kind} link of {node}:{interface}")
                continue
            ends = link.get("endpoints")
            if not isinstance(ends, list) or len(ends) != 2:
                expected = 'two, such as "node:eth1"'
                raise BadInput(where=f"{where}.endpoints", got=str(ends), expected=expected)
            (a, b) = (self._end(f"{where}.endpoints", end) for end in ends)
            outside = [end[0] for end in (a, b) if end[0] in _ONE_ENDED and end[0] not in self.nodes]
            if outside:
                other = next((end for end in (a, b) if end[0] not in outside), b)
                self.found.left_out.append(
                    f"{_article(outside[0])} {outside[0]} link of {other[0]}:{other[1]}"
                )
                continue
            for node, interface in (a, b):
                if node not in self.nodes:
                    expected = f"one of {did_you_mean(node, self.nodes)}"
                    raise BadInput(where=f"{where}.endpoints", got=f"no node {node}", expected=expected)
                other_link = claimed.setdefault((node, interface), position)
                if other_link != position or a == b:
                    expected = f"an interface of its own: {self._where('links', other_link)} has it"
                    raise BadInput(where=f"{where}.endpoints", got=f"{node}:{interface}", expected=expected)
            element = Element(where, f"link {position}", dict(link))
            element.use(
                "endpoints", *(("type",) if link.get("type") in (None, "veth", "veth-stitch") else ())
            )
            for side, end in zip("ab", ends, strict=True):
                if isinstance(end, Mapping):
                    own = {key: value for key, value in end.items() if key not in ("node", "interface")}
                    element.attributes |= {f"{side}'s {key}": value for key, value in own.items()}
            self.links.append(element)
            yield a, b

    def _end(self, where: str, end: Any) -> End:
        node, interface = "", ""
        if isinstance(end, str):
            node, _, interface = end.partition(":")
        elif isinstance(end, Mapping):
            node, interface = str(end.get("node", "")), str(end.get("interface", ""))
        if not node or not interface:
            expected = 'a node and its interface, such as "node:eth1"'
            raise BadInput(where=where, got=str(end), expected=expected)
        return node, linux_name(self._kind(node), interface) if node in self.nodes else interface

    def _hosts(self, ends: list[tuple[End, End]]) -> dict[str, str]:
        """Return the nodes that are hosts, and the building of each; none if all nodes would be hosts."""
        others: dict[str, list[str]] = defaultdict(list)
        for (a, _), (b, _) in ends:
            others[a].append(b)
            others[b].append(a)
        found = {
            name: own[0]
            for name, own in others.items()
            if len(own) == 1 and self._is_host(name, len(others[own[0]]))
        }
        return {} if len(found) == len(self.nodes) else found

    def _is_host(self, name: str, others_degree: int) -> bool:
        label = (self._mapping(("nodes", name)).get("labels") or {}).get(KIND_LABEL)
        if label is not None:
            return bool(label == HOST)
        return self._kind(name) == "linux" and others_degree > 1

    # --- settings

    def _place_settings(self, settings: Sequence[Setting], ends: list[tuple[End, End]]) -> None:
        """Assign each setting to its interface, or report it."""
        containers = {self._container(name): name for name in self.nodes}
        known = {end for link in ends for end in link}
        for setting in settings:
            name = containers.get(setting.container, setting.container)
            if name not in self.nodes:
                self.found.left_out.append(f"{setting.where}: no node of this lab")
                continue
            end = name, linux_name(self._kind(name), setting.interface)
            if end not in known:
                own = sorted(interface for node, interface in known if node == name)
                self.found.left_out.append(
                    f"{setting.where}: no link at this interface ({', '.join(own) or 'none'} of {name})"
                )
                continue
            if (before := self.settings.get(end)) is not None:
                self.found.left_out.append(f"{before.where}: a later line sets the same interface")
            self.settings[end] = setting

    def _container(self, node: str) -> str:
        prefix = self.document.data.get("prefix", "clab")
        if prefix == "__lab-name":
            return f"{self.name}-{node}"
        return f"{prefix}-{self.name}-{node}" if prefix else node

    def _direction(self, end: End) -> LinkDirection:
        setting = self.settings.get(end)
        self.used.add(end)
        return LinkDirection() if setting is None else setting.direction

    def _card(self, building: str, links: list[tuple[End, End]]) -> LinkDirection:
        """Return rate and delay of a building's NICs: the first setting of its hosts, else of its own ends."""
        inner = [b if a[0] == building else a for a, b in links]
        outer = [a if a[0] == building else b for a, b in links]
        ends = [end for end in (*inner, *outer) if end in self.settings]
        if not ends:
            return LinkDirection()
        first = self.settings[ends[0]].direction
        card = LinkDirection(first.rate_bps, first.delay_s)
        self.used.update(end for end in ends if self.settings[end].direction == card)
        if ends[0] not in self.used:
            self.used.add(ends[0])
            self.found.left_out.append(
                f"{self.settings[ends[0]].where}: jitter, loss and corruption: a NIC has none"
            )
        return card


def _article(word: str) -> str:
    return "an" if word[:1] in "aeiou" else "a"
