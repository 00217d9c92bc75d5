"""What is broken or changed in a fabric on purpose, and how it is brought about: always the difference to what was."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from testbed.net.fabric.host_nics import Cards
from testbed.net.fabric.link_state_delay import Carriers
from testbed.net.fabric.network import Fabric
from testbed.net.links.ports import set_up
from testbed.spec.link_direction import Direction


@dataclass(frozen=True)
class Condition:
    """How a fabric should be: links and switches that are down, directions that are not as the topology has them.

    changed: by link, or cable of a host's card, and direction. links_dark: those that carry nothing though their
    carriers are up. cards_down: hosts whose cards have no carrier.
    """

    links_down: frozenset[str] = frozenset()
    switches_down: frozenset[str] = frozenset()
    changed: Mapping[tuple[str, str], Direction] = field(default_factory=dict)
    links_dark: frozenset[str] = frozenset()
    cards_down: frozenset[str] = frozenset()


HEALTHY = Condition()


class Faults:
    """Brings a fabric from one condition to the next. It begins healthy.

    What is cut carries nothing from that moment on; the edges at its ends see it after the times of the fabric's
    `control`, in `play`. What is dark they see only where its `silence_s` says when.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._healthy = fabric.asked()
        self._carriers = Carriers(self, fabric.control.carrier_down_s, fabric.control.carrier_up_s)
        self._cards = Cards(fabric.plan, fabric.pids)
        self.condition = HEALTHY

    @property
    def due_s(self) -> float | None:
        """When switches see something next (CLOCK_MONOTONIC); None when there is nothing to be seen."""
        return self._carriers.due_s

    def play(self) -> None:
        """Have switches see what is due. LinkError."""
        self._carriers.play()

    def settle(self) -> None:
        """Have them see everything now. LinkError."""
        self._carriers.settle()

    def apply(self, wanted: Condition) -> None:
        """Bring the condition about, settings first, and read it back. LinkError."""
        fabric, former = self._fabric, self.condition
        assert fabric.engine is not None
        directions = {
            key: replace(wanted.changed.get(key, healthy), classes=healthy.classes)
            for key, healthy in self._healthy.items()
            if wanted.changed.get(key) != former.changed.get(key)
        }
        if directions:
            fabric.engine.change(directions)
        self._cards.change({key: asked for key, asked in wanted.changed.items() if key not in self._healthy})
        self.condition = wanted  # which `set_carrier` goes by
        before, after = self._cut(former), self._cut(wanted)
        if fabric.control.silence_s is not None:  # hellos that fail to come tell what carriers do not
            silent = wanted.links_dark - former.links_dark - before - after
            self._carriers.cut(sorted(silent), fabric.control.silence_s)
            before, after = before | former.links_dark | silent, after | wanted.links_dark
        self._carriers.cut(sorted(after - before))
        self._carriers.mend(sorted(before - after))
        self.darken(sorted(wanted.links_dark - former.links_dark - after))
        for link in sorted(former.links_dark - wanted.links_dark - before - after):
            if not self._carriers.is_down(link):
                fabric.engine.set_carrier(link, True)
        for switch in sorted((wanted.switches_down ^ former.switches_down) - self._edges):
            self.set_carrier(switch, up=switch not in wanted.switches_down)
        for host in sorted(wanted.cards_down ^ former.cards_down):
            self._set_card(host, up=host not in wanted.cards_down)

    @property
    def _edges(self) -> set[str]:
        return {self._fabric.plan.edge(edge.building) for edge in self._fabric.plan.edges}

    def _cut(self, condition: Condition) -> set[str]:
        """Links that carry nothing, those of edges that are down included, and these edges."""
        plan = self._fabric.plan
        edges = condition.switches_down & self._edges
        ends = {link.name: {plan.edge(link.a), plan.edge(link.b)} for link in plan.topology.wan}
        return {*condition.links_down, *edges, *(name for name, own in ends.items() if own & edges)}

    def darken(self, names: Collection[str]) -> None:
        """Cut links, and nobody sees it; an edge has no more to lose than its links."""
        assert self._fabric.engine is not None
        if links := [name for name in names if name not in self._edges]:
            self._fabric.engine.darken(links)

    def set_carrier(self, name: str, up: bool) -> None:
        """Cut or mend a link, or take all ports of a switch down or up, for all to see.

        A link that is mended stays dark where it should be, a port down whose card is.
        """
        fabric = self._fabric
        assert fabric.engine is not None
        if name not in fabric.topology.switches:
            fabric.engine.set_carrier(name, up)
            if up and name in self.condition.links_dark:
                fabric.engine.darken([name])
            return
        node, interfaces = fabric.plan.switch_ports(name)
        if up:
            without = self._cards.ports(self.condition.cards_down)
            interfaces = tuple(port for port in interfaces if (node, port) not in without)
        set_up(None if node is None else fabric.state.pids[node], interfaces, up)

    def _set_card(self, host: str, up: bool) -> None:
        """A card's carrier, which it and its switch's port see at once."""
        cable = self._cards.of[host]
        if cable.takes_time:
            assert self._fabric.engine is not None
            self._fabric.engine.set_carrier(cable.name, up)
        elif cable.b[0] not in self.condition.switches_down:
            set_up(self._fabric.pids[cable.b[0]], [cable.b[1]], up)
