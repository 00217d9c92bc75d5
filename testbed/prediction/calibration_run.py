"""Probes of the emulator, and what the model learns from them: software's cost, and what losses do to connections.

A probe is messages there and back between two hosts, one after the other. Clean ones of two sizes give what a message
and a byte cost where software costs what it costs. Lossy ones, per congestion control, go over two distances: long
messages by the window that losses leave, short ones by how late a lost packet comes. Transports that mend losses
themselves have a closed form for all of that; of each way to mend them the probes give one factor to what it says.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from testbed.net.paths.congestion import LossResponse
from testbed.net.paths.hops import packet_payload_bytes
from testbed.net.paths.losses import find_control
from testbed.prediction.calibration import REAL, Calibration
from testbed.prediction.step_prediction import DRAWS, predict_step
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.workload import ExchangeSpec
from testbed.workload.job.job import Job, job_of

CONTROLS = ("reno", "cubic", "bbr")
DELAYS = ("1 ms", "20 ms")
# Size of a message, how many of them. How late a lost packet comes shows where messages are within the windows that
# losses leave; BBR, which has none, takes 17 to 20 round trips for a loss with 64 kB, 11 to 12 with 256 kB, 1 MB, 3 MB.
SHORT, MIDDLING, LONG = ("64 kB", 100), ("1 MB", 50), ("16 MB", 5)
# Losses of long messages are so many that windows come to what is usual.
LOSSES = {SHORT: ("1 %",), MIDDLING: ("1 %",), LONG: ("0.05 %", "0.2 %")}
WINDOWS: list[float] = np.geomspace(0.4, 2.5, 12).tolist()
RECOVERIES: list[float] = np.linspace(0.0, 20.0, 26).tolist()
# around the best of those: factors; round trips
NEAR: list[float] = np.geomspace(0.9, 1.1, 9).tolist()
NEARER: list[float] = np.linspace(-0.4, 0.4, 9).tolist()
NEARBY: list[float] = np.geomspace(0.85, 1 / 0.85, 17).tolist()

# Of how losses are mended: what is lost. Erasure codes have to send again only where more is lost than parity mends.
NEAR_AND_FAR = ((MIDDLING, "1 ms"), (MIDDLING, "20 ms"), (LONG, "20 ms"))
MENDED: Mapping[str, tuple[tuple[tuple[str, int], str, str], ...]] = {
    "go_back_n": tuple((*sent, "1 %") for sent in NEAR_AND_FAR),
    "selective_repeat": tuple((*sent, "1 %") for sent in NEAR_AND_FAR),
    "nack": ((MIDDLING, "1 ms", "0 %"), (LONG, "20 ms", "0 %"), *((*sent, "1 %") for sent in NEAR_AND_FAR)),
    "erasure": ((MIDDLING, "20 ms", "20 %"),),
    "xor": ((MIDDLING, "20 ms", "5 %"),),
    "rdma": ((LONG, "20 ms", "0 %"), *((*sent, "0.2 %") for sent in NEAR_AND_FAR)),
}
# which of those send each lost packet again once, or tell of each loss that they went back for it
ONE_BY_ONE = ("selective_repeat", "nack", "rdma")
FACTORS: list[float] = np.geomspace(0.25, 4.0, 13).tolist()

_BASE: Mapping[str, Any] = {
    "name": "calibration",
    "topology": {
        "name": "calibration",
        "mtu": 9000,
        "buildings": {name: {"hosts": 1, "nic": {"rate": "2 Gbit/s"}} for name in ("east", "west")},
        "wan": [{"a": "east", "b": "west", "rate": "500 Mbit/s", "delay": "1 ms", "queue": "20 MB"}],
    },
    "workload": {"exchange": {"messages": 1, "size": "1 MB"}},
    "transport": {"congestion_control": "reno", "timeout": "120 s"},
    "policy": "shortest",
    "trials": 1,
    "warmup": 1,
    "seed": 1,
}


@dataclass(frozen=True)
class MeasuredProbe:
    """What a probe took: name of its variant, median real seconds, whether that is to be trusted.

    mended: how many losses its transport is known to have mended, by packets sent again or by having gone back.
    """

    name: str
    step_time_s: float
    trusted: bool
    mended: int | None = None


@dataclass(frozen=True)
class Fit:
    """What was learnt; the model's errors on the probes with it, as parts of what was measured."""

    calibration: Calibration
    errors: Mapping[str, float]

    @property
    def median_error(self) -> float:
        """Without signs."""
        return statistics.median(map(abs, self.errors.values()))


def probe_scenario(cards: bool = True) -> Scenario:
    """The scenario to run; its variants are the probes. cards: whether hosts can have some with verbs."""
    variants: dict[str, dict[str, Any]] = {}
    for (size, count), delay in itertools.product((SHORT, MIDDLING, LONG), DELAYS):
        sent = [one for one in CONTROLS if (size, count) in (_late(one), LONG)]
        clean = [("reno", "0 %")] if "reno" in sent else []
        for control, loss in [*clean, *itertools.product(sent, LOSSES[size, count])]:
            name = f"{control}-{delay}-{loss}-{size}".lower().replace(" ", "").replace("%", "")
            variants[name] = {
                "transport.congestion_control": control,
                "topology.wan.0.delay": delay,
                "topology.wan.0.loss": loss,
                "workload.exchange.size": size,
                "workload.exchange.messages": count,
            }
    for name, sent_so in MENDED.items():
        for (size, count), delay, loss in sent_so if cards or name != "rdma" else ():
            own = f"{name}-{delay}-{loss}-{size}".lower().replace(" ", "").replace("%", "").replace("_", "")
            variants[own] = {
                **(_CARDS if name == "rdma" else _datagrams(name)),
                "topology.wan.0.delay": delay,
                "topology.wan.0.loss": loss,
                "workload.exchange.size": size,
                "workload.exchange.messages": count,
            }
    return Scenario.model_validate({**_BASE, "variants": variants})


# no card is quicker than the link: nothing slows it down, and the link's queue would be what is measured
_CARDS = {
    "transport.kind": "rdma",
    **{f"topology.buildings.{name}.nic.rate": "500 Mbit/s" for name in ("east", "west")},
}


def _datagrams(recovery: str) -> dict[str, Any]:
    return {"transport.kind": "datagram", "transport.datagram.recovery": recovery}


def _late(control: str) -> tuple[str, int]:
    """The messages by which it is seen how late a lost packet comes."""
    return SHORT if find_control(control).goes_by_losses else MIDDLING


def fit(
    scenario: Scenario, measured: Sequence[MeasuredProbe], scale: Scale, clock: str, made: Mapping[str, str]
) -> Fit:
    """What the probes' run says.

    Args:
        scenario: Its variants are the probes.
        measured: What they took.
        scale: That of their run.
        clock: Whose calibration it is.
        made: With what, when.

    Raises:
        ValueError: Where too few of the figures are to be trusted.
    """
    found = {probe.name: scale.emulated_s(probe.step_time_s) for probe in measured if probe.trusted}
    if len(found) < len(measured) / 2:
        raise ValueError(f"{len(found)} of {len(measured)} probes are to be trusted, expected half of them")
    calibration = Calibration({}, made=made)
    engine = calibration.link_engine
    counted = {probe.name: probe.mended for probe in measured if probe.mended is not None}
    probed = {
        name: (_as_lost(job_of(scenario.variant(name), scale, engine), counted.get(name)), took_s)
        for name, took_s in found.items()
    }
    if clock == REAL:
        clean = [own for own in probed.values() if not _loss(own[0]) and _mended(own[0]) is None]
        message_s, byte_s = _costs(clean)
        calibration = replace(calibration, message_s=message_s, byte_s=byte_s)
    for control in CONTROLS:
        own = [one for one in probed.values() if _loss(one[0]) and _control(one[0]) == control]
        if own:
            response = _response(control, own, calibration)
            calibration = replace(calibration, losses={**calibration.losses, control: response})
    for mended in MENDED:
        own = [one for one in probed.values() if _loss(one[0]) and _mended(one[0]) == mended]
        if own:
            factor = _factor(mended, own, calibration)
            calibration = replace(calibration, mending={**calibration.mending, mended: factor})
    errors = {name: _step_s(job, calibration) / took_s - 1 for name, (job, took_s) in probed.items()}
    return Fit(calibration, errors)


def _as_lost(job: Job, mended: int | None) -> Job:
    """With as many losses as there were, where it is told: a hundred that are to be expected are 90 or 110."""
    if _mended(job) not in ONE_BY_ONE or not mended:
        return job
    packet = job.wiring.transport.packet(job.topology.mtu)
    payload_bytes = packet_payload_bytes(job.topology) if packet is None else packet.payload_bytes
    size_bytes = job.scale.emulated_bytes(_exchange(job).size_bytes)
    packets = 2 * _exchange(job).messages * math.ceil(size_bytes / payload_bytes)
    lossy = job.scenario.changed({"topology.wan.0.loss": mended / packets}, job.scenario.name)
    return job_of(lossy, job.scale, job.link_engine)


def _loss(job: Job) -> float:
    return job.topology.wan[0].a_to_b.mean_loss


def _control(job: Job) -> str | None:
    return job.scenario.transport.congestion_control if _mended(job) is None else None


def _mended(job: Job) -> str | None:
    """How its transport mends losses itself; None of TCP."""
    mends = job.wiring.transport.mends
    return None if mends is None else mends.probed_as


def _step_s(job: Job, calibration: Calibration) -> float:
    # messages one after the other: the mean is exact, and does not jump between values that are tried; but of several
    # queue pairs a message waits for the one that loses most
    draws = DRAWS if _mended(job) == "rdma" and _loss(job) else 0
    return predict_step(job, job.scenario.algorithms[0], calibration, draws=draws, packets=0).step_time_s


def _costs(clean: Sequence[tuple[Job, float]]) -> tuple[float, float]:
    """Of a message and of a byte at each end: least squares of what the model without any lacks, each as its part."""
    free = Calibration({}, message_s=0.0, byte_s=0.0)
    rows, lacking = [], []
    for job, took_s in clean:
        ends = 4 * _exchange(job).messages  # there and back, at both ends
        size_bytes = job.scale.emulated_bytes(_exchange(job).size_bytes)
        rows.append([ends / took_s, ends * size_bytes / took_s])
        lacking.append((took_s - _step_s(job, free)) / took_s)
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} clean probes are to be trusted, expected at least 2")
    (message_s, byte_s), *_ = np.linalg.lstsq(np.array(rows), np.array(lacking), rcond=None)
    return max(0.0, float(message_s)), max(0.0, float(byte_s))


def _response(control: str, probed: Sequence[tuple[Job, float]], calibration: Calibration) -> LossResponse:
    """What makes the squares of the model's errors, as logarithms, least: of shorter messages, then of long ones."""
    late = [one for one in probed if _exchange(one[0]).messages == _late(control)[1]]
    long = [one for one in probed if _exchange(one[0]).messages == LONG[1]]

    def least(own: Sequence[tuple[Job, float]], some: Iterable[LossResponse]) -> LossResponse:
        def wrong(response: LossResponse) -> float:
            tried = replace(calibration, losses={control: response})
            return sum(math.log(_step_s(job, tried) / took_s) ** 2 for job, took_s in own)

        return min(some, key=wrong)

    best = least(late, [LossResponse(recovery=value) for value in RECOVERIES])
    best = least(late, [replace(best, recovery=max(0.0, best.recovery + more)) for more in NEARER])
    if not find_control(control).goes_by_losses:
        return best
    best = least(long, [replace(best, window=value) for value in WINDOWS])
    return least(long, [replace(best, window=best.window * factor) for factor in NEAR])


def _factor(mended: str, probed: Sequence[tuple[Job, float]], calibration: Calibration) -> float:
    """To what mending takes by its closed form; the squares as above."""

    def wrong(factor: float) -> float:
        tried = replace(calibration, mending={mended: factor})
        return sum(math.log(_step_s(job, tried) / took_s) ** 2 for job, took_s in probed)

    best = min(FACTORS, key=wrong)
    return min((best * near for near in NEARBY), key=wrong)


def _exchange(job: Job) -> ExchangeSpec:
    exchange = job.scenario.workload.exchange
    assert exchange is not None
    return exchange
