"""A job's network with the paths that its policy gives to connections, as the model plays steps on it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from testbed.caches import IdentityCache
from testbed.net.controller import PolicyChoice
from testbed.net.paths import Ends, Network, Path, network_of
from testbed.net.paths.alpha_beta import frame_per_payload
from testbed.net.paths.datagram_recovery import LossyDatagrams
from testbed.net.paths.losses import USUAL, find_control
from testbed.prediction.calibration import Calibration
from testbed.prediction.routes import Routes, class_part, model_of
from testbed.spec.keywords import PLANNED
from testbed.workload.job.job import Job

_known: IdentityCache[Network] = IdentityCache(64)  # a search comes back to a few


def routed(job: Job, algorithm: str, calibration: Calibration, routes: Routes | None = None) -> Network:
    """The model's network, with the paths that the policy gives to connections between buildings. ControllerError.

    The same one for jobs of which nothing differs that it goes by. routes: where connections go, if that is known.
    """
    things = job.topology, *job.hosts, job.scenario.transport, calibration
    return _known.of(
        things, lambda: _routed(routes or Routes(job, calibration), algorithm), _key(job, algorithm)
    )


def _key(job: Job, algorithm: str) -> Hashable:
    choice, spec = job.scenario.policy.to_choice(), job.scenario.transport
    sized = PolicyChoice(**choice).goes_by_sizes or any(own.pacing == PLANNED for own in spec.sockets)
    declared = job.scenario.algorithms[0]
    pairs = [job.workload.pairs(one) for one in dict.fromkeys((declared, algorithm))]
    # which connections there are follows from who sends to whom
    flows = tuple(
        (dscp, frozenset(own.items() if sized else own)) for several in pairs for dscp, own in several.items()
    )
    return repr(choice), flows, job.scale, job.scenario.seed, job.link_engine


def _routed(routes: Routes, algorithm: str) -> Network:
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
    control = find_control(model_of(job, wiring.congestion_control or USUAL))
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
        first_pace=startup,
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
