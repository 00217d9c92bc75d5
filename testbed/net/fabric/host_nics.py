"""Cards of hosts whose settings change while they carry: those that no link engine carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from testbed.net.fabric.bridges import Cable, End, card_cables, held
from testbed.net.fabric.plan import Plan
from testbed.net.links.errors import LinkError
from testbed.net.links.ingress import IngressDelay, change_commands, verify_ingress_delays
from testbed.net.links.netlink import Netlink
from testbed.net.links.netns import network_namespace
from testbed.net.links.rtnetlink_dumps import disciplines, interfaces
from testbed.net.links.setup import Setup
from testbed.net.links.shaped import verify_shapes
from testbed.net.links.shaping import Shape, shape_commands
from testbed.spec.link_direction import Direction


class Cards:
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
        shapes = [held(sender, Shape.of(direction)) for direction in (wanted, now)]
        setups: dict[str, Setup] = defaultdict(Setup)
        setups[sender[0]].tc += shape_commands(sender[1], shapes[0], mtu, now=shapes[1])
        usual = self._plan.ingress_delays.get(receiver)
        if usual is None and (wanted.delay_s or wanted.loss):
            raise LinkError(f"{cable.name}: this link engine gives a card without delay none, and no loss")
        if usual is not None:
            delays = [_ingress(usual, direction) for direction in (wanted, now)]
            setups[receiver[0]].tc += change_commands(receiver[1], *delays)
        for node, setup in setups.items():
            setup.apply(self._pids[node])
        self._verify(sender, shapes[0])
        if usual is not None:
            with network_namespace(self._pids[receiver[0]]), Netlink() as netlink:
                names = {link.index: link.name for link in interfaces(netlink)}
                verify_ingress_delays(netlink, {receiver[1]: delays[0]}, names, disciplines(netlink))

    def _verify(self, sender: End, shape: Shape) -> None:
        with network_namespace(self._pids[sender[0]]), Netlink() as netlink:
            indexes = {link.name: link.index for link in interfaces(netlink)}
            found = [one for one in disciplines(netlink) if one.index == indexes[sender[1]]]
            on = {sender[1]: (indexes[sender[1]], found)}
            verify_shapes(netlink, {sender[1]: shape}, self._plan.topology.mtu, on)


def _ingress(usual: IngressDelay, direction: Direction) -> IngressDelay:
    return replace(usual, rate_bps=direction.rate_bps, delay_s=direction.delay_s, loss=direction.loss)
