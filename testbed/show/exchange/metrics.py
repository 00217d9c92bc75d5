"""A run's figures as metrics, independent of the output format: names, units, labels, values.

Names correspond in all formats: `testbed_step_time_seconds` for Prometheus is `testbed.step_time` with unit `s` for
OpenTelemetry. All units are real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from testbed.measure.fidelity.verdict import ORDER
from testbed.measure.results.link_summary import LinkUse, PlaneBalance
from testbed.measure.results.records import LinkReading
from testbed.measure.results.result import Connections, Result, TimeSplit, Variant
from testbed.measure.results.serving_result import Latencies, Serving

Kind = Literal["gauge", "counter", "summary"]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Point:
    """One value. time_s: seconds since the run's origin; None for a figure of the whole run.

    In a summary, value is the sum of `count` observations, and quantiles have share and value.
    """

    labels: Labels
    value: float
    time_s: float | None = None
    count: int = 0
    quantiles: tuple[tuple[float, float], ...] = ()


@dataclass
class Metric:
    """Values of one kind. unit: Prometheus' suffix of the name, "" for a count or a state."""

    name: str
    unit: str
    kind: Kind
    help: str
    points: list[Point] = field(default_factory=list)

    @property
    def name_with_unit(self) -> str:
        """The Prometheus name without prefix: `step_time_seconds`."""
        return f"{self.name}_{self.unit}" if self.unit else self.name


class Metrics:
    """Metrics by name, in order of first use."""

    def __init__(self) -> None:
        self._all: dict[str, Metric] = {}

    def add(self, name: str, unit: str, help_: str, points: Iterable[Point], kind: Kind = "gauge") -> None:
        """Add points to the metric `name`; the other arguments apply if it is new."""
        found = list(points)
        if found:
            self._all.setdefault(name, Metric(name, unit, kind, help_)).points.extend(found)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._all.values())


def run_metrics(result: Result, readings: Sequence[LinkReading] = ()) -> list[Metric]:
    """Return the metrics of a run and its variants; with `readings`, also the counters of every WAN direction."""
    metrics = Metrics()
    run = {"run": result.folder.name, "scenario": result.scenario}
    told = {**run, "clock": result.clock, "status": result.status}
    metrics.add("run_info", "", "The run: its clock, and its worst verdict.", [Point(told, 1.0)])
    for variant in result.variants:
        _add_variant(metrics, variant, {**run, "variant": variant.name})
    for reading in readings:
        labels = {**run, **_direction(reading.link.source, reading.link.target, reading.link.plane)}
        for name, unit, help_, value, kind in _link_counters(reading):
            metrics.add(name, unit, help_, [Point(labels, value, reading.time_s)], kind)
    return list(metrics)


def _add_variant(metrics: Metrics, variant: Variant, labels: dict[str, str]) -> None:
    described = {"algorithm": variant.algorithm, "policy": variant.policy, "limited_by": variant.limited_by}
    metrics.add(
        "variant_info", "", "What was compared, and what limits it.", [Point({**labels, **described}, 1.0)]
    )
    metrics.add("ranks", "", "Ranks of the job.", [Point(labels, variant.ranks)])
    times = variant.step_time_s
    shares = ((0.0, times.min), (0.5, times.median), (0.95, times.p95), (1.0, times.max))
    steps = Point(labels, sum(times.samples), count=times.n, quantiles=shares)
    metrics.add("step_time", "seconds", "Measured steps.", [steps], "summary")
    trials = [Point({**labels, "trial": str(trial)}, value) for trial, value in enumerate(times.samples)]
    metrics.add("trial_step_time", "seconds", "A measured step, by its trial.", trials)
    _add_work(metrics, variant, labels)
    if variant.predicted is not None:
        predicted = [Point(labels, variant.predicted.step_time_s)]
        metrics.add("predicted_step_time", "seconds", "A step by the model.", predicted)
    metrics.add(
        "compute", "seconds", "Computing of the busiest rank in a step.", [Point(labels, variant.compute_s)]
    )
    exposed = [Point(labels, variant.exposed_comm_s)]
    metrics.add("exposed_communication", "seconds", "A step's time less computing.", exposed)
    payload = [
        Point({**labels, "by": "plan"}, variant.wan_bytes.expected),
        Point({**labels, "by": "ranks"}, variant.wan_bytes.observed),
    ]
    metrics.add(
        "wan_payload", "bytes", "Payload over the WAN in a step: by the plan, and as ranks sent it.", payload
    )
    if variant.training is not None:
        metrics.add(
            "step_part",
            "seconds",
            "Where a step's time went, mean over ranks.",
            _parts(variant.training.measured, labels),
        )
    for link in variant.wan_links:
        _add_link(metrics, link, labels)
    help_ = "Packets that the queue of a port inside a building dropped over all steps."
    for port in variant.port_drops:
        metrics.add(
            "port_step_drops", "", help_, [Point({**labels, "place": port.place}, port.drops)], "counter"
        )
    for balance in variant.plane_balance:
        _add_balance(metrics, balance, labels)
    for connections in variant.connections:
        _add_connections(metrics, connections, labels)
    states = [
        Point({**labels, "status": status}, float(status == variant.verdict.status)) for status in ORDER
    ]
    metrics.add("verdict", "", "1 for the verdict on the variant's figures.", states)
    held = [
        Point({**labels, "invariant": entry.name}, float(entry.ok))
        for entry in variant.verdict.invariants
        if entry.ok is not None
    ]
    metrics.add("invariant_held", "", "Whether what must hold for the figures to mean something did.", held)
    if variant.serving is not None:
        _add_serving(metrics, variant.serving, labels)
    if variant.replication is not None:
        share = [Point(labels, variant.replication.effective)]
        metrics.add(
            "effective_time", "ratio", "Of the time, what steps would have taken with nobody lost.", share
        )


def _add_work(metrics: Metrics, variant: Variant, labels: Labels) -> None:
    done = variant.done
    figures = [
        ("committed_steps", "", "Measured steps that were committed, in whole ones.", done.steps),
        ("elapsed", "seconds", "In which they were done, stalls included.", done.elapsed_s),
    ]
    if done.tokens is not None:
        figures.append(
            ("tokens", "per_second", "Trained or decoded, over the elapsed time.", done.per_second)
        )
    if variant.rates is not None:
        help_ = "Trained by all accelerators together, over the elapsed time."
        figures.append(("sequences", "per_second", help_, variant.rates.sequences_per_s))
        help_ = "The model's own arithmetic over the elapsed time, of the accelerators' peak."
        figures.append(("model_flops_utilisation", "ratio", help_, variant.rates.mfu))
    for name, unit, help_, value in figures:
        metrics.add(name, unit, help_, [Point(labels, value)])


def _parts(split: TimeSplit, labels: Labels) -> list[Point]:
    found = [("compute", "rank", split.compute_s), ("bubble", "rank", split.bubble_s)]
    found += [(f"exposed {entry.kind}", entry.tier, entry.seconds) for entry in split.exposed]
    return [Point({**labels, "part": part, "tier": tier}, seconds) for part, tier, seconds in found]


def _direction(source: str, target: str, plane: int) -> dict[str, str]:
    return {"source": source, "target": target, "plane": str(plane)}


def _add_link(metrics: Metrics, link: LinkUse, labels: Labels) -> None:
    ends = (link.a, link.b) if link.direction == "a_to_b" else (link.b, link.a)
    own = {**labels, **_direction(*ends, link.plane)}
    for name, unit, help_, value in (
        ("link_rate", "bytes_per_second", "Of one direction of a WAN link.", link.rate_bps / 8),
        ("link_step", "bytes", "On the wire in a step, headers included.", link.bytes),
        ("link_utilisation", "ratio", "Of the rate, over a step.", link.utilisation),
        ("link_queue_peak", "bytes", "The longest queue that a reading found.", link.queue_peak_bytes),
    ):
        metrics.add(name, unit, help_, [Point(own, value)])
    for name, help_, count in (
        ("link_step_drops", "Packets dropped by the queue over all steps.", link.drops),
        ("link_step_losses", "Packets lost at random over all steps.", link.losses),
        ("link_step_cut_losses", "Packets lost over all steps as the link was cut.", link.cut_losses),
        ("link_step_marks", "Packets marked by ECN over all steps.", link.marks),
    ):
        metrics.add(name, "", help_, [Point(own, count)], "counter")


def _link_counters(reading: LinkReading) -> list[tuple[str, str, str, float, Kind]]:
    return [
        (
            "link_sent",
            "bytes",
            "On the wire since the run began, headers included.",
            reading.bytes,
            "counter",
        ),
        ("link_packets", "", "Since the run began.", reading.packets, "counter"),
        ("link_drops", "", "Packets dropped by the queue since the run began.", reading.drops, "counter"),
        ("link_losses", "", "Packets lost at random since the run began.", reading.losses, "counter"),
        (
            "link_cut_losses",
            "",
            "Packets lost since the run began as the link was cut.",
            reading.cut_losses,
            "counter",
        ),
        ("link_marks", "", "Packets marked by ECN since the run began.", reading.marks, "counter"),
        ("link_queue", "bytes", "That waited then.", reading.queue_bytes, "gauge"),
    ]


def _add_balance(metrics: Metrics, balance: PlaneBalance, labels: Labels) -> None:
    own = {**labels, "source": balance.source, "target": balance.target}
    help_ = "How evenly planes between two buildings were used: Jain's index."
    metrics.add("plane_balance", "ratio", help_, [Point(own, balance.jain_index)])


def _add_connections(metrics: Metrics, found: Connections, labels: Labels) -> None:
    own = {**labels, "source": found.source, "target": found.target}
    metrics.add("connections", "", "From one building to another.", [Point(own, found.connections)])
    help_ = "Segments sent again over all steps."
    metrics.add("connection_retransmits", "", help_, [Point(own, found.retransmits)], "counter")
    if found.rtt_s is not None:
        readings = [
            Point({**own, "reading": name}, value)
            for name, value in (
                ("min", found.rtt_s.min),
                ("median", found.rtt_s.median),
                ("max", found.rtt_s.max),
            )
        ]
        metrics.add("connection_round_trip", "seconds", "Smoothed, as TCP has it, of all readings.", readings)


def _add_serving(metrics: Metrics, serving: Serving, labels: Labels) -> None:
    def latencies(found: Latencies) -> list[Point]:
        shares = ((0.5, found.p50), (0.99, found.p99), (0.999, found.p999), (1.0, found.max))
        return [Point(labels, found.mean * serving.requests, count=serving.requests, quantiles=shares)]

    metrics.add(
        "request_latency", "seconds", "From a request's arrival.", latencies(serving.latency), "summary"
    )
    if serving.first_token is not None:
        help_ = "From a request's arrival to its first token."
        metrics.add("first_token_latency", "seconds", help_, latencies(serving.first_token), "summary")
    for name, unit, help_, value in (
        ("requests_offered", "per_second", "As they arrived.", serving.offered_per_s),
        (
            "requests_answered",
            "per_second",
            "From the first arrival to the last answer.",
            serving.answered_per_s,
        ),
        (
            "requests_capacity",
            "per_second",
            "At which the busiest has work all the time.",
            serving.capacity_per_s,
        ),
        ("requests_within_objective", "ratio", "Answered within the objective.", serving.within),
        ("request_energy", "joules", "All cards at their data sheet's power all the time.", serving.energy_j),
    ):
        metrics.add(name, unit, help_, [Point(labels, value)])
