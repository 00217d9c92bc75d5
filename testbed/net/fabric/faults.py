"""Fault injection: bring a fabric from one condition to another by applying only the difference."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from testbed.net.errors import LinkError
from testbed.net.fabric.bridges import Cable, End, nic_cables, with_host_queue
from testbed.net.fabric.network import Fabric
from testbed.net.fabric.plan import Plan
from testbed.net.links.ingress import ingress_change_commands, verify_ingress_delays
from testbed.net.links.interfaces import read_interfaces, read_qdiscs, set_interfaces_up
from testbed.net.links.netlink import Netlink
from testbed.net.links.netns import network_namespace
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape, shape_commands
from testbed.net.links.shaping_readback import verify_shapes
from testbed.spec.link_direction import Direction


@dataclass(frozen=True)
class Condition:
    """The desired condition of a fabric, as deviations from its topology.

    Attributes:
        links_down: Links that are cut.
        switches_down: Switches that are down.
        changed: Changed directions, by (link or NIC cable, direction).
        links_dark: Links that drop everything although their carriers are up.
        cards_down: Hosts whose NICs have no carrier.
    """

    links_down: frozenset[str] = frozenset()
    switches_down: frozenset[str] = frozenset()
    changed: Mapping[tuple[str, str], Direction] = field(default_factory=dict)
    links_dark: frozenset[str] = frozenset()
    cards_down: frozenset[str] = frozenset()


HEALTHY = Condition()


class CarrierDelay(ABC):
    """A model of carrier detection: cuts act at once, but switches see them only after a delay.

    Call `apply_due` at `due_s` or later; there are no threads. If a link is restored before its cut was seen, the
    cut is never seen, though packets were lost. If it is cut again before its restoration was seen, it stays down.

    Args:
        down_s: Seconds until a cut is seen.
        up_s: Seconds until a restoration is seen.
        clock: The clock, in seconds.
    """

    def __init__(self, down_s: float, up_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._delay_s = {False: down_s, True: up_s}
        self._clock = clock
        self._down: set[str] = set()  # as the switches see it
        self._due: dict[str, tuple[float, bool]] = {}  # name -> (time when it is seen, whether it is then up)

    @abstractmethod
    def blackhole(self, names: Collection[str]) -> None:
        """Drop everything from now on, without a carrier change."""

    @abstractmethod
    def set_carrier(self, name: str, up: bool) -> None:
        """Cut or restore, with a carrier change."""

    @property
    def due_s(self) -> float | None:
        """The time when switches see the next change; None if none is pending."""
        return min((due_s for due_s, _ in self._due.values()), default=None)

    def is_down(self, name: str) -> bool:
        """Return whether the switches see a link down, or have a pending change for it."""
        return name in self._down or name in self._due

    def cut(self, names: Iterable[str], after_s: float | None = None) -> None:
        """Cut links now; switches see it after the usual delay, or after `after_s` seconds."""
        delay_s = self._delay_s[False] if after_s is None else after_s
        # A restored link that is still seen as down just stays down.
        fresh = [name for name in names if self._due.pop(name, None) is None and name not in self._down]
        if delay_s and fresh:
            for name in fresh:
                self._due[name] = self._clock() + delay_s, False
            self.blackhole(fresh)
        else:
            for name in fresh:
                self._show(name, up=False)

    def restore(self, names: Iterable[str]) -> None:
        """Restore links; where the cut was seen, traffic resumes only when the restoration is seen, too."""
        for name in names:
            if self._due.pop(name, None) is not None:
                self.set_carrier(name, up=True)
            elif name in self._down and self._delay_s[True]:
                self._due[name] = self._clock() + self._delay_s[True], True
            elif name in self._down:
                self._show(name, up=True)

    def _show(self, name: str, up: bool) -> None:
        self.set_carrier(name, up)
        (self._down.discard if up else self._down.add)(name)

    def apply_due(self) -> None:
        """Let the switches see every carrier change that is due."""
        for name, (due_s, up) in sorted(self._due.items(), key=lambda item: item[1][0]):
            if due_s <= self._clock():
                del self._due[name]
                self._show(name, up)

    def flush(self) -> None:
        """Let the switches see all pending changes now."""
        for name, (_, up) in self._due.items():
            self._show(name, up)
        self._due.clear()


class Faults(CarrierDelay):
    """The fault injector of a fabric, which begins healthy.

    A cut link drops everything at once. The edges at its ends see the carrier loss after the delays of the fabric's
    `control`, in `apply_due`. They see that a link is dark only if `control.silence_s` is set.
    """

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric.control.carrier_down_s, fabric.control.carrier_up_s)
        assert fabric.engine is not None
        self._fabric, self._engine = fabric, fabric.engine
        self._healthy = fabric.requested_directions()
        self._nics = HostNics(fabric.plan, fabric.pids)
        self.condition = HEALTHY

    def apply(self, wanted: Condition) -> None:
        """Apply a condition, settings first, and read it back; raises LinkError on failure."""
        fabric, former = self._fabric, self.condition
        directions = {
            key: replace(wanted.changed.get(key, healthy), classes=healthy.classes)
            for key, healthy in self._healthy.items()
            if wanted.changed.get(key) != former.changed.get(key)
        }
        if directions:
            self._engine.change(directions)
        self._nics.change({key: asked for key, asked in wanted.changed.items() if key not in self._healthy})
        self.condition = wanted  # `set_carrier` uses it
        before, after = self._cut(former), self._cut(wanted)
        if fabric.control.silence_s is not None:  # missing hellos reveal a dark link whose carrier is up
            silent = wanted.links_dark - former.links_dark - before - after
            self.cut(sorted(silent), fabric.control.silence_s)
            before, after = before | former.links_dark | silent, after | wanted.links_dark
        self.cut(sorted(after - before))
        self.restore(sorted(before - after))
        self.blackhole(sorted(wanted.links_dark - former.links_dark - after))
        for link in sorted(former.links_dark - wanted.links_dark - before - after):
            if not self.is_down(link):
                self._engine.set_carrier(link, True)
        for switch in sorted((wanted.switches_down ^ former.switches_down) - self._edges):
            self.set_carrier(switch, up=switch not in wanted.switches_down)
        for host in sorted(wanted.cards_down ^ former.cards_down):
            self._set_nic(host, up=host not in wanted.cards_down)

    @property
    def _edges(self) -> set[str]:
        return {edge.name for edge in self._fabric.plan.edges}

    def _cut(self, condition: Condition) -> set[str]:
        """Return the links that are cut, including those of edges that are down, and these edges."""
        plan = self._fabric.plan
        edges = condition.switches_down & self._edges
        links = {port.link.name for edge in plan.edges if edge.name in edges for port in edge.wan}
        return {*condition.links_down, *edges, *links}

    def blackhole(self, names: Collection[str]) -> None:
        """Drop everything on links without a carrier change; edges are skipped, since their links are cut too."""
        if links := [name for name in names if name not in self._edges]:
            self._engine.blackhole(links)

    def set_carrier(self, name: str, up: bool) -> None:
        """Set the carrier of a link, or of all ports of a switch.

        A link that comes up stays dark if it should be. A switch port stays down if the host's NIC is down.
        """
        fabric = self._fabric
        if name not in fabric.topology.switches:
            self._engine.set_carrier(name, up)
            if up and name in self.condition.links_dark:
                self._engine.blackhole([name])
            return
        node, interfaces = fabric.plan.switch_ports(name)
        if up:
            ports_down = self._nics.ports(self.condition.cards_down)
            interfaces = tuple(port for port in interfaces if (node, port) not in ports_down)
        set_interfaces_up(None if node is None else fabric.state.pids[node], interfaces, up)

    def _set_nic(self, host: str, up: bool) -> None:
        """Set the carrier of a host's NIC and of its switch port."""
        cable = self._nics.cables[host]
        if cable.needs_engine:
            self._engine.set_carrier(cable.name, up)
        elif cable.b[0] not in self.condition.switches_down:
            set_interfaces_up(self._fabric.pids[cable.b[0]], [cable.b[1]], up)


class HostNics:
    """The NICs of a fabric's hosts; `cables` has the cable of each.

    HTB at the sending end shapes a direction's rate. The ingress delay at the receiving end has its rate, delay and
    loss. The userspace engine has no ingress delays, so with it NIC cables have neither delay nor loss.

    Args:
        plan: The fabric's plan.
        pids: A process in each node.
    """

    def __init__(self, plan: Plan, pids: Mapping[str, int]) -> None:
        self._plan = plan
        self._pids = pids
        self.cables = nic_cables(plan.topology)
        self._by_name = {cable.name: cable for cable in self.cables.values()}
        self._now: dict[tuple[str, str], Direction] = {}

    def ports(self, hosts: Collection[str]) -> set[End]:
        """Return the switch ports of these hosts."""
        return {self.cables[host].b for host in hosts}

    def change(self, asked: Mapping[tuple[str, str], Direction]) -> None:
        """Apply all deviations from the topology, by (cable name, direction), and read them back."""
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
        shapes = [with_host_queue(sender, Shape.from_direction(direction)) for direction in (wanted, now)]
        setups: dict[str, Setup] = defaultdict(Setup)
        setups[sender[0]].tc += shape_commands(sender[1], shapes[0], mtu, now=shapes[1])
        usual = self._plan.ingress_delays.get(receiver)
        if usual is None and (wanted.delay_s or wanted.loss):
            raise LinkError(
                f"{cable.name}: this link engine supports no delay or loss on a NIC without a delay"
            )
        if usual is not None:
            delays = [
                replace(usual, rate_bps=own.rate_bps, delay_s=own.delay_s, loss=own.loss)
                for own in (wanted, now)
            ]
            setups[receiver[0]].tc += ingress_change_commands(receiver[1], *delays)
        for node, setup in setups.items():
            setup.apply(self._pids[node])
        with network_namespace(self._pids[sender[0]]), Netlink() as netlink:
            (index,) = (link.index for link in read_interfaces(netlink) if link.name == sender[1])
            found = [one for one in read_qdiscs(netlink) if one.index == index]
            verify_shapes(netlink, {sender[1]: shapes[0]}, mtu, {sender[1]: (index, found)})
        if usual is not None:
            with network_namespace(self._pids[receiver[0]]), Netlink() as netlink:
                names = {link.index: link.name for link in read_interfaces(netlink)}
                verify_ingress_delays(netlink, {receiver[1]: delays[0]}, names, read_qdiscs(netlink))
