"""Prediction of a scenario's step time from the model, without building a network or sending anything."""

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
from testbed.prediction.plan_simulation import MAX_WARMUP_STEPS
from testbed.prediction.request_metrics import served_step, serving_figures
from testbed.prediction.routes import Routes, route_network
from testbed.prediction.simulation import PreparedStep
from testbed.prediction.timeline import Timeline
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.units import size_text, time_text
from testbed.workload.job.job import Job, job_of

DRAWS = 9
MORE = 4  # factor by which the number of draws may grow
MAX_DRAWN_MESSAGES = 1_000  # messages per step up to which several steps are simulated, each several times
MAX_MESSAGES = 10_000  # messages per step up to which it is simulated message by message, in about a second
# A simulated packet takes about ten microseconds. Steps are added up to the usual number of packets; one step with its
# warm-up may have the maximum. The last limit is the number of messages in a step that is simulated packet by packet.
USUAL_PACKETS, MAX_PACKETS, MOST_PACKETS_MESSAGES = 400_000, 600_000, 50_000
# number of steps whose median is returned if they differ slightly
MIN_MEDIAN_STEPS, MAX_MEDIAN_STEPS = 3, 15
TAIL = 0.99
TAIL_NETWORKS, TAIL_STEPS = 5, 20  # a hundred steps; the second slowest is returned


def predict_step(
    job: Job,
    algorithm: str,
    calibration: Calibration | None = None,
    draws: int = DRAWS,
    *,
    packets: int = MAX_PACKETS,
) -> Timeline:
    """Simulate a step on the model of the network under the scenario's policy; times are emulated.

    Args:
        job: The job to predict.
        algorithm: Algorithm of collectives that do not name one.
        calibration: Calibration of the emulator; None for that of the virtual clock.
        draws: Maximum number of steps with different losses if links lose packets; the step closest to their mean is
            returned. With 0, lost messages are late by the mean delay.
        packets: Maximum number of TCP packets to simulate individually, over the warm-up steps, the returned step and,
            if links lose packets, all draws. A larger step is simulated as a fluid.

    Raises:
        ControllerError: The policy cannot route the job.
        Deadlock: The plan never completes.
        BadCalibration: If the calibration file cannot be read.
    """
    return prepare_step(job, algorithm, calibration, draws, packets=packets).play()


def prepare_step(
    job: Job,
    algorithm: str,
    calibration: Calibration | None = None,
    draws: int = DRAWS,
    *,
    packets: int = MAX_PACKETS,
) -> PreparedStep:
    """Collect all inputs of `predict_step`; raise ControllerError or BadCalibration on failure."""
    calibration = calibration or find_calibration(VIRTUAL)
    workload = job.workload
    software = calibration.software(job.scenario.transport, job.scale)
    routes = Routes(job, calibration) if packets else None
    network, seed = route_network(job, algorithm, calibration, routes), job.scenario.seed
    plan, lossy = workload.start.with_algorithm(algorithm), job.topology.lossy
    copied = PROTOCOLS.find(software.protocol).copies
    chunk_bytes = software.slots.chunk_bytes if copied else math.inf
    folded, before = False, _warmup(job) if packets or lossy else Warmup(steps=job.scenario.warmup)
    if routes is not None and (draws or not lossy):
        packet_paths, before, draws = _by_packet(routes, algorithm, chunk_bytes, before, draws, packets)
        network = replace(network, packets=packet_paths, seed=seed)
    if not network.packets:
        most = MAX_DRAWN_MESSAGES if network.simulates_window else MAX_MESSAGES
        messages = message_count(plan, workload.itemsize, most, chunk_bytes)
        folded = messages > most or (lossy and not network.simulates_window)
        if network.simulates_window and messages:  # short steps have few losses, and more draws cost little
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
    """Return the packet paths, the warm-up to simulate and the number of draws.

    There are packet paths only if TCP carries all traffic with windows that the model knows, and on lossy links only if
    all draws fit into the packet limit. `chunk_bytes` is the chunk size of messages, `before` the warm-up of a real
    run, and `most` the packet limit.
    """
    job, workload, lossy = routes.job, routes.job.workload, routes.job.topology.lossy
    paths: Mapping[tuple[Ends, int], tuple[PacketPath, ...]] = {}
    nothing = paths, before, draws
    if workload.dispatching is not None or len(job.hosts) == 1:
        return nothing
    transport = job.wiring.transport
    if transport.mends is not None or transport.packet(job.topology.mtu) is not None:
        return nothing  # the transport is not TCP
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
    most_steps = MIN_MEDIAN_STEPS if paced and not lossy else 1
    if warm + (least + most_steps) * step > each:
        return nothing
    usual = min(USUAL_PACKETS, most)
    room = int(((each if lossy else usual) - warm) / step)
    steps = min(before.steps, MAX_WARMUP_STEPS, max(least, room - most_steps))
    if lossy:
        draws = max(draws, min(MORE * draws, int(usual / (warm + (steps + 1) * step))))
    else:
        most_steps = min(
            MAX_MEDIAN_STEPS,
            max(most_steps, room - steps, min(MIN_MEDIAN_STEPS, int((most - warm) / step) - steps)),
        )
    return paths, before._replace(steps=steps, most_steps=most_steps), draws


def _warmup(job: Job) -> Warmup:
    """Return the ranks' traffic before the first measured step, as far as it affects the state of connections."""
    ranks, warmup, trials = len(job.hosts), job.scenario.warmup, job.scenario.trials
    if ranks == 1:
        return Warmup(steps=warmup)
    ring = ring_steps(Paths(job.topology, job.link_engine), job.hosts, worst_plane)
    message_bytes = calibration_bytes(ring, job.topology.mtu, job.workload.message_bytes)
    times = baseline_times(exact=True, lossy=job.topology.lossy, warms_up=job.wiring.transport.warms_up)
    pieces = pieces_for("all_reduce", "ring", message_bytes * ranks, ranks)
    return Warmup(message_bytes, pieces, baseline_rounds(ranks), times, warmup, trials=trials)


def missing_share(job: Job, algorithm: str, calibration: Calibration) -> float | None:
    """Return the share by which a step would be longer if every hop delayed frames by their serialisation time.

    The result is None if the link engine already does so at every hop. ControllerError or Deadlock is raised on
    failure.
    """
    if job.link_engine == NETEM:
        return None
    held = job_of(job.scenario, job.scale, NETEM)
    longer_s, shorter_s = (
        predict_step(one, algorithm, calibration, packets=0).step_time_s for one in (held, job)
    )
    return longer_s / shorter_s - 1


def predict_tail_s(job: Job, algorithm: str, step_s: float, calibration: Calibration) -> float | None:
    """Predict the 99th percentile of step times on lossy links, in emulated seconds.

    This simulates consecutive steps with the fluid model, as a search does, but on several networks, although a real
    job runs on one.

    Args:
        job: The job to predict.
        algorithm: Algorithm of collectives that do not name one.
        step_s: Result of `predict_step`, which is a lower bound on the result.
        calibration: Calibration of the emulator.

    Returns:
        The percentile, or None if some losses enter only as a mean (folded collectives), which says nothing about a
        tail.

    Raises:
        ControllerError: The policy cannot route the job.
        Deadlock: The plan never completes.
    """
    step = prepare_step(job, algorithm, calibration, TAIL_NETWORKS, packets=0)
    if not step.draws_all:
        return None
    drawn_s = sorted(step.step_times(TAIL_NETWORKS, TAIL_STEPS))
    return max(step_s, drawn_s[math.ceil(TAIL * len(drawn_s)) - 1])


@dataclass(frozen=True)
class Prediction:
    """The model's prediction for one variant.

    Attributes:
        step_time_s: Step time in real seconds.
        wan_bytes: Payload between buildings per step, real bytes.
        unmodelled: Names of scenario features that the model ignores.
        short_queues: Queues that may overflow, which the fluid model does not take into account.
        serving: Request figures, with the fields of the results' `Serving`.
        by_packets: Whether the step was simulated packet by packet.
    """

    step_time_s: float
    wan_bytes: int
    unmodelled: tuple[str, ...] = ()
    short_queues: tuple[ShortQueue, ...] = ()
    serving: Mapping[str, Any] | None = None
    by_packets: bool = False

    def _repr_html_(self) -> str:
        """Return the HTML table that notebooks show."""
        return Predictions({"": self})._repr_html_()


class Predictions(dict[str, Prediction]):
    """Predictions by variant, or by algorithm if there are no variants."""

    def _repr_html_(self) -> str:
        """Return the HTML table that notebooks show."""
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
    scenario: Scenario, calibration: Calibration, scale: Scale, packets: int = MAX_PACKETS
) -> Predictions:
    """Predict every variant of a scenario, or every algorithm if there are no variants.

    Args:
        scenario: The scenario, which may have variants.
        calibration: Calibration of the emulator.
        scale: Scale of the emulated network.
        packets: Maximum number of packets to simulate individually.

    Raises:
        ConfigError: If the scenario is inconsistent.
        ControllerError: The policy cannot route the job.
        Deadlock: The plan never completes.
    """
    engine = calibration.link_engine
    common = None if scenario.variants is not None else job_of(scenario, scale, engine)
    found = Predictions()
    trials = {"trials": scenario.steps_per_network}
    for name in scenario.variant_names:
        job = common or job_of(scenario.variant(name).model_copy(update=trials), scale, engine)
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
