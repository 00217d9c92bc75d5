"""The `netem` link engine: per link, a kernel bridge with two ports in the WAN namespace and netem on their egress.

HTB on the edges' ports applies rate and queue. The serialisation delay is added on ingress (testbed.net.links.ingress).
netem is not on the shaped interface, because HTB and netem on one interface hide each other's drops. It is not in the
sender's namespace either: loss there counts as local and would stall TCP Small Queues. Its packet limit is computed
from rate and delay, because the default of 1000 packets overflows at 1 Gbit/s beyond 12 ms. With netem, jitter reorders
packets.
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
    ingress_device,
    netem_change_command,
    verify_ingress_delays,
)
from testbed.net.links.interfaces import (
    Interface,
    NetemOptions,
    Qdisc,
    isolate_bridge_ports,
    read_interfaces,
    read_qdiscs,
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
from testbed.net.links.netlink import MESSAGE_STRUCTS, QDISC, Netlink, Request
from testbed.net.links.netns import network_namespace, run_script
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape, shape_commands
from testbed.net.links.shaping_readback import (
    QueueCounters,
    match_requested_classes,
    parse_dscp_filters,
    read_counters,
    read_shape,
    verify_classes,
)
from testbed.spec.link_direction import PACKET_FAULTS, Direction, LossBursts

SMALLEST_FRAME_BYTES = 64
TC_H_ROOT = 0xFFFFFFFF


@dataclass(frozen=True)
class _DirectionPorts:
    """The interfaces at which one direction's frames are shaped, then enter and leave the WAN namespace."""

    key: tuple[str, str]
    entry: str
    exit: str
    shaper: str
    node: str | None  # the node in whose namespace the shaper is
    cut_through_to: str | None  # the network whose frames get no serialisation delay


class NetemEngine:
    """A link engine that uses the kernel's queueing disciplines.

    Args:
        pid: A process in the WAN namespace.
        pids: A process in the namespace of each node that a wire names.
        wires: The links.
        mtu: MTU of the interfaces in bytes.
        seed: Seed of losses and jitter.
    """

    name = "netem"

    def __init__(self, pid: int, pids: Mapping[str, int], wires: list[LinkWire], mtu: int, seed: int) -> None:
        self._pid = pid
        self._pids = pids
        self._wires = wires
        self._mtu = mtu
        self._seed = seed
        self._asked = requested_settings(wires)
        self._duplicating = {key for key, direction in self._asked.items() if direction.duplicate}
        self._blackholed: set[str] = set()  # names of links that `blackhole` has cut
        self._ever_cut: set[str] = set()  # names of links
        self._removed: dict[tuple[str, str], list[Qdisc]] = defaultdict(list)  # netems that were replaced
        self._netlinks: dict[int | None, Netlink] = {}  # keyed by a process in the namespace

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
        """Create the bridges and queueing disciplines, then read every setting back."""
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
            outer[ports.node].tc += shape_commands(ports.shaper, Shape.from_direction(asked), self._mtu)
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
                new, old = asked[ports.key], Shape.from_direction(before[ports.key])
                inner.tc.append(f"qdisc change dev {ports.exit} root {self._netem(ports.key, new)}")
                inner.tc.append(netem_change_command(ports.entry, IngressDelay(new.rate_bps)))
                outer[ports.node].tc += shape_commands(
                    ports.shaper, Shape.from_direction(new), self._mtu, now=old
                )
        inner.apply(self._pid)
        for node, setup in outer.items():
            setup.apply(self._pid_of(node))
        self._asked.update(asked)
        self._duplicating |= {key for key, direction in asked.items() if direction.duplicate}
        compare_settings(asked, self.settings())
        self.verify()

    def _ingress_delays(self, settings: Mapping[tuple[str, str], Direction]) -> dict[str, IngressDelay]:
        return {
            ports.entry: IngressDelay(settings[ports.key].rate_bps, ports.cut_through_to)
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
        words += [f"{kind} {_percent(share)}" for kind, share in asked.faults.items()]
        words.append(f"seed {self._seed_of(key)}")
        return " ".join(words)

    def _seed_of(self, key: tuple[str, str]) -> int:
        return zlib.crc32(f"{self._seed}/{key[0]}/{key[1]}".encode())

    def settings(self) -> dict[tuple[str, str], Direction]:
        """Return the settings of the kernel's qdiscs.

        The kernel does not return the distribution of jitter; it is the requested one here.
        """
        shown = json.loads(run_script(self._pid, ["tc -j qdisc show"]))
        qdiscs = {item["dev"]: item["options"] for item in shown if item["kind"] == "netem"}
        found = {}
        for ports in self._directions():
            if ports.exit not in qdiscs:
                raise LinkError(f"link {' '.join(ports.key)}: netem was removed from {ports.exit}")
            asked = self._asked[ports.key]
            filters = None
            if asked.classes:
                filters = parse_dscp_filters(
                    run_script(self._pid_of(ports.node), [f"tc filter show dev {ports.shaper}"])
                )
            shape = read_shape(self._netlink(self._pid_of(ports.node)), ports.shaper, filters)
            found[ports.key] = replace(
                _direction(qdiscs[ports.exit], shape),
                jitter_distribution=asked.jitter_distribution,
                classes=match_requested_classes(shape.classes, asked.classes, shape.rate_bps),
            )
            if asked.queue_packets:  # then the kernel has no limit in bytes
                found[ports.key] = replace(found[ports.key], queue_bytes=asked.queue_bytes)
        wan = self._netlink(self._pid)
        names = {link.index: link.name for link in read_interfaces(wan)}
        verify_ingress_delays(wan, self._ingress_delays(found), names, read_qdiscs(wan))
        return found

    def _netlink(self, pid: int | None) -> Netlink:
        """Return the netlink socket of a process's namespace; None: this process's."""
        if pid not in self._netlinks:
            with network_namespace(pid):
                self._netlinks[pid] = Netlink()
        return self._netlinks[pid]

    def blackhole(self, links: Collection[str]) -> None:
        """Isolate the ports of each link's bridge, and replace its netems to drop the frames in them.

        The next event on the interface of a disabled port would enable it again. It uses netlink because starting a
        program takes time under the real clock, and waiting for its exit takes a millisecond under the virtual one.
        """
        netlink = self._netlink(self._pid)
        wan_interfaces = read_interfaces(netlink)
        netems = self._netems(wan_interfaces)
        for link in links:
            isolate_bridge_ports(netlink, link_interfaces(self._wires, link), True)
        self._blackholed |= set(links)
        self._ever_cut |= set(links)
        indexes = {found.name: found.index for found in wan_interfaces}
        setup = Setup()
        for ports in (ports for ports in self._directions() if ports.key[0] in links):
            body = MESSAGE_STRUCTS[QDISC].pack(0, indexes[ports.exit], 0, TC_H_ROOT, 0)
            netlink.execute([Request(QDISC + 1, 0, body, f"delete netem of {ports.exit}")])
            netem = self._netem_on(ports.exit, ports, netems)
            self._removed[ports.key].append(replace(netem, waiting_packets=0, waiting_bytes=0))
            setup.tc.append(
                f"qdisc add dev {ports.exit} root {self._netem(ports.key, self._asked[ports.key])}"
            )
        setup.apply(self._pid)

    def set_carrier(self, link: str, up: bool) -> None:
        """Take the ports of the link's bridge down or up; the kernel drops a port's frames when it goes down."""
        if up and link in self._blackholed:
            isolate_bridge_ports(self._netlink(self._pid), link_interfaces(self._wires, link), False)
            self._blackholed.discard(link)
        if not up:
            self._ever_cut.add(link)
        set_interfaces_up(self._pid, link_interfaces(self._wires, link), up)

    def is_seeded(self) -> bool:
        """Return whether losses and jitter come from the seed; before Linux 6.6 each netem draws its own.

        Raises:
            SettingMismatch: A netem's seed differs from the one that it was given.
        """
        netems = self._netems(read_interfaces(self._netlink(self._pid)))
        seeds = {
            ports.key: NetemOptions.parse(self._netem_on(ports.exit, ports, netems).options).seed
            for ports in self._directions()
        }
        if None in seeds.values():
            return False
        for key, seed in seeds.items():
            if seed != self._seed_of(key):
                raise SettingMismatch(f"link {' '.join(key)}", "seed", self._seed_of(key), seed)
        return True

    def verify(self) -> None:
        """Read back the rates, bursts and quanta of all shaper classes, and the seeds of the netems."""
        self.is_seeded()
        for ports in self._directions():
            shape = Shape.from_direction(self._asked[ports.key])
            verify_classes(self._netlink(self._pid_of(ports.node)), ports.shaper, shape, self._mtu)

    def compensate(
        self,
        excess_s: Mapping[tuple[str, str], float],
        ends: Mapping[tuple[str, str], Collection[str]],
    ) -> None:
        """Do nothing: on the kernel's path the switches add only microseconds."""

    def stats(self) -> EngineStats:
        """Return the kernel's counters.

        netem does not distinguish random losses from overflow: all its drops count as `lost`. The kernel does not count
        frames dropped by a cut: on links that were ever cut, all missing frames count as `cut`.
        """
        links = read_interfaces(self._netlink(self._pid), statistics=True)
        received = {link.name: link.rx_packets for link in links}
        netems = self._netems(links)
        shapers = defaultdict[str | None, list[str]](list)
        for ports in self._directions():
            shapers[ports.node].append(ports.shaper)
        counters = {
            node: read_counters(self._netlink(self._pid_of(node)), own) for node, own in shapers.items()
        }
        directions = {}
        for ports in self._directions():
            shaper = counters[ports.node][ports.shaper]
            in_force = self._netem_on(ports.exit, ports, netems)
            netem = QueueCounters.sum_of([*self._removed[ports.key], in_force])
            ingress = self._netem_on(ingress_device(ports.entry), ports, netems)
            held = netem.waiting_packets + ingress.waiting_packets
            arrived = received[ports.entry]
            missing = arrived - netem.sent_packets - netem.dropped_packets - held
            duplicated = max(0, -missing) if ports.key in self._duplicating else 0
            cut = max(0, missing) if ports.key[0] in self._ever_cut else 0
            directions[ports.key] = DirectionStats(
                in_packets=arrived + shaper.dropped_packets + shaper.waiting_packets,
                in_bytes=shaper.sent_bytes + shaper.waiting_bytes,
                crossed_packets=arrived,
                sent_bytes=shaper.sent_bytes,
                out_packets=netem.sent_packets,
                out_bytes=netem.sent_bytes,
                lost=netem.dropped_packets,
                dropped=shaper.dropped_packets,
                overrun=0,
                held=held + shaper.waiting_packets,
                marked=shaper.marked_packets,
                duplicated=duplicated,
                cut=cut,
                queue_bytes=shaper.waiting_bytes,
            )
        return EngineStats(time_s=time.monotonic(), directions=directions)

    def _netems(self, links: Iterable[Interface]) -> dict[str, Qdisc]:
        """Return the netems of the WAN namespace by the names of its interfaces `links`."""
        names = {link.index: link.name for link in links}
        found = read_qdiscs(self._netlink(self._pid))
        return {names[one.index]: one for one in found if one.kind == "netem"}

    @staticmethod
    def _netem_on(interface: str, ports: _DirectionPorts, netems: Mapping[str, Qdisc]) -> Qdisc:
        if (netem := netems.get(interface)) is None:
            raise LinkError(f"link {' '.join(ports.key)}: netem was removed from {interface}")
        return netem

    def failure(self) -> str | None:
        """Return None, because the kernel never stops."""
        return None

    def stop(self) -> None:
        """Close the netlink sockets; bridges and queueing disciplines are removed with their interfaces."""
        for netlink in self._netlinks.values():
            netlink.close()
        self._netlinks = {}


def _percent(share: float) -> str:
    return f"{share * 100:.8f}%"


def _direction(options: Mapping[str, Any], shape: Shape) -> Direction:
    """Combine the options of a netem, as shown by `tc -j`, and the shape in front of it."""
    delay, bursts = options.get("delay", {}), options.get("loss-gemodel")

    def share(kind: str, name: str) -> float:
        return float(options.get(kind, {}).get(name, 0.0))

    faults: dict[str, Any] = {kind: share(kind, kind) for kind in PACKET_FAULTS}
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
        **faults,
    )
