"""What a model says that a step takes, of any scenario: nothing is built or sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from testbed.comm.collectives import pieces_for
from testbed.comm.collectives.baseline_ring import baseline_rounds, baseline_times
from testbed.comm.transport import PROTOCOLS
from testbed.net.paths import Ends
from testbed.net.paths.alpha_beta import calibration_bytes, ring_steps, worst_plane
from testbed.net.paths.hops import NETEM, PacketPath, Paths, packet_payload_bytes
from testbed.prediction.calibration import VIRTUAL, Calibration, find_calibration
from testbed.prediction.connection_state import Before
from testbed.prediction.message_list import message_count
from testbed.prediction.path_inputs import routed
from testbed.prediction.routes import Routes
from testbed.prediction.simulation import MOST_WARMUP
from testbed.prediction.simulation_cache import Prepared
from testbed.prediction.timeline import Timeline
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


def predict(
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
    packets, of all draws; of a step that has more, all bytes flow. ControllerError, Stuck, BadCalibration.
    """
    return prepared(job, algorithm, calibration, draws, packets=packets).play()


def prepared(
    job: Job,
    algorithm: str,
    calibration: Calibration | None = None,
    draws: int = DRAWS,
    *,
    packets: int = MOST_PACKETS,
) -> Prepared:
    """All that `predict` goes by. ControllerError, BadCalibration."""
    calibration = calibration or find_calibration(VIRTUAL)
    workload = job.workload
    software = calibration.software(job.scenario.transport, job.scale)
    routes = Routes(job, calibration) if packets else None
    network, seed = routed(job, algorithm, calibration, routes), job.scenario.seed
    plan, lossy = workload.start.using(algorithm), job.topology.lossy
    copied = PROTOCOLS.find(software.protocol).copies
    chunk_bytes = software.slots.chunk_bytes if copied else math.inf
    folded, before = False, _before(job) if packets or lossy else Before(steps=job.scenario.warmup)
    if routes is not None and (draws or not lossy):
        packet_paths, before, draws = _by_packet(routes, algorithm, chunk_bytes, before, draws, packets)
        network = replace(network, packets=packet_paths, seed=seed)
    if not network.packets:
        most = MOST_DRAWN if network.begins else MOST_MESSAGES
        messages = message_count(plan, workload.itemsize, most, chunk_bytes)
        folded = messages > most or (lossy and not network.begins)
        if network.begins and messages:  # short steps meet few losses, and more of them cost little
            draws = max(draws, min(MORE * draws, most // messages))
    return Prepared(
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
    routes: Routes, algorithm: str, chunk_bytes: float, before: Before, draws: int, most: int
) -> tuple[Mapping[tuple[Ends, int], tuple[PacketPath, ...]], Before, int]:
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
    plan = workload.start.using(algorithm)
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


def _before(job: Job) -> Before:
    """What ranks do before the step that is measured first, as far as their connections remember it."""
    ranks, warmup, trials = len(job.hosts), job.scenario.warmup, job.scenario.trials
    if ranks == 1:
        return Before(steps=warmup)
    ring = ring_steps(Paths(job.topology, job.link_engine), job.hosts, worst_plane)
    message_bytes = calibration_bytes(ring, job.topology.mtu, job.workload.message_bytes)
    times = baseline_times(exact=True, lossy=job.topology.lossy, warms_up=job.wiring.transport.warms_up)
    pieces = pieces_for("all_reduce", "ring", message_bytes * ranks, ranks)
    return Before(message_bytes, pieces, baseline_rounds(ranks), times, warmup, trials=trials)


def missing_share(job: Job, algorithm: str, calibration: Calibration) -> float | None:
    """How much longer a step would be if every hop held frames for their own time, as a share; None where all do.

    ControllerError, Stuck.
    """
    if job.link_engine == NETEM:
        return None
    held = job_of(job.scenario, job.scale, NETEM)
    longer_s, shorter_s = (predict(one, algorithm, calibration, packets=0).step_time_s for one in (held, job))
    return longer_s / shorter_s - 1


def predict_tail_s(job: Job, algorithm: str, step_s: float, calibration: Calibration) -> float | None:
    """What 99 of 100 steps do not exceed where links lose packets, of those that are drawn; emulated.

    step_s: what `predict` says of it; no less is returned. Drawn are as many steps as a tail takes, by the fluid, as a
    search has it: on some networks, of which a job has one, some one after the other. None where part of what losses
    do is taken by its mean, and says nothing of a tail: of collectives as one flow. ControllerError, Stuck.
    """
    step = prepared(job, algorithm, calibration, TAIL_NETWORKS, packets=0)
    if not step.draws_all:
        return None
    drawn_s = sorted(step.in_a_row(TAIL_NETWORKS, TAIL_STEPS))
    return max(step_s, drawn_s[math.ceil(TAIL * len(drawn_s)) - 1])
