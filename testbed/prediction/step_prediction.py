"""What a model says that a step takes, of any scenario: nothing is built or sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from testbed.comm.collectives import pieces_for
from testbed.comm.collectives.baseline_ring import baseline_rounds, baseline_times
from testbed.comm.transport import PROTOCOLS
from testbed.net.paths import Ends
from testbed.net.paths.alpha_beta import calibration_bytes, ring_steps, worst_plane
from testbed.net.paths.buffer_checks import ShortQueue, short_queues
from testbed.net.paths.hops import NETEM, PacketPath, Paths, packet_payload_bytes
from testbed.notebooks import html_table
from testbed.prediction.calibration import VIRTUAL, Calibration, find_calibration
from testbed.prediction.channels import Warmup
from testbed.prediction.collective_messages import message_count
from testbed.prediction.dry_run import check_plan_ends
from testbed.prediction.request_metrics import served_step, serving_figures
from testbed.prediction.routes import Routes, route_network
from testbed.prediction.simulation import MOST_WARMUP
from testbed.prediction.simulation_cache import PreparedStep
from testbed.prediction.timeline import Timeline
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.units import size_text, time_text
from testbed.workload.job.job import Job, job_of

DRAWS = 9
MORE = 4  # times as many
MOST_DRAWN = 1_000  # messages of a step of which several are played, several times each
MOST_MESSAGES = 10_000  # of a step that is played message by message: a second
# packets that are played, some ten microseconds each: of as many steps, of which one is told, as go into so many; of
# one step, with what is before it, at the most; and messages of such a step
USUAL_PACKETS, MOST_PACKETS, MOST_PACKETS_MESSAGES = 400_000, 600_000, 50_000
# steps of which the median is told where each is a little different
LEAST_TOLD, TOLD = 3, 15
TAIL = 0.99
TAIL_NETWORKS, TAIL_STEPS = 5, 20  # a hundred steps, of which the second slowest is told


def predict_step(
    job: Job,
    algorithm: str,
    calibration: Calibration | None = None,
    draws: int = DRAWS,
    *,
    packets: int = MOST_PACKETS,
) -> Timeline:
    """A step carried out on the model of the network, under the scenario's policy; emulated.

    calibration: None for that of the virtual clock. draws: where links lose packets, of how many steps that differ in
    which packets are lost, at the most, the one nearest to their mean is told; 0: messages are late by the mean.
    packets: TCP's that are played one by one at the most, of steps before the one that is told and, where links lose
    packets, of all draws; of a step that has more, all bytes flow. ControllerError, Deadlock, BadCalibration.
    """
    return prepare_step(job, algorithm, calibration, draws, packets=packets).play()


def prepare_step(
    job: Job,
    algorithm: str,
    calibration: Calibration | None = None,
    draws: int = DRAWS,
    *,
    packets: int = MOST_PACKETS,
) -> PreparedStep:
    """All that `predict_step` goes by. ControllerError, BadCalibration."""
    calibration = calibration or find_calibration(VIRTUAL)
    workload = job.workload
    software = calibration.software(job.scenario.transport, job.scale)
    routes = Routes(job, calibration) if packets else None
    network, seed = route_network(job, algorithm, calibration, routes), job.scenario.seed
    plan, lossy = workload.start.with_algorithm(algorithm), job.topology.lossy
    copied = PROTOCOLS.find(software.protocol).copies
    chunk_bytes = software.slots.chunk_bytes if copied else math.inf
    folded, before = False, _before(job) if packets or lossy else Warmup(steps=job.scenario.warmup)
    if routes is not None and (draws or not lossy):
        packet_paths, before, draws = _by_packet(routes, algorithm, chunk_bytes, before, draws, packets)
        network = replace(network, packets=packet_paths, seed=seed)
    if not network.packets:
        most = MOST_DRAWN if network.simulates_window else MOST_MESSAGES
        messages = message_count(plan, workload.itemsize, most, chunk_bytes)
        folded = messages > most or (lossy and not network.simulates_window)
        if network.simulates_window and messages:  # short steps meet few losses, and more of them cost little
            draws = max(draws, min(MORE * draws, most // messages))
    return PreparedStep(
        plan,
        network,
        workload.itemsize,
        software,
        folded,
        draws=tuple(f"{seed}/{number}" for number in range(draws if lossy else 0)),
        dispatching=workload.dispatching,
        before=before,
    )


def _by_packet(
    routes: Routes, algorithm: str, chunk_bytes: float, before: Warmup, draws: int, most: int
) -> tuple[Mapping[tuple[Ends, int], tuple[PacketPath, ...]], Warmup, int]:
    """What packets take, none where they are not played; what is played before a step; and how many draws of it.

    They are where TCP carries all, with windows that the model knows; where links lose packets only if all draws can.
    chunk_bytes: of messages' chunks. before: what a run does. most: packets.
    """
    job, workload, lossy = routes.job, routes.job.workload, routes.job.topology.lossy
    paths: Mapping[tuple[Ends, int], tuple[PacketPath, ...]] = {}
    nothing = paths, before, draws
    if workload.dispatching is not None or len(job.hosts) == 1:
        return nothing
    transport = job.wiring.transport
    if transport.mends is not None or transport.packet(job.topology.mtu) is not None:
        return nothing  # it is not TCP
    plan = workload.start.with_algorithm(algorithm)
    messages = message_count(plan, workload.itemsize, MOST_PACKETS_MESSAGES, chunk_bytes)
    sent_bytes = sum(sum(pairs.values()) for pairs in workload.pairs(algorithm).values())
    payload_bytes = packet_payload_bytes(job.topology)
    step = messages + sent_bytes / payload_bytes
    warm = len(job.hosts) * before.times * before.messages * before.message_bytes / payload_bytes
    each, least = int(most / draws) if lossy else most, min(before.steps, 1)
    if not messages or messages > MOST_PACKETS_MESSAGES or warm + (least + 1) * step > each:
        return nothing
    paths = routes.packets(job.flows_of(algorithm))
    paced = any(path.growth is None for own in paths.values() for path in own)
    told = LEAST_TOLD if paced and not lossy else 1
    if warm + (least + told) * step > each:
        return nothing
    usual = min(USUAL_PACKETS, most)
    room = int(((each if lossy else usual) - warm) / step)
    steps = min(before.steps, MOST_WARMUP, max(least, room - told))
    if lossy:
        draws = max(draws, min(MORE * draws, int(usual / (warm + (steps + 1) * step))))
    else:
        told = min(TOLD, max(told, room - steps, min(LEAST_TOLD, int((most - warm) / step) - steps)))
    return paths, before._replace(steps=steps, told=told), draws


def _before(job: Job) -> Warmup:
    """What ranks do before the step that is measured first, as far as their connections remember it."""
    ranks, warmup, trials = len(job.hosts), job.scenario.warmup, job.scenario.trials
    if ranks == 1:
        return Warmup(steps=warmup)
    ring = ring_steps(Paths(job.topology, job.link_engine), job.hosts, worst_plane)
    message_bytes = calibration_bytes(ring, job.topology.mtu, job.workload.message_bytes)
    times = baseline_times(exact=True, lossy=job.topology.lossy, warms_up=job.wiring.transport.warms_up)
    pieces = pieces_for("all_reduce", "ring", message_bytes * ranks, ranks)
    return Warmup(message_bytes, pieces, baseline_rounds(ranks), times, warmup, trials=trials)


def missing_share(job: Job, algorithm: str, calibration: Calibration) -> float | None:
    """How much longer a step would be if every hop held frames for their own time, as a share; None where all do.

    ControllerError, Deadlock.
    """
    if job.link_engine == NETEM:
        return None
    held = job_of(job.scenario, job.scale, NETEM)
    longer_s, shorter_s = (
        predict_step(one, algorithm, calibration, packets=0).step_time_s for one in (held, job)
    )
    return longer_s / shorter_s - 1


def predict_tail_s(job: Job, algorithm: str, step_s: float, calibration: Calibration) -> float | None:
    """What 99 of 100 steps do not exceed where links lose packets, of those that are drawn; emulated.

    step_s: by `predict_step`; no less is returned. Drawn are as many steps as a tail takes, by the fluid, as a
    search has it: on some networks, of which a job has one, some one after the other. None where part of what losses
    do is taken by its mean, and says nothing of a tail: of collectives as one flow. ControllerError, Deadlock.
    """
    step = prepare_step(job, algorithm, calibration, TAIL_NETWORKS, packets=0)
    if not step.draws_all:
        return None
    drawn_s = sorted(step.in_a_row(TAIL_NETWORKS, TAIL_STEPS))
    return max(step_s, drawn_s[math.ceil(TAIL * len(drawn_s)) - 1])


@dataclass(frozen=True)
class Prediction:
    """What the model says of one variant. step_time_s: seconds; wan_bytes: payload between buildings in a step; real.

    unmodelled: what the scenario asks for and the model leaves out, by name. short_queues: that may overflow, of which
    the model knows nothing. serving: of requests, as results' `Serving` has it. by_packets: whether it went packet by
    packet.
    """

    step_time_s: float
    wan_bytes: int
    unmodelled: tuple[str, ...] = ()
    short_queues: tuple[ShortQueue, ...] = ()
    serving: Mapping[str, Any] | None = None
    by_packets: bool = False

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        return Predictions({"": self})._repr_html_()


class Predictions(dict[str, Prediction]):
    """By name of the variant, or of the algorithm where there are none."""

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        first_s = next((one.step_time_s for one in self.values()), 0.0)
        rows = [
            [name, time_text(one.step_time_s), f"{first_s / one.step_time_s:.2f}x", size_text(one.wan_bytes)]
            for name, one in self.items()
        ]
        left_out = dict.fromkeys(what for one in self.values() for what in one.unmodelled)
        after = [f"Not in these figures, as the model does not know it: {what}." for what in left_out]
        return html_table(
            ("variant", "predicted step time", "against the first", "between buildings"), rows, (), after
        )


def predict_variants(
    scenario: Scenario, calibration: Calibration, scale: Scale, packets: int = MOST_PACKETS
) -> Predictions:
    """By name of the variant, or of the algorithm where there are none. scale: of the network that it is about.

    packets: that are played one by one at the most.
    ConfigError for a scenario that does not fit; ControllerError, Deadlock.
    """
    engine = calibration.link_engine
    common = None if scenario.variants is not None else job_of(scenario, scale, engine)
    found = Predictions()
    in_a_row = {"trials": scenario.steps_per_network}
    for name in scenario.variant_names:
        job = common or job_of(scenario.variant(name).model_copy(update=in_a_row), scale, engine)
        check_plan_ends(job.scenario, job.workload, job.scale)
        algorithm = scenario.named_algorithms[name] if common else job.scenario.algorithms[0]
        step = prepare_step(job, algorithm, calibration, packets=packets)
        timeline, by_packets = step.play(), bool(step.network.packets)
        step_s = scale.real_s(timeline.step_time_s)
        served = None
        if job.workload.serving:
            own = served_step(job.as_executed(timeline.carried), algorithm, timeline.spans)
            served = serving_figures(job.workload.serving.spec, [own])
        wan_bytes = round(scale.real_bytes(job.wan_bytes(algorithm)))
        short = () if by_packets else tuple(short_queues(job.scenario.topology.resolve()))
        found[name] = Prediction(step_s, wan_bytes, job.unmodelled, short, served, by_packets)
    return found
