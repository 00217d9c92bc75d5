"""The `netem` link engine: a two-port kernel bridge in the WAN namespace with netem on each port's way out.

Rate and queue are HTB's, on the edges' ports, a frame's own time on the wire is taken where it comes in
(testbed.net.links.ingress). The netem of the fibre sits neither on the shaped interface (HTB and netem on one
interface hide each other's drops) nor in the sender's namespace (loss there would be seen as local and TCP Small Queues
would stall). Its packet limit is computed from rate and delay: the default of 1000 packets overruns at 1 Gbit/s beyond
12 ms. netem lets jitter reorder packets.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from testbed.net.errors import LinkError, SettingMismatch
from testbed.net.links.ingress import (
    IngressDelay,
    add_ingress_delays,
    change_command,
    device,
    verify_ingress_delays,
)
from testbed.net.links.interfaces import (
    Discipline,
    Interface,
    disciplines,
    interfaces,
    isolate_bridge_ports,
    netem_seed,
    set_interfaces_up,
)
from testbed.net.links.link_engine import (
    DirectionStats,
    EngineStats,
    LinkWire,
    compare_settings,
    link_interfaces,
    requested_settings,
)
from testbed.net.links.netlink import FORMS, QDISC, Netlink, Request
from testbed.net.links.netns import network_namespace, run_script
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import (
    Shape,
    named,
    read_counters,
    read_filters,
    read_shape,
    shape_commands,
    verify_classes,
)
from testbed.spec.link_direction import Direction, LossBursts

SMALLEST_FRAME_BYTES = 64
TC_H_ROOT = 0xFFFFFFFF


@dataclass(frozen=True)
class _DirectionPorts:
    """Where one direction's frames come into the WAN namespace, leave it, and are shaped before."""

    key: tuple[str, str]
    entry: str
    exit: str
    shaper: str
    node: str | None  # in whose namespace the shaper is
    cut_through_to: str | None  # frames to which are not held for their own time


@dataclass(frozen=True)
class _Counts:
    """What a netem has counted: packets and bytes given out, packets lost; and packets that it holds."""

    out: int = 0
    out_bytes: int = 0
    lost: int = 0
    held: int = 0


class NetemEngine:
    """WAN links by the kernel's own queueing disciplines.

    Process `pid` is in the WAN namespace, `pids[node]` in that of each node that a wire names. `mtu` in bytes.
    """

    name = "netem"

    def __init__(self, pid: int, pids: Mapping[str, int], wires: list[LinkWire], mtu: int, seed: int) -> None:
        self._pid = pid
        self._pids = pids
        self._wires = wires
        self._mtu = mtu
        self._seed = seed
        self._asked = requested_settings(wires)
        self._doubled = {key for key, direction in self._asked.items() if direction.duplicate}
        self._dark: set[str] = set()  # links that `darken` has cut
        self._cut: set[str] = set()  # links that were ever cut, by their names
        self._counted: dict[tuple[str, str], _Counts] = {}  # by netems that are gone
        self._wan: Netlink | None = None
        self._ends: dict[str | None, Netlink] = {}

    def _directions(self) -> Iterator[_DirectionPorts]:
        for wire in self._wires:
            inner = wire.inner_a, wire.inner_b
            yield _DirectionPorts(
                (wire.name, "a_to_b"), *inner, wire.outer_a, wire.node_a, wire.cut_through_b
            )
            yield _DirectionPorts(
                (wire.name, "b_to_a"), *inner[::-1], wire.outer_b, wire.node_b, wire.cut_through_a
            )

    def _pid_of(self, node: str | None) -> int | None:
        return None if node is None else self._pids[node]

    def start(self) -> None:
        """Make the bridges and queueing disciplines, then read every setting back."""
        inner, outer = Setup(), defaultdict[str | None, Setup](Setup)
        for number, wire in enumerate(self._wires):
            bridge = f"br{number}"
            inner.ip.append(f"link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
            for port in (wire.inner_a, wire.inner_b):
                inner.ip += [
                    f"link set dev {port} master {bridge}",
                    f"link set dev {port} type bridge_slave learning off",
                ]
            inner.ip.append(f"link set dev {bridge} up")
        for ports in self._directions():
            asked = self._asked[ports.key]
            inner.tc.append(f"qdisc add dev {ports.exit} root {self._netem(ports.key, asked)}")
            outer[ports.node].tc += shape_commands(ports.shaper, Shape.of(asked), self._mtu)
        add_ingress_delays(inner, self._ingress_delays(self._asked))
        inner.apply(self._pid)
        for node, setup in outer.items():
            setup.apply(self._pid_of(node))
        compare_settings(self._asked, self.settings())
        self.verify()

    def change(self, asked: Mapping[tuple[str, str], Direction]) -> None:
        """Change the queueing disciplines in place."""
        inner, outer = Setup(), defaultdict[str | None, Setup](Setup)
        before = self.settings()
        for ports in self._directions():
            if ports.key in asked:
                new, old = asked[ports.key], Shape.of(before[ports.key])
                inner.tc.append(f"qdisc change dev {ports.exit} root {self._netem(ports.key, new)}")
                inner.tc.append(change_command(ports.entry, IngressDelay(new.rate_bps)))
                outer[ports.node].tc += shape_commands(ports.shaper, Shape.of(new), self._mtu, now=old)
        inner.apply(self._pid)
        for node, setup in outer.items():
            setup.apply(self._pid_of(node))
        self._asked.update(asked)
        self._doubled |= {key for key, direction in asked.items() if direction.duplicate}
        compare_settings(asked, self.settings())
        self.verify()

    def _ingress_delays(self, rates: Mapping[tuple[str, str], Direction]) -> dict[str, IngressDelay]:
        """How each direction's frames are held where they come in."""
        return {
            ports.entry: IngressDelay(rates[ports.key].rate_bps, ports.cut_through_to)
            for ports in self._directions()
        }

    def _netem(self, key: tuple[str, str], asked: Direction) -> str:
        held_s = asked.delay_s + 4 * asked.jitter_s + 0.1
        limit = max(1000, math.ceil(asked.rate_bps / 8 / SMALLEST_FRAME_BYTES * held_s))
        words = [f"netem limit {limit} delay {asked.delay_s * 1e6:.3f}us"]
        if asked.jitter_s:
            words.append(f"{asked.jitter_s * 1e6:.3f}us {_percent(asked.jitter_correlation)}")
            if asked.jitter_distribution != "uniform":
                words.append(f"distribution {asked.jitter_distribution}")
        if bursts := asked.loss_bursts:
            shares = (bursts.enter, bursts.leave, bursts.loss, bursts.loss_between)
            words.append("loss gemodel " + " ".join(map(_percent, shares)))
        elif asked.loss:
            words.append(f"loss random {_percent(asked.loss)}")
        for kind in ("duplicate", "corrupt", "reorder"):
            if share := getattr(asked, kind):
                words.append(f"{kind} {_percent(share)}")
        words.append(f"seed {self._seed_of(key)}")
        return " ".join(words)

    def _seed_of(self, key: tuple[str, str]) -> int:
        return zlib.crc32(f"{self._seed}/{key[0]}/{key[1]}".encode())

    def settings(self) -> dict[tuple[str, str], Direction]:
        """What the kernel's queueing disciplines hold; jitter's distribution, which it does not tell, as asked."""
        shown = json.loads(run_script(self._pid, ["tc -j qdisc show"]))
        qdiscs = {item["dev"]: item["options"] for item in shown if item["kind"] == "netem"}
        found = {}
        for ports in self._directions():
            if ports.exit not in qdiscs:
                raise LinkError(f"link {' '.join(ports.key)}: netem is gone from {ports.exit}")
            asked = self._asked[ports.key]
            filters = None
            if asked.classes:
                filters = read_filters(
                    run_script(self._pid_of(ports.node), [f"tc filter show dev {ports.shaper}"])
                )
            shape = read_shape(self._end(ports.node), ports.shaper, filters)
            found[ports.key] = replace(
                _direction(qdiscs[ports.exit], shape),
                jitter_distribution=asked.jitter_distribution,
                classes=named(shape.classes, asked.classes, shape.rate_bps),
            )
            if asked.queue_packets:  # the kernel keeps no bytes then
                found[ports.key] = replace(found[ports.key], queue_bytes=asked.queue_bytes)
        wan = self._wan_netlink()
        names = {link.index: link.name for link in interfaces(wan)}
        verify_ingress_delays(wan, self._ingress_delays(found), names, disciplines(wan))
        return found

    def _wan_netlink(self) -> Netlink:
        """Netlink where the fibres are."""
        if self._wan is None:
            with network_namespace(self._pid):
                self._wan = Netlink()
        return self._wan

    def _end(self, node: str | None) -> Netlink:
        """Netlink where a link's end is."""
        if node not in self._ends:
            with network_namespace(self._pid_of(node)):
                self._ends[node] = Netlink()
        return self._ends[node]

    def darken(self, links: Collection[str]) -> None:
        """The ports of each one's bridge are isolated from each other; netem, put in anew, has forgotten what it held.

        A port that is disabled instead would be enabled again by the next event on its interface. Over netlink, since
        starting a program takes its time by the real clock, and waiting for its end a millisecond by the virtual one.
        """
        netlink = self._wan_netlink()
        links_there = interfaces(netlink)
        qdiscs = self._netems(links_there)
        for link in links:
            isolate_bridge_ports(netlink, link_interfaces(self._wires, link), True)
        self._dark |= set(links)
        self._cut |= set(links)
        indexes = {found.name: found.index for found in links_there}
        setup = Setup()
        for ports in (ports for ports in self._directions() if ports.key[0] in links):
            body = FORMS[QDISC].pack(0, indexes[ports.exit], 0, TC_H_ROOT, 0)
            netlink.carry_out([Request(QDISC + 1, 0, body, f"delete netem of {ports.exit}")])
            self._counted[ports.key] = self._counts(ports, qdiscs)
            setup.tc.append(
                f"qdisc add dev {ports.exit} root {self._netem(ports.key, self._asked[ports.key])}"
            )
        setup.apply(self._pid)

    def set_carrier(self, link: str, up: bool) -> None:
        """Take its ports of the bridge down or up; the kernel forgets what a port that goes down holds."""
        if up and link in self._dark:
            isolate_bridge_ports(self._wan_netlink(), link_interfaces(self._wires, link), False)
            self._dark.discard(link)
        if not up:
            self._cut.add(link)
        set_interfaces_up(self._pid, link_interfaces(self._wires, link), up)

    def seeded(self) -> bool:
        """Whether losses and jitter come from the seed: before Linux 6.6 each netem draws a seed of its own.

        Raises:
            SettingMismatch: A netem has another seed than it was given.
        """
        qdiscs = self._netems(interfaces(self._wan_netlink()))
        held = {ports.key: netem_seed(self._netem_on(ports, qdiscs).options) for ports in self._directions()}
        if None in held.values():
            return False
        for key, seed in held.items():
            if seed != self._seed_of(key):
                raise SettingMismatch(f"link {' '.join(key)}", "seed", self._seed_of(key), seed)
        return True

    def verify(self) -> None:
        """Each class of the shapers is as its commands make it: rates, bursts, quanta; netems have their seeds."""
        self.seeded()
        for ports in self._directions():
            verify_classes(self._end(ports.node), ports.shaper, Shape.of(self._asked[ports.key]), self._mtu)

    def compensate(
        self,
        excess_s: Mapping[tuple[str, str], float],
        ends: Mapping[tuple[str, str], Collection[str]],
    ) -> None:
        """Nothing: on the kernel's path the rest adds microseconds."""

    def account(self) -> EngineStats:
        """The kernel's counters; netem drops on purpose and for want of room alike: all its drops count as `lost`.

        Frames that vanished count as `cut` on links that were cut: the kernel does not count them itself.
        """
        links = interfaces(self._wan_netlink(), statistics=True)
        received = {link.name: link.rx_packets for link in links}
        qdiscs = self._netems(links)
        shapers = defaultdict[str | None, list[str]](list)
        for ports in self._directions():
            shapers[ports.node].append(ports.shaper)
        counters = {node: read_counters(self._end(node), own) for node, own in shapers.items()}
        directions = {}
        for ports in self._directions():
            shaper, netem = counters[ports.node][ports.shaper], self._counts(ports, qdiscs)
            if (coming := qdiscs.get(device(ports.entry))) is None:
                raise LinkError(f"link {' '.join(ports.key)}: netem is gone from {device(ports.entry)}")
            out, lost = netem.out, netem.lost
            held = netem.held + coming.waiting_packets
            came = received[ports.entry]
            vanished = came - out - lost - held
            twice = max(0, -vanished) if ports.key in self._doubled else 0
            cut = max(0, vanished) if ports.key[0] in self._cut else 0
            directions[ports.key] = DirectionStats(
                in_packets=came + shaper.dropped_packets + shaper.waiting_packets,
                in_bytes=shaper.sent_bytes + shaper.waiting_bytes,
                crossed_packets=came,
                sent_bytes=shaper.sent_bytes,
                out_packets=out,
                out_bytes=netem.out_bytes,
                lost=lost,
                dropped=shaper.dropped_packets,
                overrun=0,
                held=held + shaper.waiting_packets,
                marked=shaper.marked_packets,
                duplicated=twice,
                cut=cut,
                queue_bytes=shaper.waiting_bytes,
            )
        return EngineStats(time_s=time.monotonic(), directions=directions)

    def _netems(self, links: Iterable[Interface]) -> dict[str, Discipline]:
        """Each netem in the WAN namespace, which has these links, by its interface."""
        names = {link.index: link.name for link in links}
        found = disciplines(self._wan_netlink())
        return {names[one.index]: one for one in found if one.kind == "netem"}

    def _counts(self, ports: _DirectionPorts, netems: Mapping[str, Discipline]) -> _Counts:
        """What a direction's netems have counted so far, also those that are gone. LinkError where there is none."""
        netem = self._netem_on(ports, netems)
        before = self._counted.get(ports.key, _Counts())
        return _Counts(
            before.out + netem.sent_packets,
            before.out_bytes + netem.sent_bytes,
            before.lost + netem.dropped_packets,
            netem.waiting_packets,
        )

    @staticmethod
    def _netem_on(ports: _DirectionPorts, netems: Mapping[str, Discipline]) -> Discipline:
        if (netem := netems.get(ports.exit)) is None:
            raise LinkError(f"link {' '.join(ports.key)}: netem is gone from {ports.exit}")
        return netem

    def failure(self) -> str | None:
        """None: the kernel does not end on its own."""
        return None

    def stop(self) -> None:
        """Bridges and queueing disciplines go with their interfaces."""
        for netlink in (self._wan, *self._ends.values()):
            if netlink is not None:
                netlink.close()
        self._wan, self._ends = None, {}


def _percent(share: float) -> str:
    return f"{share * 100:.8f}%"


def _direction(options: Mapping[str, Any], shape: Shape) -> Direction:
    """What one netem, as `tc -j` shows it, and the shape before it come to."""
    delay, bursts = options.get("delay", {}), options.get("loss-gemodel")

    def share(kind: str, name: str) -> float:
        return float(options.get(kind, {}).get(name, 0.0))

    return Direction(
        shape.rate_bps,
        float(delay.get("delay", 0.0)),
        float(delay.get("jitter", 0.0)),
        share("loss-random", "loss"),
        shape.queue_bytes,
        queue_packets=shape.queue_packets,
        ecn_bytes=shape.ecn_bytes,
        jitter_correlation=float(delay.get("correlation", 0.0)),
        loss_bursts=LossBursts(bursts["p"], bursts["r"], bursts["1-h"], bursts["1-k"]) if bursts else None,
        duplicate=share("duplicate", "duplicate"),
        reorder=share("reorder", "reorder"),
        corrupt=share("corrupt", "corrupt"),
    )
