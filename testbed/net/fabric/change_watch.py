"""Watches a running fabric, on all of its machines, for changes that are not its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from testbed.net.fabric.bridges import CARD
from testbed.net.fabric.fingerprint import EVERYTHING, WatchedNamespace
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.open_vswitch import EdgeTables
from testbed.net.fabric.plan import WAN_NODE, Plan
from testbed.net.fabric.verify import ROOT_NAME, namespace_settings
from testbed.net.links import LinkError
from testbed.net.links.ingress import ingress_device


@dataclass(frozen=True)
class Change:
    """Something was changed; when that was noticed, by CLOCK_MONOTONIC."""

    time_s: float
    words: str


class ChangeWatch:
    """The fingerprint of a fabric, taken now. `look` from time to time; what it has found stands in `changes`.

    by_node: where each node is, `here` for those that it does not name. links, switches, cards: those that events
    change, which are left out; cards by their hosts. LinkError when the kernel does not tell.
    """

    def __init__(
        self,
        plan: Plan,
        pids: Mapping[str, int],
        here: MachineOperations,
        by_node: Mapping[str, MachineOperations],
        links: Collection[str] = (),
        switches: Collection[str] = (),
        cards: Collection[str] = (),
    ) -> None:
        self.changes: list[Change] = []
        watched: dict[MachineOperations, list[WatchedNamespace]] = {here: []}
        for settings in namespace_settings(plan, pids):
            sends = settings.interfaces == (CARD,) or settings.pid is None
            namespace = WatchedNamespace(settings.name, settings.pid, settings.interfaces, sends)
            watched.setdefault(by_node.get(settings.name, here), []).append(namespace)
        changing = excluded_interfaces(plan, links, switches, cards)
        self._machines = list(watched)
        self._tables: EdgeTables | None = None
        with _told():
            for operations, own in watched.items():
                operations.watch(own, changing)
            if not links and not switches:  # or the controller would have to change rules
                names = (plan.edge(building.name) for building in plan.topology.buildings)
                self._tables = EdgeTables(
                    (name, edge.bridge) for name, edge in zip(names, plan.edges, strict=True)
                )

    def close(self) -> None:
        """No more of it; namespaces' parts end with them."""
        if self._tables is not None:
            self._tables.close()
            self._tables = None

    def look(self, thorough: bool = False) -> None:
        """Note what was changed since; thorough: look also where it takes long. LinkError."""
        now_s = time.monotonic()
        with _told():
            for operations in self._machines:
                self.changes += [Change(now_s, words) for words in operations.look(thorough)]
            if self._tables is not None:
                self.changes += [Change(now_s, words) for words in self._tables.look()]

    @contextlib.contextmanager
    def own_change(self) -> Iterator[None]:
        """What is changed in this block is the testbed's own doing. LinkError."""
        self.look(thorough=True)
        yield
        with _told():
            for operations in self._machines:
                operations.take()
            if self._tables is not None:
                self._tables.take()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LinkError(f"the kernel does not tell what it holds of the network: {error}") from error


def excluded_interfaces(
    plan: Plan, links: Collection[str], switches: Collection[str], cards: Collection[str] = ()
) -> list[tuple[str, str]]:
    """(namespace, interface) of all that changes when links, switches and hosts' cards do."""
    return sorted({*_of_links(plan, links), *_of_switches(plan, switches), *_of_cards(plan, cards)})


def _of_cards(plan: Plan, hosts: Collection[str]) -> Iterator[tuple[str, str]]:
    """All of the hosts, whose routes and neighbours go by their card, and the ports that they are plugged into."""
    for cable in plan.cables:
        if cable.a[1] == CARD and cable.a[0] in hosts:
            switch, port = cable.b
            yield cable.a[0], EVERYTHING
            yield switch, port
            yield switch, ingress_device(port)
            yield from _of_links(plan, [cable.name])


def _of_links(plan: Plan, links: Collection[str]) -> Iterator[tuple[str, str]]:
    """All interfaces that take part in links, by namespace."""
    for number, wire in enumerate(plan.wires()):
        if wire.name not in links:
            continue
        yield WAN_NODE, f"br{number}"  # the netem engine's
        for inner, node, outer in (
            (wire.inner_a, wire.node_a, wire.outer_a),
            (wire.inner_b, wire.node_b, wire.outer_b),
        ):
            yield WAN_NODE, inner
            yield WAN_NODE, ingress_device(inner)
            yield node or ROOT_NAME, outer


def _of_switches(plan: Plan, switches: Collection[str]) -> Iterator[tuple[str, str]]:
    """All that is in the switches' namespaces, and whatever they are plugged to."""
    for building, edge in zip(plan.topology.buildings, plan.edges, strict=True):
        if edge.local_interface is not None and building.core in switches:
            yield ROOT_NAME, edge.local_interface
        if plan.edge(building.name) not in switches:
            continue
        yield from ((ROOT_NAME, interface) for interface in edge.interfaces)
        if not building.is_transit:
            yield building.core, EVERYTHING
        yield plan.probe(building.name), EVERYTHING
        yield from _of_links(plan, [port.link.name for port in edge.wan])
    for cable in plan.cables:
        ends = {cable.a[0], cable.b[0]}
        if ends & set(switches):
            yield from ((node, EVERYTHING) for node in ends)
            yield from _of_links(plan, [cable.name])
