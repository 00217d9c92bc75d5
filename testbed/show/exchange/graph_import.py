"""Import of a network from GraphML or GML: interpretation and checks of the file's attributes."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.show.exchange.graph_attributes import (
    CARD_RATE,
    DELAY,
    JITTER,
    LENGTH,
    LOSS,
    RATE,
    Element,
    Figure,
    Graph,
    Quantity,
    check_units,
    count_text,
    fibre_s,
    find_figures,
    great_circle_km,
    is_plausible,
    least_km,
    number,
    place_of,
    unit_factor,
)
from testbed.show.exchange.graph_files import OWN, parse_gml, parse_graphml, standard_attributes
from testbed.show.exchange.imported_graph import (
    Edge,
    ImportDefaults,
    ImportedNetwork,
    LinkDirection,
    Node,
    largest_part,
)

LIGHT_S_PER_KM = 1 / 299_792.458


def read_graph(path: Path, given: ImportDefaults) -> ImportedNetwork:
    """Return the network of a GraphML or GML file, distinguished by its first character.

    Raises:
        BadInput: If the file has neither format, is inconsistent, or has no attribute for a unit that the user gave.
    """
    check_units(given.units)
    content = path.read_bytes()
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        graph = parse_graphml(path, content)
    else:
        graph = parse_gml(path, _decoded(content))
    return _Reading(path, graph, given).network()


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


@dataclass
class _Reading:
    """The conversion of one graph to a network."""

    path: Path
    graph: Graph
    given: ImportDefaults
    places: dict[str, tuple[float, float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    rejections: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    def network(self) -> ImportedNetwork:
        """Return the network, with descriptions of everything left out or assumed."""
        elements = [*self.graph.nodes.values(), *self.graph.edges]
        self.units = dict(self.given.units)
        for name in self.units:
            if not any(name in element.attributes for element in elements):
                names = sorted({name for element in elements for name in element.attributes})
                raise BadInput(where=f"--unit {name}", got=name, expected=f"one of {', '.join(names)}")
        self.places = {
            key: place
            for key, node in self.graph.nodes.items()
            if (place := place_of(node, self._place_names(node)))
        }
        self.kept = largest_part(
            self.graph.nodes, [(a, b) for edge in self.graph.edges for a, b in [edge.ends]]
        )
        found = ImportedNetwork(self.path, name=self._name(), mtu=self._mtu())
        found.nodes = {key: self._node(key, node) for key, node in self.graph.nodes.items()}
        self._guess_length_units(found)
        found.edges = list(self._edges(found))
        found.left_out += self.graph.notes()
        hyper = [found.nodes[key].label for key, node in self.graph.nodes.items() if _is_hyperedge(node)]
        if hyper:
            found.assumed.append(f"hyperedges are nodes: {', '.join(hyper)}")
        return found

    def _name(self) -> str:
        own = self.graph.own
        name = own.named("label", "name", "network")
        own.use(name)
        return str(own.attributes[name]) if name else ""

    def _mtu(self) -> int | None:
        value = number(self.graph.own.attributes.get("mtu"))
        if value is None or not value.is_integer():
            return None
        self.graph.own.use("mtu")
        return int(value)

    def _node(self, key: str, node: Element) -> Node:
        name = node.named("label", "name", "nodelabel")
        node.use(name, node.named("nodelabel"))
        label = str(node.attributes[name]) if name else key
        if key not in self.kept:
            return Node(label)
        hosts = number(node.attributes.get("hosts"))
        if hosts is not None and hosts.is_integer() and hosts >= 0:
            node.use("hosts")
        else:
            hosts = None
        rate = self._best(node, CARD_RATE)
        own = _own(node)
        if own is not None and _hosts_and_rate(own) != (hosts, rate):
            node.reject(OWN, "hosts or nic_rate were changed since and take precedence")
            own = None
        return Node(label, None if hosts is None else int(hosts), rate, own=own)

    def _edges(self, found: ImportedNetwork) -> Iterator[Edge]:
        """Yield a link for each undirected edge, and for each pair of opposite directed edges."""
        unpaired: dict[tuple[str, ...], list[int]] = defaultdict(list)
        edges: list[Edge] = []
        unpaired_elements: dict[int, Element] = {}
        for element in self.graph.edges:
            a, b = element.ends
            if a == b or a not in self.kept:
                edges.append(Edge(a, b))
                continue
            edge = self._edge(element)
            if not element.directed:
                edges.append(edge)
            elif unpaired[b, a]:
                position = unpaired[b, a].pop(0)
                there, own = edges[position], edges[position].own
                if own != edge.own:
                    for one in (element, unpaired_elements[position]):
                        one.reject(OWN, "the edges of both directions differ")
                    own = None
                unpaired_elements.pop(position)
                edges[position] = replace(there, b_to_a=edge.a_to_b, own=own)
            else:
                unpaired[a, b].append(len(edges))
                unpaired_elements[len(edges)] = element
                edges.append(edge)
        if unpaired_elements:
            first = next(iter(unpaired_elements.values()))
            what = f"{count_text(len(unpaired_elements), 'directed edge')} without one back, such as {first.name}"
            found.assumed.append(f"{what}: both directions get the same settings")
        yield from (
            edge for _, edge in sorted(enumerate(edges), key=lambda entry: (entry[1].order, entry[0]))
        )

    def _edge(self, element: Element) -> Edge:
        way = LinkDirection(
            self._best(element, RATE, "--rate" if self.given.rate_bps else ""),
            self._delay_s(element),
            self._best(element, JITTER) or 0.0,
            self._best(element, LOSS) or 0.0,
        )
        order = number(element.attributes.get("order")) if OWN in element.attributes else None
        planes = number(element.attributes.get("planes"))
        if order is not None:
            element.use("order")
        if planes is not None and planes.is_integer() and planes >= 1:
            element.use("planes")
        else:
            planes = 1.0
        own = self._own_link(element, way, int(planes))
        hint = "; ".join(f"{name}: {reason}" for name, reason in element.reasons.items())
        a, b = element.ends
        return Edge(a, b, way, way, own, int(planes), order or 0.0, hint)

    def _own_link(self, element: Element, way: LinkDirection, planes: int) -> Mapping[str, Any] | None:
        """Return the link as it was in a topology file, unless its standard attributes have changed."""
        from testbed.spec.links import WanSpec  # noqa: PLC0415

        if (own := _own(element)) is None:
            return None
        try:
            link = WanSpec.model_validate(own)
        except ValueError:
            element.reject(OWN, "it is not a link of a topology file")
            return None
        standard = standard_attributes(
            link.a_to_b.rate_bps or link.rate_bps, link.a_to_b.delay_s, link.delay_s
        )
        now = {"LinkSpeedRaw": way.rate_bps, "delay_s": way.delay_s}
        if standard != now or link.planes != planes or {link.a, link.b} != set(element.ends):
            element.reject(OWN, "rate, delay, planes or ends were changed since and take precedence")
            return None
        return own

    def _place_names(self, node: Element) -> tuple[str | None, str | None]:
        """Return the attributes with a node's latitude and longitude, which OSMnx calls y and x."""
        names = node.named("latitude", "lat"), node.named("longitude", "lon", "lng", "long")
        crs = self.graph.own.attributes.get("crs")
        if names == (None, None) and str(crs).lower() == "epsg:4326":
            self.graph.own.use("crs")
            return node.named("y"), node.named("x")
        return names

    # --- figures

    def _best(self, element: Element, quantity: Quantity, otherwise: str = "") -> float | None:
        chosen = self._choose(element, (quantity,), otherwise)
        return None if chosen is None else chosen[1]

    def _delay_s(self, element: Element) -> float | None:
        """Return the delay from an attribute, else from a length, else from the positions of both ends."""
        a, b = element.ends
        if a not in self.places or b not in self.places:
            chosen = self._choose(element, (DELAY, LENGTH), "" if self.given.delay_s is None else "--delay")
        else:
            for end in element.ends:
                self.graph.nodes[end].use(*self._place_names(self.graph.nodes[end]))
            away_km = great_circle_km(self.places[a], self.places[b])
            chosen = self._choose(element, (DELAY, LENGTH), "the great circle", away_km)
            if chosen is None:
                return round(fibre_s(away_km), 6)
        if chosen is None:
            return None
        return chosen[1] if chosen[0] is DELAY else fibre_s(chosen[1])

    def _choose(
        self,
        element: Element,
        quantities: tuple[Quantity, ...],
        otherwise: str = "",
        away_km: float | None = None,
    ) -> tuple[Quantity, float] | None:
        """Return the first usable figure, and record why each other one is not used.

        Args:
            element: A node or an edge.
            quantities: The acceptable quantities, in order of preference.
            otherwise: Description of what applies if there is no usable figure.
            away_km: Distance between an edge's ends, if known.
        """
        chosen: tuple[str, Quantity, float] | None = None
        rejected: list[tuple[str, str]] = []
        for quantity in quantities:
            for figure in find_figures(element, quantity, self.units):
                value, reason = self._value(figure, quantity, away_km)
                if value is None:
                    rejected.append((figure.name, reason))
                elif chosen is None:
                    chosen = figure.name, quantity, value
                    element.use(figure.name)
                elif quantity is chosen[1] and math.isclose(value, chosen[2], rel_tol=1e-6):
                    element.use(figure.name)
                else:
                    rejected.append((figure.name, ""))
        if "LinkSpeed" in element.used:
            element.use("LinkSpeedUnits")
        chosen_name = chosen[0] if chosen else otherwise
        for name, reason in rejected:
            element.reject(name, "; ".join(filter(None, (reason, chosen_name and f"{chosen_name} stands"))))
        return chosen[1:] if chosen else None

    def _value(
        self, figure: Figure, quantity: Quantity, away_km: float | None = None
    ) -> tuple[float | None, str]:
        """Return a figure in the quantity's own unit, or why it cannot be used."""
        if figure.problem:
            return None, figure.problem
        if not figure.unit:
            reason = self.rejections.get(figure.name, "a number without a unit")
            return None, f"{reason}, --unit {figure.name}={quantity.example} would say one"
        factor = unit_factor(figure.unit, quantity)
        assert factor is not None
        value = figure.value if factor == 1 else float(f"{figure.value * factor:.15g}")
        if not quantity.least <= value <= quantity.most:
            return None, f"{figure.value:g} {figure.unit} is impossible"
        least = least_km(away_km or 0.0) * (LIGHT_S_PER_KM if quantity is DELAY else 1.0)
        if quantity in (DELAY, LENGTH) and value < least:
            return None, "impossible: shorter than the great circle between its ends"
        return value, ""

    def _guess_length_units(self, found: ImportedNetwork) -> None:
        """Infer the unit of lengths without one: km or m, if only one is consistent with the positions of all ends."""
        lengths: dict[str, list[tuple[Element, float]]] = defaultdict(list)
        for element in self.graph.edges:
            for figure in find_figures(element, LENGTH, self.units):
                if not (figure.unit or figure.problem) and element.ends[0] != element.ends[1]:
                    lengths[figure.name].append((element, figure.value))
        for name, entries in lengths.items():
            checked = [
                (value, great_circle_km(self.places[a], self.places[b]))
                for element, value in entries
                for a, b in [element.ends]
                if a in self.places and b in self.places
            ]
            fitting = [
                unit
                for unit, factor in (("km", 1.0), ("m", 1e-3))
                if all(is_plausible(value * factor, away_km) for value, away_km in checked)
            ]
            if not checked:
                continue
            if len(fitting) == 1:
                self.units[name] = fitting[0]
                if fitting == ["m"]:
                    found.assumed.append(f"{name} of {count_text(len(entries), 'edge')} is in m")
            else:
                value, away_km = max(checked, key=lambda entry: entry[1] / max(entry[0], 1e-9))
                fit = "both km and m fit" if fitting else "neither km nor m fit"
                self.rejections[name] = f"{fit} it ({value:g} where {away_km:.0f} km are between places)"


def _is_hyperedge(node: Element) -> bool:
    name = node.named("hyperedge")
    if name is not None and str(node.attributes[name]).lower() in ("1", "true"):
        node.use(name)
        return True
    return str(node.attributes.get("label", "")).startswith("hyperedge")


def _own(element: Element) -> dict[str, Any] | None:
    if OWN not in element.attributes:
        return None
    try:
        found = json.loads(element.attributes[OWN])
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        element.reject(OWN, "it is not what `testbed export` wrote")
        return None
    element.use(OWN)
    return found


def _hosts_and_rate(own: Mapping[str, Any]) -> tuple[int, float | None] | None:
    from testbed.spec.buildings import BuildingSpec  # noqa: PLC0415

    try:
        spec = BuildingSpec.model_validate(own)
    except ValueError:
        return None
    return spec.hosts, None if spec.nic is None else spec.nic.rate_bps
