"""What is broken or changed in a fabric on purpose, and how it is brought about: always the difference to what was."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from testbed.net.errors import LinkError
from testbed.net.fabric.bridges import Cable, End, card_cables, held
from testbed.net.fabric.network import Fabric
from testbed.net.fabric.plan import Plan
from testbed.net.links.ingress import IngressDelay, ingress_change_commands, verify_ingress_delays
from testbed.net.links.interfaces import read_interfaces, read_qdiscs, set_interfaces_up
from testbed.net.links.netlink import Netlink
from testbed.net.links.netns import network_namespace
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape, shape_commands, verify_shapes
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
        self._carriers = CarrierDelay(self, fabric.control.carrier_down_s, fabric.control.carrier_up_s)
        self._cards = HostNics(fabric.plan, fabric.pids)
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
            self._fabric.engine.blackhole(links)

    def set_carrier(self, name: str, up: bool) -> None:
        """Cut or mend a link, or take all ports of a switch down or up, for all to see.

        A link that is mended stays dark where it should be, a port down whose card is.
        """
        fabric = self._fabric
        assert fabric.engine is not None
        if name not in fabric.topology.switches:
            fabric.engine.set_carrier(name, up)
            if up and name in self.condition.links_dark:
                fabric.engine.blackhole([name])
            return
        node, interfaces = fabric.plan.switch_ports(name)
        if up:
            without = self._cards.ports(self.condition.cards_down)
            interfaces = tuple(port for port in interfaces if (node, port) not in without)
        set_interfaces_up(None if node is None else fabric.state.pids[node], interfaces, up)

    def _set_card(self, host: str, up: bool) -> None:
        """A card's carrier, which it and its switch's port see at once."""
        cable = self._cards.of[host]
        if cable.takes_time:
            assert self._fabric.engine is not None
            self._fabric.engine.set_carrier(cable.name, up)
        elif cable.b[0] not in self.condition.switches_down:
            set_interfaces_up(self._fabric.pids[cable.b[0]], [cable.b[1]], up)


class Ends(Protocol):
    """What cuts, and shows it to the ends; names are the caller's."""

    def darken(self, names: Collection[str]) -> None:
        """Nothing passes from now on, and nobody sees it."""

    def set_carrier(self, name: str, up: bool) -> None:
        """Cut or mended, and seen."""


class CarrierDelay:
    """Cuts and mends at once, and has it seen when its time has come: call `play` at `due_s` or later.

    A cut that is mended before it was seen never is, though packets were lost; one that is cut again before it was seen
    to be mended stays down. No threads: whoever waits for other things waits for `due_s`, too.
    """

    def __init__(
        self, ends: Ends, down_s: float, up_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ends = ends
        self._delay_s = {False: down_s, True: up_s}
        self._clock = clock
        self._down: set[str] = set()  # as the switches see it
        self._due: dict[str, tuple[float, bool]] = {}  # when each is seen, and whether to be up

    @property
    def due_s(self) -> float | None:
        """When the next one is seen; None when there is none."""
        return min((due_s for due_s, _ in self._due.values()), default=None)

    def is_down(self, name: str) -> bool:
        """Whether the switches see it down, or are about to."""
        return name in self._down or name in self._due

    def cut(self, names: Iterable[str], after_s: float | None = None) -> None:
        """Nothing passes from now on; after_s: when that is seen, in place of the usual time."""
        delay_s = self._delay_s[False] if after_s is None else after_s
        # what is still down, though mended, only stays so
        fresh = [name for name in names if self._due.pop(name, None) is None and name not in self._down]
        if delay_s and fresh:
            for name in fresh:
                self._due[name] = self._clock() + delay_s, False
            self._ends.darken(fresh)
        else:
            for name in fresh:
                self._see(name, up=False)

    def mend(self, names: Iterable[str]) -> None:
        """All is well again, though nothing passes before a switch that saw the cut sees that."""
        for name in names:
            if self._due.pop(name, None) is not None:
                self._ends.set_carrier(name, up=True)
            elif name in self._down and self._delay_s[True]:
                self._due[name] = self._clock() + self._delay_s[True], True
            elif name in self._down:
                self._see(name, up=True)

    def _see(self, name: str, up: bool) -> None:
        self._ends.set_carrier(name, up)
        (self._down.discard if up else self._down.add)(name)

    def play(self) -> None:
        """Let the switches see every change of carrier that is due."""
        for name, (due_s, up) in sorted(self._due.items(), key=lambda item: item[1][0]):
            if due_s <= self._clock():
                del self._due[name]
                self._see(name, up)

    def settle(self) -> None:
        """Let the switches see all changes now, due or not."""
        for name, (_, up) in self._due.items():
            self._see(name, up)
        self._due.clear()


class HostNics:
    """All of a fabric; pids: a process in each node. `of`: the cable of each host's card.

    A direction's rate is HTB's where it is sent, and what holds frames back where they come in has the rate, the delay
    and the loss: without the latter, which the userspace engine does without, there is no delay and no loss.
    """

    def __init__(self, plan: Plan, pids: Mapping[str, int]) -> None:
        self._plan = plan
        self._pids = pids
        self.of = card_cables(plan.topology)
        self._by_name = {cable.name: cable for cable in self.of.values()}
        self._now: dict[tuple[str, str], Direction] = {}

    def ports(self, hosts: Collection[str]) -> set[End]:
        """The switches' ends of these hosts' cables."""
        return {self.of[host].b for host in hosts}

    def change(self, asked: Mapping[tuple[str, str], Direction]) -> None:
        """By (cable's name, direction) all that is not as the topology has it, from now on; read back. LinkError."""
        for key in sorted({*asked, *self._now}):
            cable = self._by_name[key[0]]
            assert cable.direction is not None
            now, wanted = self._now.get(key, cable.direction), asked.get(key, cable.direction)
            if now != wanted:
                self._change(cable, key[1], now, wanted)
        self._now = dict(asked)

    def _change(self, cable: Cable, which: str, now: Direction, wanted: Direction) -> None:
        sender, receiver = (cable.a, cable.b) if which == "a_to_b" else (cable.b, cable.a)
        mtu = self._plan.topology.mtu
        shapes = [held(sender, Shape.from_direction(direction)) for direction in (wanted, now)]
        setups: dict[str, Setup] = defaultdict(Setup)
        setups[sender[0]].tc += shape_commands(sender[1], shapes[0], mtu, now=shapes[1])
        usual = self._plan.ingress_delays.get(receiver)
        if usual is None and (wanted.delay_s or wanted.loss):
            raise LinkError(f"{cable.name}: this link engine gives a card without delay none, and no loss")
        if usual is not None:
            delays = [_ingress(usual, direction) for direction in (wanted, now)]
            setups[receiver[0]].tc += ingress_change_commands(receiver[1], *delays)
        for node, setup in setups.items():
            setup.apply(self._pids[node])
        self._verify(sender, shapes[0])
        if usual is not None:
            with network_namespace(self._pids[receiver[0]]), Netlink() as netlink:
                names = {link.index: link.name for link in read_interfaces(netlink)}
                verify_ingress_delays(netlink, {receiver[1]: delays[0]}, names, read_qdiscs(netlink))

    def _verify(self, sender: End, shape: Shape) -> None:
        with network_namespace(self._pids[sender[0]]), Netlink() as netlink:
            indexes = {link.name: link.index for link in read_interfaces(netlink)}
            found = [one for one in read_qdiscs(netlink) if one.index == indexes[sender[1]]]
            on = {sender[1]: (indexes[sender[1]], found)}
            verify_shapes(netlink, {sender[1]: shape}, self._plan.topology.mtu, on)


def _ingress(usual: IngressDelay, direction: Direction) -> IngressDelay:
    return replace(usual, rate_bps=direction.rate_bps, delay_s=direction.delay_s, loss=direction.loss)
