"""The paths of a job's connections under its policy, link by link, and the model's network with those paths."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from testbed.caches import IdentityCache
from testbed.comm.transport import TrafficClass
from testbed.comm.transport.wire import ConnectionKey
from testbed.net.controller import Flow, PolicyChoice, View, compute
from testbed.net.controller.table_simulator import Network as Switches
from testbed.net.controller.table_simulator import PacketTrace, wires
from testbed.net.fabric.namespace_setup import receive_window_bytes
from testbed.net.fabric.plan import Plan
from testbed.net.paths import Ends, LossyConnection, Network, Path, network_of, payload_per_bit
from testbed.net.paths.alpha_beta import RingStep, frame_per_payload, step_of
from testbed.net.paths.datagram_recovery import LossyDatagrams
from testbed.net.paths.hops import (
    Hop,
    PacketHop,
    PacketPath,
    Paths,
    is_plain,
    packet_hops,
    packet_payload_bytes,
)
from testbed.net.paths.losses import FALLBACK_CONTROL, find_control, is_known_control
from testbed.net.paths.network import ANY
from testbed.prediction.calibration import Calibration
from testbed.spec.buildings import Host
from testbed.spec.keywords import PLANNED
from testbed.spec.link_direction import Direction, QueueClass
from testbed.workload.job.job import Job

Marked = tuple[tuple[str, Direction], int]
"""A link's direction, by name, and the DSCP of packets there."""


def model_of(job: Job, control: str) -> str:
    """Return the congestion-control algorithm that the model uses to approximate one of the kernel's."""
    return (job.scenario.transport.congestion_models or {}).get(control, control)


def class_part(link: str, entry: QueueClass) -> str:
    """Return the network part that models a traffic class's queue on a link."""
    return f"{link}, class {entry.name}"


class Routes:
    """The routes of a job's connections, from the rules that its policy computes."""

    def __init__(self, job: Job, calibration: Calibration) -> None:
        self.job, self.calibration = job, calibration
        self.topology = job.topology
        self._paths = Paths(self.topology, job.link_engine)
        self.inside, self.nodes = self._paths.inside, self._paths.nodes
        self.per_bit = payload_per_bit(self.topology)
        self.hosts = {host.name: (rank, host) for rank, host in enumerate(job.hosts)}
        edges = Plan(self.topology, "").edge_ports()
        self.view = View(self.topology, job.flows, seed=job.scenario.seed)
        choice = PolicyChoice(**job.scenario.policy.to_choice())
        computed = compute(choice, self.view, edges)
        self.classes = computed.classes
        self.switches = Switches(computed.rules, wires(self.topology, edges))
        self.edges = {edge.building: edge for edge in edges}
        self.wan = {
            (self.edges[here].dpid, self.edges[here].wan[there, link.plane]): (link, here, there)
            for link in self.topology.wan
            for here, there, _ in link.directions
        }
        self.links = {
            port: (f"{link.name} from {here}", link.a_to_b if here == link.a else link.b_to_a)
            for port, (link, here, _) in self.wan.items()
        }

    def paths(self, flows: Sequence[Flow]) -> Iterator[tuple[Ends, Flow, Path, dict[str, float]]]:
        """Yield every flow between buildings with its ranks, path, and the capacities of parts that are not links."""
        for flow in flows:
            (source, one), (target, other) = self.hosts[flow.source], self.hosts[flow.destination]
            if one.building != other.building:
                yield (source, target), flow, *self._path((source, target), flow, one, other)

    def packets(self, flows: Sequence[Flow]) -> dict[tuple[Ends, int], tuple[PacketPath, ...]]:
        """Return the packet paths of all connections, in both directions.

        The result is empty if links do more than queue and drop, or if a congestion-control algorithm is not
        window-based.
        """
        found: dict[tuple[Ends, int], tuple[PacketPath, ...]] = {}
        for flow in flows:
            (source, one), (target, other) = self.hosts[flow.source], self.hosts[flow.destination]
            if one.building != other.building:
                there, links = self._hops(flow, one, other)
                back, links_back = self._hops(flow.back, other, one)
                path = self._packet_path((source, target), flow.dscp, flow.channel, there, back)
                if path is None:
                    return {}
                hops, back_hops = (
                    self._with_classes(path.hops, links),
                    self._with_classes(path.back, links_back),
                )
                key = (source, target), flow.dscp
                found[key] = (*found.get(key, ()), path._replace(hops=hops, back=back_hops))
        if any(len(paths) > 1 and paths[0].stripes is None for paths in found.values()):
            return {}  # MPTCP's subflows are one connection
        for ((source, target), dscp), paths in list(found.items()):  # acknowledgements take the way back
            back_to = (target, source), dscp
            if back_to not in found:
                found[back_to] = tuple(path._replace(hops=path.back, back=path.hops) for path in paths)
        for source, one in self.hosts.values():
            for target, other in self.hosts.values():
                if source != target and one.building == other.building:
                    there, back = self._paths.between(one, other), self._paths.between(other, one)
                    path = self._packet_path((source, target), 0, 0, there, back)
                    if path is None:
                        return {}
                    found[(source, target), ANY] = (path,) * (path.stripes.connections if path.stripes else 1)
        return found

    def _packet_path(
        self, ends: Ends, dscp: int, channel: int, there: Sequence[Hop], back: Sequence[Hop]
    ) -> PacketPath | None:
        wiring = self.job.wiring
        settings = wiring.settings(*ends, wiring.connection(*ends, TrafficClass(dscp), channel))
        named = model_of(
            self.job, settings.congestion_control or wiring.congestion_control or FALLBACK_CONTROL
        )
        if (
            not (is_plain(there) and is_plain(back) and is_known_control(named))
            or settings.pacing_bps is not None
        ):
            return None
        control = find_control(named)
        if control.window is None and not control.startup:
            return None
        window_bytes = settings.window_bytes
        if window_bytes is None:
            window_bytes = receive_window_bytes(self.topology)
        return PacketPath(
            packet_hops(there),
            packet_hops(back),
            control.window,
            packet_payload_bytes(self.topology),
            window_bytes,
            wiring.transport.stripe_settings(wiring.distance(*ends)),
        )

    def _with_classes(self, hops: tuple[PacketHop, ...], links: Sequence[Marked]) -> tuple[PacketHop, ...]:
        """Assign hops to the queue of their class if links have classes."""
        if not self.classes:
            return hops
        numbers = {name: self.classes.index(self._class_of(dscp)) for (name, _), dscp in links}
        return tuple(
            hop._replace(classes=self.classes, number=numbers[hop.name]) if hop.name in numbers else hop
            for hop in hops
        )

    def journey(self, flow: Flow, one: Host) -> PacketTrace:
        """Trace a flow from a host to another building through the edge switches."""
        edge = self.edges[one.building]
        return self.switches.forward(self.view.packet(flow), edge.entry)

    def _hops(self, flow: Flow, one: Host, other: Host) -> tuple[list[Hop], list[Marked]]:
        """Return all hops of a flow, and its WAN links with the DSCP on each."""
        journey = self.journey(flow, one)
        up, down = self.inside(one, other)
        marked = zip(journey.hops, journey.dscps, strict=True)
        taken = [(self.links[hop], dscp) for hop, dscp in marked if hop in self.links]
        return [*up, *(Hop(name, [direction]) for (name, direction), _ in taken), *down], taken

    def _path(self, ends: Ends, flow: Flow, one: Host, other: Host) -> tuple[Path, dict[str, float]]:
        hops, taken = self._hops(flow, one, other)
        # acknowledgements cross similar links in the opposite order
        step = step_of(self.topology, hops, hops[::-1])
        capacities = {}
        parts = [hop.name for hop in hops]
        parts += [class_part(name, self._class_of(dscp)) for (name, _), dscp in taken if self.classes]
        lossy = self._lossy(ends, flow, [direction.mean_loss for (_, direction), _ in taken], step)
        own_byte_s = self._own_byte_s(ends, flow, step)
        if own_byte_s:
            name = f"sockets of {flow}, DSCP {flow.dscp}"
            capacities[name] = 1 / own_byte_s
            parts.append(name)
        return Path(step.delay_s, tuple(parts), lossy, step.serialisation), capacities

    def _lossy(
        self, ends: Ends, flow: Flow, losses: Sequence[float], step: RingStep
    ) -> LossyConnection | LossyDatagrams | None:
        """Return the loss model of a path; None if nothing is lost."""
        loss = 1 - math.prod(1 - share for share in losses)
        if not loss:
            return None
        wiring = self.job.wiring
        packet = wiring.transport.packet(self.topology.mtu)
        packet_bytes = packet_payload_bytes(self.topology) if packet is None else packet.payload_bytes
        path = step.round_trip_s(packet_bytes), 1 / step.beta_s, packet_bytes
        if (mends := wiring.transport.mends) is not None:
            most = (
                find_control(FALLBACK_CONTROL).window_packets(loss, path[0])
                if mends.reacts_to_loss
                else math.inf
            )
            return LossyDatagrams(
                mends.recovery,
                loss,
                *path,
                mends.data,
                mends.parity,
                most,
                timeout_s=mends.timeout_s,
                blind_packets=mends.blind_packets,
                excess_window_bytes=mends.excess_window_bytes(path[0] / step.beta_s),
                factor=self.calibration.mending_factor(mends.probed_as),
            )
        settings = wiring.settings(*ends, self._key(ends, flow))
        control = settings.congestion_control or wiring.congestion_control or FALLBACK_CONTROL
        model = model_of(self.job, control)
        response = self.calibration.response(control, model)
        return LossyConnection(model, loss, *path, response)

    def _class_of(self, dscp: int) -> QueueClass:
        """Return a packet's class: the one that lists its DSCP, or the default class."""
        rest = next(entry for entry in self.classes if not entry.dscps)
        return next((entry for entry in self.classes if dscp in entry.dscps), rest)

    def _own_byte_s(self, ends: Ends, flow: Flow, step: RingStep) -> float:
        """Return the seconds per byte that the connection's socket settings allow."""
        wiring = self.job.wiring
        # striped connections are simulated segment by segment, so their window needs no separate rate
        ruled = wiring.transport.stripe_settings(wiring.distance(*ends)) is None
        return wiring.slowest_byte_s(*ends, self._key(ends, flow), step, paced=True, ruled=ruled)

    def _key(self, ends: Ends, flow: Flow) -> ConnectionKey:
        return self.job.wiring.connection(*ends, TrafficClass(flow.dscp), flow.channel)


_known: IdentityCache[Network] = IdentityCache(64)  # a search uses a few networks repeatedly


def route_network(
    job: Job, algorithm: str, calibration: Calibration, routes: Routes | None = None
) -> Network:
    """Build the model's network with the policy's paths between buildings.

    Jobs without relevant differences share one network.

    Args:
        job: The job to route.
        algorithm: Algorithm of collectives that do not name one.
        calibration: Calibration of the emulator.
        routes: The job's routes, if known.

    Raises:
        ControllerError: If the policy cannot route the job.
    """
    things = job.topology, *job.hosts, job.scenario.transport, calibration
    return _known.of(
        things, lambda: _build_network(routes or Routes(job, calibration), algorithm), _key(job, algorithm)
    )


def _key(job: Job, algorithm: str) -> Hashable:
    choice, spec = job.scenario.policy.to_choice(), job.scenario.transport
    sized = PolicyChoice(**choice).goes_by_sizes or any(own.pacing == PLANNED for own in spec.sockets)
    declared = job.scenario.algorithms[0]
    pairs = [job.workload.pairs(one) for one in dict.fromkeys((declared, algorithm))]
    # senders and receivers determine which connections exist
    flows = tuple(
        (dscp, frozenset(own.items() if sized else own)) for several in pairs for dscp, own in several.items()
    )
    return repr(choice), flows, job.scale, job.scenario.seed, job.link_engine


def _build_network(routes: Routes, algorithm: str) -> Network:
    job = routes.job
    training = job.workload.training
    network = network_of(job.topology, job.hosts, job.link_engine) if training is None else training.network
    capacities, queues = dict(network.capacities), dict(network.queues)
    parallel: dict[tuple[Ends, int], tuple[Path, ...]] = {}
    classes = {}
    for name, direction in routes.links.values():
        rate = capacities[name] = routes.per_bit * direction.rate_bps
        own = [(class_part(name, entry), entry) for entry in routes.classes]
        capacities |= {part: rate * entry.limit for part, entry in own}
        queues |= dict.fromkeys([part for part, _ in own] or [name], float(direction.queue_bytes))
        if own:
            classes[name] = tuple(own)
    for ends, flow, path, more in routes.paths(job.flows_of(algorithm)):
        capacities |= more
        key = ends, flow.dscp
        parallel[key] = (*parallel.get(key, ()), path)
    granted = job.wiring.transport.granted_share
    if granted is not None:
        capacities |= {card: capacities[card] * granted for card in _receiving(network)}
    parallel = {key: tuple(_share_go_back_n(paths, capacities)) for key, paths in parallel.items()}
    wiring, packet = job.wiring, job.wiring.transport.packet(job.topology.mtu)
    headers = (
        1.0 if packet is None else packet.frame_bytes / packet.payload_bytes / frame_per_payload(job.topology)
    )
    overheads = {ends: (1 + wiring.overhead(*ends)) * headers - 1 for ends in network.paths}
    written = {ends: wiring.transport.write_threshold_bytes(wiring.distance(*ends)) for ends in network.paths}
    dealing = {
        ends: stripes
        for ends, _ in parallel
        if (stripes := wiring.transport.stripe_settings(wiring.distance(*ends))) is not None
    }
    control = find_control(model_of(job, wiring.congestion_control or FALLBACK_CONTROL))
    at_once = granted is None and not control.paces
    startup = control.startup if granted is None and packet is None else 0.0
    return replace(
        network,
        capacities=capacities,
        parallel=parallel,
        stripe_settings=dealing,
        queues=queues,
        classes=classes,
        overheads=overheads,
        write_threshold_bytes=written,
        # granted data is interleaved, a few packets at a time
        sends_at_once=at_once,
        routed=True,
        first_pace=startup,
        needs_grants=granted is not None,
    )


def _receiving(network: Network) -> set[str]:
    """Return the NICs where messages arrive."""
    return {path.parts[-1] for path in network.paths.values()}


def _share_go_back_n(paths: Sequence[Path], capacities: Mapping[str, float]) -> Iterator[Path]:
    """Yield a pair's paths; those with separate go-back-N get only their share of a shared link.

    A path with separate go-back-N discards only its own packets in flight.
    """
    for path in paths:
        own = path.lossy
        if isinstance(own, LossyDatagrams) and own.recovery == "go_back_n":
            slowest = min(path.parts, key=capacities.__getitem__)
            alike = sum(slowest in other.parts for other in paths)
            yield replace(path, lossy=replace(own, path_rate=own.path_rate / alike))
        else:
            yield path
