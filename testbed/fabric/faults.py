"""What is broken or changed in a fabric on purpose, and how it is brought about: always the difference to what was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from testbed.directions import Direction
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
    """Brings a fabric from one condition to the next. It begins healthy."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._healthy = fabric.asked()
        self.condition = HEALTHY

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
        for link in sorted(wanted.links_down ^ former.links_down):
            fabric.engine.set_carrier(link, up=link not in wanted.links_down)
        for switch in sorted(wanted.switches_down ^ former.switches_down):
            place, interfaces = fabric.plan.switch_ports(switch)
            pid = None if place is None else fabric.state.pids[place]
            set_up(pid, interfaces, up=switch not in wanted.switches_down)
        self.condition = wanted
