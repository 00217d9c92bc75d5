"""What is broken or changed in a fabric on purpose, and how it is brought about: always the difference to what was."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from testbed.directions import Direction
from testbed.fabric.carriers import Carriers
from testbed.fabric.network import Fabric
from testbed.links.ports import set_up


@dataclass(frozen=True)
class Condition:
    """How a fabric should be: links and switches that are down, directions that are not as the topology has them."""

    links_down: frozenset[str] = frozenset()
    switches_down: frozenset[str] = frozenset()
    changed: Mapping[tuple[str, str], Direction] = field(default_factory=dict)


HEALTHY = Condition()


class Faults:
    """Brings a fabric from one condition to the next. It begins healthy.

    What is cut carries nothing from that moment on; the edges at its ends see it after the times of the fabric's
    `control`, in `play`.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._healthy = fabric.asked()
        self._carriers = Carriers(self, fabric.control.carrier_down_s, fabric.control.carrier_up_s)
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
        before, after = self._cut(former), self._cut(wanted)
        self._carriers.cut(sorted(after - before))
        self._carriers.mend(sorted(before - after))
        for switch in sorted((wanted.switches_down ^ former.switches_down) - self._edges):
            self.set_carrier(switch, up=switch not in wanted.switches_down)
        self.condition = wanted

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
        self._fabric.engine.darken([name for name in names if name not in self._edges])

    def set_carrier(self, name: str, up: bool) -> None:
        """Cut or mend a link, or take all ports of a switch down or up, for all to see."""
        fabric = self._fabric
        assert fabric.engine is not None
        if name not in fabric.topology.switches:
            fabric.engine.set_carrier(name, up)
            return
        node, interfaces = fabric.plan.switch_ports(name)
        set_up(None if node is None else fabric.state.pids[node], interfaces, up)
