"""Calibration probes of the emulator, and the fit of the model's parameters to them.

A probe sends messages back and forth between two hosts, one after another. Loss-free probes of two sizes give the
software cost of a message and of a byte, on the clock where software takes time. Lossy probes exist per congestion
control and cover two distances: long messages show the window under losses, and short ones the delay of a lost packet.
Transports that recover losses themselves have a closed form; the probes give a correction factor for it per recovery
method.
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
# Size and number of messages. The delay of a lost packet is visible where messages are smaller than the windows under
# losses. BBR has no such windows: a loss takes 17 to 20 round trips with 64 kB, and 11 to 12 with 256 kB, 1 MB and 3
# MB.
SHORT, MIDDLING, LONG = ("64 kB", 100), ("1 MB", 50), ("16 MB", 5)
# Long messages lose so many packets that windows reach their steady state.
LOSSES = {SHORT: ("1 %",), MIDDLING: ("1 %",), LONG: ("0.05 %", "0.2 %")}
WINDOWS: list[float] = np.geomspace(0.4, 2.5, 12).tolist()
RECOVERIES: list[float] = np.linspace(0.0, 20.0, 26).tolist()
# refinement around the best candidates: factors; round trips
NEAR: list[float] = np.geomspace(0.9, 1.1, 9).tolist()
NEARER: list[float] = np.linspace(-0.4, 0.4, 9).tolist()
NEARBY: list[float] = np.geomspace(0.85, 1 / 0.85, 17).tolist()

# Loss rates by recovery method. Erasure codes retransmit only what parity cannot recover.
NEAR_AND_FAR = ((MIDDLING, "1 ms"), (MIDDLING, "20 ms"), (LONG, "20 ms"))
MENDED: Mapping[str, tuple[tuple[tuple[str, int], str, str], ...]] = {
    "go_back_n": tuple((*sent, "1 %") for sent in NEAR_AND_FAR),
    "selective_repeat": tuple((*sent, "1 %") for sent in NEAR_AND_FAR),
    "nack": ((MIDDLING, "1 ms", "0 %"), (LONG, "20 ms", "0 %"), *((*sent, "1 %") for sent in NEAR_AND_FAR)),
    "erasure": ((MIDDLING, "20 ms", "20 %"),),
    "xor": ((MIDDLING, "20 ms", "5 %"),),
    "rdma": ((LONG, "20 ms", "0 %"), *((*sent, "0.2 %") for sent in NEAR_AND_FAR)),
}
# methods that retransmit each lost packet once or count each go-back
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
    """The result of a probe: its variant, the median in real seconds, and whether the figure can be trusted.

    `mended` is the number of losses that the probe's transport is known to have recovered, by retransmission or by
    going back.
    """

    name: str
    step_time_s: float
    trusted: bool
    mended: int | None = None


@dataclass(frozen=True)
class Fit:
    """The fitted calibration, and the relative errors that the model has on the probes with it."""

    calibration: Calibration
    errors: Mapping[str, float]

    @property
    def median_error(self) -> float:
        """The median absolute error."""
        return statistics.median(map(abs, self.errors.values()))


def probe_scenario(cards: bool = True) -> Scenario:
    """Return the scenario with the probes as variants; `cards` is true if hosts can have RDMA devices."""
    variants: dict[str, dict[str, Any]] = {}

    def add(name: str, changes: Mapping[str, Any], delay: str, loss: str, size: str, count: int) -> None:
        full = f"{name}-{delay}-{loss}-{size}".lower()
        variants["".join(letter for letter in full if letter not in " %_")] = {
            **changes,
            "topology.wan.0.delay": delay,
            "topology.wan.0.loss": loss,
            "workload.exchange.size": size,
            "workload.exchange.messages": count,
        }

    for (size, count), delay in itertools.product((SHORT, MIDDLING, LONG), DELAYS):
        sent = [one for one in CONTROLS if (size, count) in (_delay_probe(one), LONG)]
        clean = [("reno", "0 %")] if "reno" in sent else []
        for control, loss in [*clean, *itertools.product(sent, LOSSES[size, count])]:
            add(control, {"transport.congestion_control": control}, delay, loss, size, count)
    for name, sent_so in MENDED.items():
        datagrams = {"transport.kind": "datagram", "transport.datagram.recovery": name}
        for (size, count), delay, loss in sent_so if cards or name != "rdma" else ():
            add(name, _CARDS if name == "rdma" else datagrams, delay, loss, size, count)
    return Scenario.model_validate({**_BASE, "variants": variants})


# the NIC is no faster than the link, so that the link's queue does not affect the measurement
_CARDS = {
    "transport.kind": "rdma",
    **{f"topology.buildings.{name}.nic.rate": "500 Mbit/s" for name in ("east", "west")},
}


def _delay_probe(control: str) -> tuple[str, int]:
    """Return the probe whose messages show the delay of a lost packet."""
    return SHORT if find_control(control).goes_by_losses else MIDDLING


def fit(
    scenario: Scenario, measured: Sequence[MeasuredProbe], scale: Scale, clock: str, made: Mapping[str, str]
) -> Fit:
    """Fit a calibration to measured probes.

    Args:
        scenario: The scenario whose variants are the probes.
        measured: The results of the probes.
        scale: The scale of the run.
        clock: The clock of the run.
        made: Date, kernel and link engine.

    Raises:
        ValueError: If too few of the figures can be trusted.
    """
    found = {probe.name: scale.emulated_s(probe.step_time_s) for probe in measured if probe.trusted}
    if len(found) < len(measured) / 2:
        raise ValueError(f"{len(found)} of {len(measured)} probes are to be trusted, expected half of them")
    calibration = Calibration({}, made=made)
    engine = calibration.link_engine
    counted = {probe.name: probe.mended for probe in measured if probe.mended is not None}
    probed = {
        name: (_with_counted_losses(job_of(scenario.variant(name), scale, engine), counted.get(name)), took_s)
        for name, took_s in found.items()
    }
    if clock == REAL:
        clean = [own for own in probed.values() if not _loss_of(own[0]) and _recovery_of(own[0]) is None]
        message_s, byte_s = _costs(clean)
        calibration = replace(calibration, message_s=message_s, byte_s=byte_s)
    for control in CONTROLS:
        own = [one for one in probed.values() if _loss_of(one[0]) and _control_of(one[0]) == control]
        if own:
            response = _response(control, own, calibration)
            calibration = replace(calibration, losses={**calibration.losses, control: response})
    for mended in MENDED:
        own = [one for one in probed.values() if _loss_of(one[0]) and _recovery_of(one[0]) == mended]
        if own:
            factor = _factor(mended, own, calibration)
            calibration = replace(calibration, mending={**calibration.mending, mended: factor})
    errors = {name: _step_s(job, calibration) / took_s - 1 for name, (job, took_s) in probed.items()}
    return Fit(calibration, errors)


def _with_counted_losses(job: Job, mended: int | None) -> Job:
    """Set the loss rate to that of the counted losses, if known: instead of 100 expected there may be 90 or 110."""
    if _recovery_of(job) not in ONE_BY_ONE or not mended:
        return job
    packet = job.wiring.transport.packet(job.topology.mtu)
    payload_bytes = packet_payload_bytes(job.topology) if packet is None else packet.payload_bytes
    size_bytes = job.scale.emulated_bytes(_exchange(job).size_bytes)
    packets = 2 * _exchange(job).messages * math.ceil(size_bytes / payload_bytes)
    lossy = job.scenario.changed({"topology.wan.0.loss": mended / packets}, job.scenario.name)
    return job_of(lossy, job.scale, job.link_engine)


def _loss_of(job: Job) -> float:
    return job.topology.wan[0].a_to_b.mean_loss


def _control_of(job: Job) -> str | None:
    return job.scenario.transport.congestion_control if _recovery_of(job) is None else None


def _recovery_of(job: Job) -> str | None:
    """Return the method by which a probe's transport recovers losses itself; None for TCP."""
    mends = job.wiring.transport.mends
    return None if mends is None else mends.probed_as


def _step_s(job: Job, calibration: Calibration) -> float:
    # messages follow each other, so the mean is exact and changes smoothly between candidates; but with several queue
    # pairs a message waits for the pair that loses most
    draws = DRAWS if _recovery_of(job) == "rdma" and _loss_of(job) else 0
    return predict_step(job, job.scenario.algorithms[0], calibration, draws=draws, packets=0).step_time_s


def _misfit(probed: Sequence[tuple[Job, float]], calibration: Calibration) -> float:
    """Return the sum of the squared log errors."""
    return sum(math.log(_step_s(job, calibration) / took_s) ** 2 for job, took_s in probed)


def _costs(clean: Sequence[tuple[Job, float]]) -> tuple[float, float]:
    """Return the costs per message and per byte at each end, by least squares of the relative error without costs."""
    free = Calibration({}, message_s=0.0, byte_s=0.0)
    rows, lacking = [], []
    for job, took_s in clean:
        ends = 4 * _exchange(job).messages  # both directions, at both ends
        size_bytes = job.scale.emulated_bytes(_exchange(job).size_bytes)
        rows.append([ends / took_s, ends * size_bytes / took_s])
        lacking.append((took_s - _step_s(job, free)) / took_s)
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} clean probes are to be trusted, expected at least 2")
    (message_s, byte_s), *_ = np.linalg.lstsq(np.array(rows), np.array(lacking), rcond=None)
    return max(0.0, float(message_s)), max(0.0, float(byte_s))


def _response(control: str, probed: Sequence[tuple[Job, float]], calibration: Calibration) -> LossResponse:
    """Fit a response by least squares of the log errors: its delay on short messages, its window on long ones."""
    late = [one for one in probed if _exchange(one[0]).messages == _delay_probe(control)[1]]
    long = [one for one in probed if _exchange(one[0]).messages == LONG[1]]

    def fit_least(own: Sequence[tuple[Job, float]], some: Iterable[LossResponse]) -> LossResponse:
        return min(some, key=lambda response: _misfit(own, replace(calibration, losses={control: response})))

    best = fit_least(late, [LossResponse(recovery=value) for value in RECOVERIES])
    best = fit_least(late, [replace(best, recovery=max(0.0, best.recovery + more)) for more in NEARER])
    if not find_control(control).goes_by_losses:
        return best
    best = fit_least(long, [replace(best, window=value) for value in WINDOWS])
    return fit_least(long, [replace(best, window=best.window * factor) for factor in NEAR])


def _factor(mended: str, probed: Sequence[tuple[Job, float]], calibration: Calibration) -> float:
    """Fit the correction factor of a recovery method's closed form, by least squares of the log errors."""

    def error(factor: float) -> float:
        return _misfit(probed, replace(calibration, mending={mended: factor}))

    best = min(FACTORS, key=error)
    return min((best * near for near in NEARBY), key=error)


def _exchange(job: Job) -> ExchangeSpec:
    exchange = job.scenario.workload.exchange
    assert exchange is not None
    return exchange
