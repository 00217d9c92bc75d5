"""What a model says that a step takes, of any scenario: nothing is built or sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from testbed.collectives.baseline import baseline_rounds, baseline_times
from testbed.config import Host
from testbed.controller import Flow, PolicyChoice, View, compute
from testbed.controller.table import Journey, wires
from testbed.controller.table import Network as Switches
from testbed.directions import QueueClass
from testbed.fabric.plan import make_plan
from testbed.job.job import Job, job_of
from testbed.model import Timeline
from testbed.model.calibration import VIRTUAL, Calibration, find_calibration
from testbed.model.connections import Before
from testbed.model.messages import message_count
from testbed.model.prepared import Prepared, played
from testbed.paths import Ends, Lossy, Network, Path, network_of, payload_per_bit
from testbed.paths.alpha_beta import (
    Step,
    calibration_bytes,
    frame_per_payload,
    ring_steps,
    step_of,
    worst_plane,
)
from testbed.paths.hops import NETEM, Hop, Paths, packet_payload_bytes
from testbed.paths.losses import USUAL, control_of
from testbed.paths.recovering import LossyDatagrams, poisson_quantile
from testbed.transport import PROTOCOLS, TrafficClass
from testbed.transport.wire import ConnectionKey

DRAWS = 9
MORE = 4  # times as many
MOST_DRAWN = 1_000  # messages of a step of which several are played, several times each
MOST_MESSAGES = 10_000  # of a step that is played message by message: a second


def predict(job: Job, algorithm: str, calibration: Calibration | None = None, draws: int = DRAWS) -> Timeline:
    """A step carried out on the model of the network, under the scenario's policy; emulated.

    calibration: None for that of the virtual clock. draws: where links lose packets, of how many steps that differ in
    which messages are late the median is taken; 0: all are late by the mean. ControllerError, Stuck, BadCalibration.
    """
    return prepared(job, algorithm, calibration, draws).play()


def prepared(
    job: Job,
    algorithm: str,
    calibration: Calibration | None = None,
    draws: int = DRAWS,
    *,
    overflowing: bool = True,
) -> Prepared:
    """All that `predict` goes by. overflowing: whether queues cut windows. ControllerError, BadCalibration."""
    calibration = calibration or find_calibration(VIRTUAL)
    workload = job.workload
    software = calibration.software(job.scenario.transport, job.scale)
    network, seed = routed(job, algorithm, calibration), job.scenario.seed
    plan, lossy = workload.start.using(algorithm), job.topology.lossy
    copied = PROTOCOLS.find(software.protocol).copies
    chunk_bytes = software.slots.chunk_bytes if copied else math.inf
    most = MOST_DRAWN if network.begins else MOST_MESSAGES
    messages = message_count(plan, workload.itemsize, most, chunk_bytes)
    folded = messages > most or (lossy and not network.begins)
    if network.begins and messages:  # short steps meet few losses, and more of them cost little
        draws = max(draws, min(MORE * draws, most // messages))
    if folded or not overflowing:  # nobody knows what of a flow for many meets in queues
        network = replace(network, overflow=None, startup=0.0)
    return Prepared(
        plan,
        network,
        workload.itemsize,
        software,
        folded,
        draws=tuple(f"{seed}/{number}" for number in range(draws if lossy else 0)),
        dispatching=workload.dispatching,
        before=_before(job),
    )


def _before(job: Job) -> Before:
    """What ranks do before the step that is measured first, as far as their connections remember it."""
    ranks, warmup = len(job.hosts), job.scenario.warmup
    if ranks == 1 or not job.topology.lossy:
        return Before(steps=warmup)
    ring = ring_steps(Paths(job.topology, job.link_engine), job.hosts, worst_plane)
    message_bytes = calibration_bytes(ring, job.topology.mtu, job.workload.message_bytes)
    times = baseline_times(exact=True, lossy=True, warms_up=job.wiring.transport.warms_up)
    return Before(message_bytes, times * baseline_rounds(ranks), warmup)


def missing_share(job: Job, algorithm: str, calibration: Calibration) -> float | None:
    """How much longer a step would be if every hop held frames for their own time, as a share; None where all do.

    ControllerError, Stuck.
    """
    if job.link_engine == NETEM:
        return None
    held = job_of(job.scenario, job.scale, NETEM)
    longer_s, shorter_s = (predict(one, algorithm, calibration).step_time_s for one in (held, job))
    return longer_s / shorter_s - 1


def predict_tail_s(job: Job, algorithm: str, step_s: float, share: float = 0.99) -> float:
    """What so large a share of steps do not exceed, where losses make messages late; emulated, by the virtual clock.

    step_s: what `predict` says of it; no less is returned. What a step takes with lateness at its mean, and without,
    says how many late messages delay it on average; of more or fewer, as many as a Poisson distribution has, each
    delays it by as much, and so much more than by the mean the step takes. ControllerError, Stuck, BadCalibration.
    """
    calibration = find_calibration(VIRTUAL)
    paths = [path for parallel in routed(job, algorithm, calibration).parallel.values() for path in parallel]
    each_s = max((path.lossy.mended_s for path in paths if path.lossy), default=0.0)
    if not each_s:
        return step_s
    never = {name: replace(response, recovery=0.0) for name, response in calibration.losses.items()}
    none = replace(calibration, losses=never, late=False)
    least_s, mean_s = (played(prepared(job, algorithm, one, 0)).step_time_s for one in (none, calibration))
    late_s = least_s + poisson_quantile((mean_s - least_s) / each_s, share) * each_s
    return step_s + max(0.0, late_s - mean_s)


def routed(job: Job, algorithm: str, calibration: Calibration) -> Network:
    """The model's network, with the paths that the policy gives to connections between buildings. ControllerError."""
    training = job.workload.training
    network = network_of(job.topology, job.hosts, job.link_engine) if training is None else training.network
    capacities, queues = dict(network.capacities), dict(network.queues)
    parallel: dict[tuple[Ends, int], tuple[Path, ...]] = {}
    routes = Routes(job, calibration)
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
    granted = job.wiring.transport.granted
    if granted is not None:
        capacities |= {card: capacities[card] * granted for card in _receiving(network)}
    parallel = {key: tuple(_sharing(paths, capacities)) for key, paths in parallel.items()}
    wiring, packet = job.wiring, job.wiring.transport.packet(job.topology.mtu)
    headers = (
        1.0 if packet is None else packet.frame_bytes / packet.payload_bytes / frame_per_payload(job.topology)
    )
    overheads = {ends: (1 + wiring.overhead(*ends)) * headers - 1 for ends in network.paths}
    written = {ends: wiring.transport.written_above(wiring.distance(*ends)) for ends in network.paths}
    dealing = {
        ends: stripes
        for ends, _ in parallel
        if (stripes := wiring.transport.dealing(wiring.distance(*ends))) is not None
    }
    control = control_of(_model_of(job, wiring.congestion_control or USUAL))
    at_once = granted is None and not control.paces
    startup = control.startup if granted is None and packet is None else 0.0
    return replace(
        network,
        capacities=capacities,
        parallel=parallel,
        dealing=dealing,
        queues=queues,
        classes=classes,
        overheads=overheads,
        written_above=written,
        # what is granted is dealt out in turn, a few packets each
        sends_at_once=at_once,
        routed=True,
        startup=startup,
        first_pace=startup,
        overflow=(control.kept, control.growth) if at_once and packet is None else None,
        asks=granted is not None,
    )


def _receiving(network: Network) -> set[str]:
    """The cards that messages come in by."""
    return {path.parts[-1] for path in network.paths.values()}


def _sharing(paths: Sequence[Path], capacities: Mapping[str, float]) -> Iterator[Path]:
    """A pair's. Where each goes back by itself it throws away what it has under way: of a link they share, its part."""
    for path in paths:
        own = path.lossy
        if isinstance(own, LossyDatagrams) and own.recovery == "go_back_n":
            slowest = min(path.parts, key=capacities.__getitem__)
            alike = sum(slowest in other.parts for other in paths)
            yield replace(path, lossy=replace(own, path_rate=own.path_rate / alike))
        else:
            yield path


def _model_of(job: Job, control: str) -> str:
    """By which congestion control the model knows one of the kernel's."""
    return (job.scenario.transport.congestion_models or {}).get(control, control)


def class_part(link: str, entry: QueueClass) -> str:
    """The part that a class's queue in front of a link is."""
    return f"{link}, class {entry.name}"


class Routes:
    """Where the connections of a job go."""

    def __init__(self, job: Job, calibration: Calibration) -> None:
        self.job, self.calibration = job, calibration
        self.topology = job.topology
        self._paths = Paths(self.topology, job.link_engine)
        self.inside, self.nodes = self._paths.inside, self._paths.nodes
        self.per_bit = payload_per_bit(self.topology)
        self.hosts = {host.name: (rank, host) for rank, host in enumerate(job.hosts)}
        edges = make_plan(self.topology, "").edge_ports()
        self.view = View(self.topology, job.flows, seed=job.scenario.seed)
        choice = PolicyChoice(**job.scenario.policy.to_choice())
        computed = compute(choice, self.view, edges)
        self.classes = computed.classes
        self.switches = Switches(computed.rules, wires(self.topology, edges))
        self.edges = {edge.building: edge for edge in edges}
        self.wan = {
            (self.edges[here].dpid, self.edges[here].wan[there, link.plane]): (link, here, there)
            for link in self.topology.wan
            for here, there, _ in link.ways
        }
        self.links = {
            port: (f"{link.name} from {here}", link.a_to_b if here == link.a else link.b_to_a)
            for port, (link, here, _) in self.wan.items()
        }

    def paths(self, flows: Sequence[Flow]) -> Iterator[tuple[Ends, Flow, Path, dict[str, float]]]:
        """Of every flow between buildings: its ranks, its path, and what on it has a capacity and is no link."""
        for flow in flows:
            (source, one), (target, other) = self.hosts[flow.source], self.hosts[flow.destination]
            if one.building != other.building:
                yield (source, target), flow, *self._path((source, target), flow, one, other)

    def journey(self, flow: Flow, one: Host) -> Journey:
        """Of a flow from a host to another building, through the edges."""
        edge = self.edges[one.building]
        return self.switches.forward(self.view.packet(flow), (edge.dpid, edge.local))

    def _path(self, ends: Ends, flow: Flow, one: Host, other: Host) -> tuple[Path, dict[str, float]]:
        journey = self.journey(flow, one)
        up, down = self.inside(one, other)
        marked = zip(journey.hops, journey.dscps, strict=True)
        taken = [(self.links[hop], dscp) for hop, dscp in marked if hop in self.links]
        hops = [*up, *(Hop(name, [direction]) for (name, direction), _ in taken), *down]
        # acknowledgements go through links like those, in the opposite order
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
        self, ends: Ends, flow: Flow, losses: Sequence[float], step: Step
    ) -> Lossy | LossyDatagrams | None:
        """None where nothing is lost."""
        loss = 1 - math.prod(1 - share for share in losses)
        if not loss:
            return None
        wiring = self.job.wiring
        packet = wiring.transport.packet(self.topology.mtu)
        packet_bytes = packet_payload_bytes(self.topology) if packet is None else packet.payload_bytes
        path = step.round_trip_s(packet_bytes), 1 / step.beta_s, packet_bytes
        if (mends := wiring.transport.mends) is not None:
            most = control_of(USUAL).window_packets(loss, path[0]) if mends.reacts else math.inf
            return LossyDatagrams(
                mends.recovery,
                loss,
                *path,
                mends.data,
                mends.parity,
                most,
                self.calibration.late,
                mends.timeout_s,
                mends.blind_packets,
                mends.standing_bytes(path[0] / step.beta_s),
                self.calibration.mending_factor(mends.probed_as),
            )
        settings = wiring.settings(*ends, self._key(ends, flow))
        control = settings.congestion_control or wiring.congestion_control or USUAL
        model = _model_of(self.job, control)
        response = self.calibration.response(control, model)
        return Lossy(model, loss, *path, response)

    def _class_of(self, dscp: int) -> QueueClass:
        """Of a packet: the class that names its DSCP, or the one that names none."""
        rest = next(entry for entry in self.classes if not entry.dscps)
        return next((entry for entry in self.classes if dscp in entry.dscps), rest)

    def _own_byte_s(self, ends: Ends, flow: Flow, step: Step) -> float:
        """What a byte takes by what the connection's sockets allow."""
        wiring = self.job.wiring
        # what is dealt out is played segment by segment: their window needs no rate of its own
        ruled = wiring.transport.dealing(wiring.distance(*ends)) is None
        return wiring.slowest_byte_s(*ends, self._key(ends, flow), step, paced=True, ruled=ruled)

    def _key(self, ends: Ends, flow: Flow) -> ConnectionKey:
        return self.job.wiring.connection(*ends, TrafficClass(flow.dscp), flow.channel)
