"""Assessment of one variant: collect its measurements and the model's prediction, and judge them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.clock import clock_here
from testbed.comm.replicas.coordinator import RECORDS
from testbed.measure.execution.event_player import affected_parts, parts_changed_by, summarise_events
from testbed.measure.execution.job_run import LinkSample
from testbed.measure.execution.network_evidence import HostEvidence, conservation_between, pause_invariants
from testbed.measure.execution.rank_network import NetworkCheck
from testbed.measure.fidelity import invariants, link_invariants
from testbed.measure.fidelity.cpu_monitor import MonitorWindow, read_windows
from testbed.measure.fidelity.invariants import Conservation
from testbed.measure.fidelity.link_invariants import Tunnel
from testbed.measure.fidelity.similarity import DimensionlessNumber, scale_similarity
from testbed.measure.fidelity.timing_invariants import StepTime, model_error
from testbed.measure.fidelity.verdict import ORDER, Invariant, Verdict, checks_of, judge
from testbed.measure.results.replication import first_step_start_s, replication_summary
from testbed.measure.results.summary import StepResult, undisturbed_steps
from testbed.net.fabric.running_fabric import WanCounters
from testbed.prediction.calibration import Calibration
from testbed.prediction.model_accuracy import stated_error
from testbed.prediction.step_prediction import missing_share, prepare_step
from testbed.prediction.timeline import Timeline
from testbed.spec.events import KILL_EVENTS
from testbed.workload.job.job import Job


@dataclass(frozen=True, kw_only=True)
class Evidence(HostEvidence):
    """All measurements of a run, for all of its variants.

    Attributes:
        network: The check of the network before and after the run.
        changes: Changes of the network and of sockets, with their times.
        repairs: Rules that the controller had to restore.
        monitor_files: Each machine's host monitor file, by machine name; the name is empty if there is only one
            machine. No files under the virtual clock, where nothing is late.
        numbers: The run's dimensionless numbers.
        agreement: The comparison of the isolated collective with the model.
        tunnels: Tunnels to other machines.
        replication: The record of elastic replicas, if the job has them.
        pauses: Records of all links, if switches send pause frames.
    """

    network: NetworkCheck
    changes: Sequence[tuple[float, str]]
    repairs: Sequence[str]
    monitor_files: Mapping[str, Path]
    numbers: Sequence[DimensionlessNumber]
    agreement: Invariant
    tunnels: Sequence[Tunnel]
    replication: ReplicationRecord | None
    pauses: Sequence[Mapping[str, Any]]


def link_key(counters: WanCounters) -> tuple[str, str]:
    """Return the link name and direction as the key that link engines use."""
    return f"{counters.a}-{counters.b}-{counters.plane}", counters.direction


def assess(
    evidence: Evidence,
    steps: Sequence[StepResult],
    expected: int,
    observed: Sequence[int],
    model: ModelCheck,
    drops: Sequence[link_invariants.DroppingPort],
) -> Verdict:
    """Return the verdict on one variant.

    Probes and frame counts are those of the whole run; host and link engine are judged during the variant's steps.

    Args:
        evidence: All measurements.
        steps: The variant's measured steps.
        expected: Payload bytes between buildings per step, according to the plan.
        observed: Payload bytes between buildings that ranks sent in each step.
        model: The model's check of the variant.
        drops: Drops inside buildings during the variant's steps.
    """
    spans = [(step.start_s, step.end_s) for step in steps]
    links, buildings = affected_parts(evidence.events, evidence.topology)
    changed = set().union(*parts_changed_by(evidence.events, evidence.topology))
    asked = [
        (link.name, direction) for link in evidence.topology.wan for direction in (link.a_to_b, link.b_to_a)
    ]
    counted = [
        (frames, direction)
        for frames, (name, direction) in zip(_conservation(evidence.links), asked, strict=True)
        if name not in links
    ]
    frames = [entry for entry, _ in counted]
    edges = {name: counts for name, counts in _edges(evidence.links).items() if name not in buildings}
    backlog = [sample.counters.backlog_drops for sample in (evidence.links[0], evidence.links[-1])]
    on_time = []
    if evidence.events:
        record = summarise_events(evidence.event_log, steps[0].variant)
        on_time.append(link_invariants.events_on_time(**record))
    return judge(
        [
            *evidence.network.before(),
            link_invariants.loss_accuracy(frames, [direction for _, direction in counted], sorted(links)),
            link_invariants.drops_only_where_modelled(backlog[1] - backlog[0], drops),
            link_invariants.serialisation(model.missing_share),
            *evidence.network.after(evidence.changes, sorted(changed)),
            link_invariants.rules_in_force(evidence.repairs),
            *(check(evidence.tunnels) for check in link_invariants.TUNNEL_CHECKS if evidence.tunnels),
            *_timeliness(evidence, spans),
            invariants.payload_correct(
                sum(step.wrong for step in steps),
                sum(step.checked for step in steps),
                evidence.result_elements(steps),
            ),
            invariants.wan_bytes_as_computed(expected, observed),
            invariants.conservation(frames, edges, sorted(links)),
            *evidence.invariants(steps),
            *on_time,
            *pause_invariants(evidence.topology, evidence.pauses),
            scale_similarity(evidence.numbers, evidence.job.scale),
            evidence.agreement,
            model.invariant(steps, evidence.dropped),
        ]
    )


def _timeliness(evidence: Evidence, spans: Sequence[tuple[float, float]]) -> list[Invariant]:
    """Return the invariants that check whether the host and the link engine were on time."""
    if not evidence.monitor_files:
        return [check.exempted() for check in checks_of(invariants) if check.exempt]
    windows = {name: read_windows(path, list(spans)) for name, path in evidence.monitor_files.items()}
    counts, bounds_s = _lateness(evidence.links, spans)
    return [
        *(_worst_machine(check, windows) for check in invariants.HOST_CHECKS),
        invariants.emulator_lateness(counts, bounds_s),
        invariants.emulator_stalls(
            _stalled_s(evidence.links, spans), sum(end - start for start, end in spans)
        ),
    ]


def _worst_machine(
    check: Callable[[MonitorWindow], Invariant], windows: Mapping[str, MonitorWindow]
) -> Invariant:
    """Return the invariant of the worst machine, with its name if there are several machines."""
    checked = {name: check(window) for name, window in windows.items()}
    name = max(checked, key=lambda name: (checked[name].ok is False, ORDER.index(checked[name].severity)))
    found = checked[name]
    return found.model_copy(update={"sentence": f"{name}: {found.sentence}"}) if name else found


def _stalled_s(links: Sequence[LinkSample], spans: Sequence[tuple[float, float]]) -> float | None:
    """Return the sum, over all samples in the spans or right after one, of the worst lateness of any direction."""
    total_s = 0.0
    for start_s, end_s in spans:
        inside = [sample for sample in links if start_s < sample.time_s <= end_s]
        inside += [sample for sample in links if sample.time_s > end_s][:1]
        for sample in inside:
            late = [account.lateness_max_s for account in sample.account.directions.values()]
            known = [value for value in late if value is not None]
            if late and not known:
                return None
            total_s += max(known, default=0.0)
    return total_s


def _lateness(
    links: Sequence[LinkSample], spans: Sequence[tuple[float, float]]
) -> tuple[dict[str, list[int]] | None, tuple[float, ...]]:
    """Return, by direction, a lateness histogram of the frames released between the samples around each span."""
    totals: dict[str, list[int]] = {}
    bounds_s: tuple[float, ...] = ()
    for start_s, end_s in spans:
        before = max((s for s in links if s.time_s <= start_s), key=lambda s: s.time_s, default=links[0])
        after = min((s for s in links if s.time_s >= end_s), key=lambda s: s.time_s, default=links[-1])
        for key, account in after.account.directions.items():
            if not account.lateness_counts:
                return None, ()
            bounds_s = account.lateness_bounds_s
            earlier = before.account.directions[key].lateness_counts
            growth = [late - early for late, early in zip(account.lateness_counts, earlier, strict=True)]
            name = f"{key[0]} {key[1]}"
            totals[name] = [
                sum(pair) for pair in zip(totals.get(name, [0] * len(growth)), growth, strict=True)
            ]
    return totals, bounds_s


def _conservation(links: Sequence[LinkSample]) -> list[Conservation]:
    """Return frame counts between the first and the last sample, both taken while no frame is in flight."""
    first, last = links[0], links[-1]
    before = {link_key(counters): counters for counters in first.counters.wan}
    rows = []
    for counters in last.counters.wan:
        key = link_key(counters)
        start, early, late = before[key], first.account.directions[key], last.account.directions[key]
        entered = counters.entered_packets - start.entered_packets
        arrived = counters.arrived_packets - start.arrived_packets
        rows.append(conservation_between(key, early, late, entered, arrived))
    return rows


def _edges(links: Sequence[LinkSample]) -> dict[str, tuple[int, int]]:
    """Return frames into and out of each building's edge switch between the first and the last sample.

    With the kernel's link engine, a link's queue is on the edge's own port, which counts only frames that passed the
    queue. Frames that the queue dropped are therefore added to those that left.
    """
    first, last = links[0].counters.edges, links[-1].counters.edges
    queued = dict.fromkeys(last, 0)
    for counters, row in zip(links[-1].counters.wan, _conservation(links), strict=True):
        near = counters.a if counters.direction == "a_to_b" else counters.b
        queued[near] += row.taken_in - row.crossed
    return {
        name: (last[name][0] - first[name][0], last[name][1] - first[name][1] + queued[name]) for name in last
    }


@dataclass(frozen=True)
class ModelCheck:
    """The model's timeline of a step, in emulated seconds; None if the model does not cover the scenario.

    `stated` is the model's documented worst relative error on such scenarios, or None. `singly` is true if each single
    step should match, and false if only the median should. `missing_share` is the share of a step's time that the model
    predicts to be missing because not every hop stores and forwards whole frames; None if every hop does.
    """

    timeline: Timeline | None
    stated: float | None
    singly: bool
    missing_share: float | None

    def invariant(self, steps: Sequence[StepResult], dropped: int) -> Invariant:
        """Compare a variant's steps with the model; do not compare single steps if queues dropped frames."""
        predicted_s = self.timeline.step_time_s if self.timeline else None
        times = [StepTime(step.trial, step.step_time_s) for step in undisturbed_steps(steps)]
        return model_error(
            times, predicted_s, self.stated, clock_here() == "free", self.singly and not dropped
        )


def check_model(job: Job, algorithm: str, calibration: Calibration) -> ModelCheck:
    """Predict a variant's step; raises ControllerError, Deadlock or BadCalibration."""
    missing = missing_share(job, algorithm, calibration)
    if job.unmodelled:
        return ModelCheck(None, None, singly=False, missing_share=missing)
    step = prepare_step(job, algorithm, calibration)
    stated = stated_error(job.scenario, bool(step.network.packets))
    return ModelCheck(step.play(), stated, not job.topology.lossy, missing)


Record = Mapping[str, Any]


@dataclass(frozen=True)
class ReplicationRecord:
    """The coordinator's records of elastic replicas, in emulated time."""

    job: Job
    records: Sequence[Record]

    @classmethod
    def read(cls, folder: Path, job: Job) -> ReplicationRecord | None:
        """Read the record from a shard's directory; None for a job without elastic replicas."""
        if job.replication is None:
            return None
        return cls(job, [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()])

    @property
    def origin_s(self) -> float:
        """The time when the first measured step started for the first time; samples have only its last repetition."""
        return first_step_start_s(self.records, self.job.scenario.warmup)

    def summary(self, samples: Sequence[Record], events: Sequence[Record]) -> dict[str, Any]:
        """Return the fields of `Replication` in a summary, from the ranks' samples and the log of events."""
        spec, training = self.job.replication, self.job.workload.training
        assert spec is not None
        return replication_summary(
            self.records,
            [sample for sample in samples if sample["operation"] == "step"],
            [entry for entry in events if entry["action"] in KILL_EVENTS],
            self.job.scale,
            replicas=len(spec.replicas),
            mode=spec.policy.mode,
            catch_up=spec.policy.catch_up,
            warmup=self.job.scenario.warmup,
            microbatches=() if training is None else training.microbatches,
        )
