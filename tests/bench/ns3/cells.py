"""What is tried on both instruments, in plain figures: lists of experiments, alike for ns-3 and for the testbed."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass, replace
from typing import Literal

from tests.bench.ns3.theory import mathis

CongestionControl = Literal["reno", "cubic"]

RATE_BPS, ACCESS_BPS = 100e6, 1e9
FRAME_BYTES, SEGMENT_BYTES = 1514, 1448  # Ethernet; payload of TCP with time stamps
FRAME_S, ACCESS_FRAME_S = FRAME_BYTES * 8 / RATE_BPS, FRAME_BYTES * 8 / ACCESS_BPS
LINE_BPS = RATE_BPS * SEGMENT_BYTES / FRAME_BYTES
PROBE_PAUSE_S = 0.01
QUIET_S = 0.5  # probes alone, before the first flow
LEAST_WARM_UP_S, LEAST_S = 4.0, 10.0
LOSSES = 8  # at least, by chance, in a run that has any
SEEDS = (1, 2, 3)
MANY_FRAMES = 2000  # of queue: a slow start loses as many, over which ns-3 takes an hour
RTTS_S = (0.004, 0.008, 0.012, 0.02, 0.032, 0.048, 0.064, 0.08)
SENDERS, MESSAGE_BYTES = 16, 256 * 1024


@dataclass(frozen=True)
class Flows:
    """TCP flows over one link: to the left of it each has its own host and `extra_delays_s` of its own.

    rate, queue and loss are the link's. Message bytes: 0 is as much as goes in `duration_s`; figures are of what comes
    after `warm_up_s`. `starts_s`: of each flow. slow_start_frames: the window at which slow start ends in ns-3; 0: when
    something is lost.
    """

    name: str
    congestion_control: CongestionControl
    delay_s: float
    queue_frames: int
    loss: float
    extra_delays_s: tuple[float, ...]
    starts_s: tuple[float, ...]
    message_bytes: int
    warm_up_s: float
    duration_s: float
    seed: int
    slow_start_frames: int = 0


@dataclass(frozen=True)
class Frames:
    """Datagrams of 1500 bytes over an idle link: all at once, or as a Poisson process that takes `load` of it."""

    name: str
    count: int
    load: float | None
    delay_s: float
    seed: int

    def times_ns(self) -> list[int]:
        """When each is sent."""
        if self.load is None:
            return [0] * self.count
        drawn, at_s, found = random.Random(self.seed), 0.0, []
        for _ in range(self.count):
            at_s += drawn.expovariate(self.load / FRAME_S)
            found.append(round(at_s * 1e9))
        return found


Experiment = Flows | Frames


def to_json(cell: Experiment) -> str:
    """For `from_json`."""
    data = asdict(cell)
    if not data.get("slow_start_frames"):
        data.pop("slow_start_frames", None)  # what is kept of ns-3 goes by this text
    return json.dumps(data)


def from_json(text: str) -> Experiment:
    """What `to_json` gave."""
    data = json.loads(text)
    if "count" in data:
        return Frames(**data)
    return Flows(
        **{**data, "extra_delays_s": tuple(data["extra_delays_s"]), "starts_s": tuple(data["starts_s"])}
    )


def product_frames(rtt_s: float) -> float:
    """Bandwidth-delay product in frames."""
    return RATE_BPS * rtt_s / 8 / FRAME_BYTES


def sawtooth_s(cell: Flows) -> float:
    """How long Reno takes from half of what fills link and queue to all of it: one round trip for each frame."""
    rtt_s = round_trip_s(cell)
    full = product_frames(rtt_s) + cell.queue_frames
    steps = range(math.floor(full / 2), math.ceil(full))
    return sum(max(rtt_s, window * FRAME_S) for window in steps)


def without_overrun(cell: Flows) -> Flows:
    """Where a slow start would overrun many frames of queue, it ends at the half of what there is room for.

    That is where Reno goes on after its first loss. Linux mends such an overrun in moments.
    """
    if cell.queue_frames < MANY_FRAMES:
        return cell
    full = product_frames(round_trip_s(cell)) + cell.queue_frames
    return replace(cell, slow_start_frames=math.floor(full / 2))


def round_trip_s(cell: Flows) -> float:
    """Of a full frame and its acknowledgement on the idle path of the first flow."""
    frames_s = FRAME_S + 2 * ACCESS_FRAME_S
    return 2 * (cell.delay_s + cell.extra_delays_s[0]) + frames_s * (1 + 66 / FRAME_BYTES)


def dumbbell(control: CongestionControl, rtt_s: float, products: float, loss: float, seed: int) -> Flows:
    """One flow. Where nothing is lost by chance what is measured is whole sawteeth of Reno."""
    queue = max(4, round(products * product_frames(rtt_s)))
    cell = Flows(
        f"{control} {rtt_s * 1e3:g} ms {products:g} BDP {loss:g}",
        control,
        rtt_s / 2,
        queue,
        loss,
        (0.0,),
        (random.Random(seed).uniform(0, 0.1),),
        0,
        LEAST_WARM_UP_S,
        LEAST_WARM_UP_S + LEAST_S,
        seed,
    )
    cell = without_overrun(cell)
    if loss:
        segments_per_s = min(LINE_BPS / 8 / SEGMENT_BYTES, mathis(loss, round_trip_s(cell)))
        return replace(cell, duration_s=LEAST_WARM_UP_S + max(LEAST_S, LOSSES / (loss * segments_per_s)))
    tooth_s = sawtooth_s(cell)
    warm_up_s = max(LEAST_WARM_UP_S, tooth_s)
    measured_s = math.ceil(LEAST_S / tooth_s) * tooth_s
    return replace(cell, warm_up_s=warm_up_s, duration_s=warm_up_s + measured_s)


def dumbbells(quick: bool) -> list[Flows]:
    """Without loss a run has no chance in it but its start, and one is made; with loss one for each seed."""
    return [
        dumbbell(control, rtt_s, products, loss, seed)
        for rtt_s in ((0.005, 0.02) if quick else (0.005, 0.02, 0.08))
        for products in ((0.25, 4.0) if quick else (0.25, 1.0, 4.0))
        for loss in ((0.0, 1e-3) if quick else (0.0, 1e-4, 1e-3))
        for control in ("reno", "cubic")
        for seed in (SEEDS if loss and not quick else SEEDS[:1])
    ]


def many_round_trips(quick: bool) -> list[Flows]:
    """Eight flows of one link, no two equally far."""
    found = []
    for control in ("reno", "cubic"):
        for seed in SEEDS[:1] if quick else SEEDS:
            drawn = random.Random(seed)
            nearest_s = RTTS_S[0] / 2
            found.append(
                Flows(
                    f"{control} eight round trips",
                    control,
                    nearest_s / 2,
                    round(product_frames(0.02)),
                    0.0,
                    tuple(rtt_s / 2 - nearest_s / 2 for rtt_s in RTTS_S),
                    tuple(drawn.uniform(0, 1) for _ in RTTS_S),
                    0,
                    10.0,
                    30.0 if quick else 50.0,
                    seed,
                )
            )
    return found


def incasts(quick: bool) -> list[Flows]:
    """Sixteen at once to one, each a quarter of a megabyte, over a queue of 64 frames."""
    found = []
    for seed in range(1, 4 if quick else 11):
        drawn = random.Random(seed)
        found.append(
            Flows(
                "incast",
                "cubic",
                0.0005,
                64,
                0.0,
                (0.0,) * SENDERS,
                tuple(drawn.uniform(0, 1e-4) for _ in range(SENDERS)),
                MESSAGE_BYTES,
                0.0,
                8.0,
                seed,
            )
        )
    return found


def queueing(quick: bool) -> list[Frames]:
    """M/D/1, the longer the fuller: the mean of a full queue takes long to settle."""
    counts = {0.3: 20_000, 0.5: 20_000, 0.8: 50_000, 0.9: 150_000}
    return [
        Frames(f"M/D/1 {load:g}", count // 10 if quick else count, load, 0.001, seed=5)
        for load, count in counts.items()
    ]


ONE = Frames("one frame", 1, None, 0.005, 1)
BURST = Frames("burst", 400, None, 0.005, 1)
