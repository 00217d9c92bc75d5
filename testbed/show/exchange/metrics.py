"""A run's figures as metrics, independent of the output format: names, units, labels, values.

Names correspond in all formats: `testbed_step_time_seconds` for Prometheus is `testbed.step_time` with unit `s` for
OpenTelemetry. All values are in real units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from testbed.measure.fidelity.verdict import ORDER
from testbed.measure.results.link_summary import LinkUse
from testbed.measure.results.records import LinkReading
from testbed.measure.results.result import Connections, Result, Variant
from testbed.measure.results.serving_result import Serving

Kind = Literal["gauge", "counter", "summary"]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Point:
    """One value; `time_s` is in seconds since the run's origin, or None for a figure of the whole run.

    In a summary, `value` is the sum of `count` observations, and quantiles have a share and a value.
    """

    labels: Labels
    value: float
    time_s: float | None = None
    count: int = 0
    quantiles: tuple[tuple[float, float], ...] = ()


@dataclass
class Metric:
    """Values of one kind; `unit` is Prometheus' suffix of the name, or "" for a count or a state."""

    name: str
    unit: str
    kind: Kind
    help: str
    points: list[Point] = field(default_factory=list)

    @property
    def name_with_unit(self) -> str:
        """The Prometheus name without the prefix, such as `step_time_seconds`."""
        return f"{self.name}_{self.unit}" if self.unit else self.name


class Metrics:
    """Metrics by name, in order of first use; added points get common labels and, if given, a time.

    A view created by `labelled` adds to the same metrics.
    """

    def __init__(self, labels: Labels, time_s: float | None = None) -> None:
        self.labels, self.time_s = labels, time_s
        self.by_name: dict[str, Metric] = {}

    def labelled(self, time_s: float | None = None, **labels: str) -> Metrics:
        """Return a view whose points get additional labels."""
        view = Metrics({**self.labels, **labels}, time_s)
        view.by_name = self.by_name
        return view

    def add(
        self, name: str, unit: str, help_: str, value: float, kind: Kind = "gauge", /, **labels: str
    ) -> None:
        """Add a point to the metric `name`; unit, help and kind apply if it is new."""
        self._add(name, unit, help_, kind, Point({**self.labels, **labels}, value, self.time_s))

    def add_summary(
        self, name: str, help_: str, total_s: float, count: int, quantiles: tuple[tuple[float, float], ...]
    ) -> None:
        """Add a summary of times."""
        self._add(
            name, "seconds", help_, "summary", Point(self.labels, total_s, count=count, quantiles=quantiles)
        )

    def _add(self, name: str, unit: str, help_: str, kind: Kind, point: Point) -> None:
        self.by_name.setdefault(name, Metric(name, unit, kind, help_)).points.append(point)


def run_metrics(result: Result, readings: Sequence[LinkReading] = ()) -> list[Metric]:
    """Return the metrics of a run and its variants; with `readings`, also the counters of every WAN direction."""
    run = Metrics({"run": result.folder.name, "scenario": result.scenario})
    help_ = "The run: its clock, and its worst verdict."
    run.add("run_info", "", help_, 1.0, clock=result.clock, status=result.status)
    for variant in result.variants:
        _add_variant(run.labelled(variant=variant.name), variant)
    for reading in readings:
        link = reading.link
        _add_reading(
            run.labelled(reading.time_s, source=link.source, target=link.target, plane=str(link.plane)),
            reading,
        )
    return list(run.by_name.values())


def _add_variant(metrics: Metrics, variant: Variant) -> None:
    described = {"algorithm": variant.algorithm, "policy": variant.policy, "limited_by": variant.limited_by}
    metrics.add("variant_info", "", "What was compared, and what limits it.", 1.0, **described)
    metrics.add("ranks", "", "Ranks of the job.", variant.ranks)
    times = variant.step_time_s
    shares = ((0.0, times.min), (0.5, times.median), (0.95, times.p95), (1.0, times.max))
    metrics.add_summary("step_time", "Measured steps.", sum(times.samples), times.n, shares)
    for trial, value in enumerate(times.samples):
        metrics.add("trial_step_time", "seconds", "A measured step, by its trial.", value, trial=str(trial))
    _add_work(metrics, variant)
    if variant.predicted is not None:
        predicted_s = variant.predicted.step_time_s
        metrics.add("predicted_step_time", "seconds", "A step by the model.", predicted_s)
    help_ = "Computing of the busiest rank in a step."
    metrics.add("compute", "seconds", help_, variant.compute_s)
    help_ = "A step's time less computing."
    metrics.add("exposed_communication", "seconds", help_, variant.exposed_comm_s)
    help_ = "Payload over the WAN in a step: by the plan, and as ranks sent it."
    for by, count in (("plan", variant.wan_bytes.expected), ("ranks", variant.wan_bytes.observed)):
        metrics.add("wan_payload", "bytes", help_, count, by=by)
    if variant.training is not None:
        split = variant.training.measured
        parts = [("compute", "rank", split.compute_s), ("bubble", "rank", split.bubble_s)]
        parts += [(f"exposed {entry.kind}", entry.tier, entry.seconds) for entry in split.exposed]
        help_ = "Where a step's time went, mean over ranks."
        for part, tier, seconds in parts:
            metrics.add("step_part", "seconds", help_, seconds, part=part, tier=tier)
    _add_network(metrics, variant)
    _add_verdict(metrics, variant)
    if variant.serving is not None:
        _add_serving(metrics, variant.serving)
    if variant.replication is not None:
        help_ = "Of the time, what steps would have taken with nobody lost."
        metrics.add("effective_time", "ratio", help_, variant.replication.effective)


def _add_network(metrics: Metrics, variant: Variant) -> None:
    for link in variant.wan_links:
        _add_link(metrics, link)
    help_ = "Packets that the queue of a port inside a building dropped over all steps."
    for port in variant.port_drops:
        metrics.add("port_step_drops", "", help_, port.drops, "counter", place=port.place)
    help_ = "How evenly planes between two buildings were used: Jain's index."
    for balance in variant.plane_balance:
        ends = {"source": balance.source, "target": balance.target}
        metrics.add("plane_balance", "ratio", help_, balance.jain_index, **ends)
    for connections in variant.connections:
        _add_connections(metrics.labelled(source=connections.source, target=connections.target), connections)


def _add_verdict(metrics: Metrics, variant: Variant) -> None:
    for status in ORDER:
        is_own = float(status == variant.verdict.status)
        metrics.add("verdict", "", "1 for the verdict on the variant's figures.", is_own, status=status)
    help_ = "Whether what must hold for the figures to mean something did."
    for entry in variant.verdict.invariants:
        if entry.ok is not None:
            metrics.add("invariant_held", "", help_, float(entry.ok), invariant=entry.name)


def _add_work(metrics: Metrics, variant: Variant) -> None:
    done = variant.done
    metrics.add("committed_steps", "", "Measured steps that were committed, in whole ones.", done.steps)
    metrics.add("elapsed", "seconds", "In which they were done, stalls included.", done.elapsed_s)
    if done.tokens is not None:
        help_ = "Trained or decoded, over the elapsed time."
        metrics.add("tokens", "per_second", help_, done.per_second)
    if variant.rates is not None:
        help_ = "Trained by all accelerators together, over the elapsed time."
        metrics.add("sequences", "per_second", help_, variant.rates.sequences_per_s)
        help_ = "The model's own arithmetic over the elapsed time, of the accelerators' peak."
        metrics.add("model_flops_utilisation", "ratio", help_, variant.rates.mfu)


def _add_link(metrics: Metrics, link: LinkUse) -> None:
    source, target = (link.a, link.b) if link.direction == "a_to_b" else (link.b, link.a)
    own = metrics.labelled(source=source, target=target, plane=str(link.plane))
    own.add("link_rate", "bytes_per_second", "Of one direction of a WAN link.", link.rate_bps / 8)
    own.add("link_step", "bytes", "On the wire in a step, headers included.", link.bytes)
    own.add("link_utilisation", "ratio", "Of the rate, over a step.", link.utilisation)
    own.add("link_queue_peak", "bytes", "The longest queue that a reading found.", link.queue_peak_bytes)
    own.add("link_step_drops", "", "Packets dropped by the queue over all steps.", link.drops, "counter")
    own.add("link_step_losses", "", "Packets lost at random over all steps.", link.losses, "counter")
    help_ = "Packets lost over all steps as the link was cut."
    own.add("link_step_cut_losses", "", help_, link.cut_losses, "counter")
    own.add("link_step_marks", "", "Packets marked by ECN over all steps.", link.marks, "counter")


def _add_reading(own: Metrics, reading: LinkReading) -> None:
    help_ = "On the wire since the run began, headers included."
    own.add("link_sent", "bytes", help_, reading.bytes, "counter")
    for name, help_, count in (
        ("link_packets", "Since the run began.", reading.packets),
        ("link_drops", "Packets dropped by the queue since the run began.", reading.drops),
        ("link_losses", "Packets lost at random since the run began.", reading.losses),
        ("link_cut_losses", "Packets lost since the run began as the link was cut.", reading.cut_losses),
        ("link_marks", "Packets marked by ECN since the run began.", reading.marks),
    ):
        own.add(name, "", help_, count, "counter")
    own.add("link_queue", "bytes", "That waited then.", reading.queue_bytes)


def _add_connections(own: Metrics, found: Connections) -> None:
    own.add("connections", "", "From one building to another.", found.connections)
    help_ = "Segments sent again over all steps."
    own.add("connection_retransmits", "", help_, found.retransmits, "counter")
    if found.rtt_s is not None:
        help_ = "Smoothed, as TCP has it, of all readings."
        for name in ("min", "median", "max"):
            value = getattr(found.rtt_s, name)
            own.add("connection_round_trip", "seconds", help_, value, reading=name)


def _add_serving(metrics: Metrics, serving: Serving) -> None:
    for name, help_, found in (
        ("request_latency", "From a request's arrival.", serving.latency),
        ("first_token_latency", "From a request's arrival to its first token.", serving.first_token),
    ):
        if found is not None:
            shares = ((0.5, found.p50), (0.99, found.p99), (0.999, found.p999), (1.0, found.max))
            metrics.add_summary(name, help_, found.mean * serving.requests, serving.requests, shares)
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
        metrics.add(name, unit, help_, value)
