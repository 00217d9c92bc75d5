"""Independent observations that confirm the ranks' own reports, as evidence for the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from testbed.measure.execution.job_run import LinkSample, StepClock
from testbed.measure.fidelity.cross_check_invariants import (
    EXACT_S,
    Claim,
    CollectiveStart,
    ComputeTime,
    StepEnd,
    StepStart,
    begun_at_once,
    bytes_witnessed,
    common_start,
    compute_as_asked,
    step_ends_witnessed,
)
from testbed.measure.fidelity.host_invariants import BaselineTimes
from testbed.measure.fidelity.timing_invariants import StepTime, steps_alike
from testbed.measure.fidelity.verdict import Invariant
from testbed.measure.results.summary import StepResult, undisturbed_steps
from testbed.net.fabric.bridges import NIC
from testbed.net.fabric.change_watch import Change
from testbed.net.links.interfaces import NodeCounts
from testbed.spec.link_direction import DIRECTIONS
from testbed.workload.dependency_tracker import dependency_orders
from testbed.workload.job.fault_resolution import rank_faults_of
from testbed.workload.job.job import Job
from testbed.workload.job.launch_spec import SLOW
from testbed.workload.plan import Computing, Pause, jittered_s

Record = Mapping[str, Any]
SALT = 1000  # factor of the step number in the seed of compute jitter, see Rank
START, END, EDGE_S = "start", "end", 1e-3  # link readings at the edges of steps


def socket_changes(samples: Iterable[Record], hosts: Sequence[str]) -> list[Change]:
    """Return changes of ranks' socket options, as seen at the ends of steps; `hosts` is by rank."""
    return [
        Change(sample["end_s"], f"{hosts[sample['rank']]}: {words}")
        for sample in samples
        for words in sample.get("socket_changes", ())
    ]


@dataclass(frozen=True)
class RankEvidence:
    """Independent observations of one run, for all of its variants.

    Attributes:
        job: The job.
        samples: The ranks' own records.
        step_clock: When launchers were notified of the starts and ends of steps.
        counted: Counters of hosts and switches over the whole run, which a process other than the ranks has read.
        links: Readings of the WAN links by the same process.
        exact: Whether the virtual clock is in use.
        event_log: The log of the scenario's events.
        again: Times of the isolated collective before and after the steps.
    """

    job: Job
    samples: Sequence[Record]
    step_clock: StepClock
    counted: Mapping[str, NodeCounts]
    links: Sequence[LinkSample]
    exact: bool
    event_log: Sequence[Record] = ()
    again: BaselineTimes = field(default_factory=lambda: BaselineTimes((), ()))

    @cached_property
    def hosts(self) -> list[str]:
        """The host of each rank."""
        return [host.name for host in self.job.hosts]

    @cached_property
    def dropped(self) -> int:
        """Frames that the topology's queues dropped in the whole run."""
        first, last = (sample.account.directions for sample in (self.links[0], self.links[-1]))
        on_links = sum(last[key].dropped - first[key].dropped for key in last)
        return on_links + sum(port.dropped for node in self.counted.values() for port in node.ports.values())

    def rank_invariants(self, steps: Sequence[StepResult]) -> list[Invariant]:
        """Return the invariants of one variant's measured steps."""
        variant = steps[0].variant
        own = [sample for sample in self.samples if sample["variant"] == variant]
        late = self._late_steps(own)
        prompt = [sample for sample in own if sample["step"] not in late]
        whole = [sample for sample in own if sample["operation"] == "step"]
        # a replica's rank may have repeated a step that its peer has not repeated
        comparable = self.job.replication is None
        return [
            bytes_witnessed(
                self.hosts,
                [sample for sample in prompt if comparable and sample["operation"] == "step"],
                [*self._cards(), *self._links(steps)],
                repeats=self.job.scenario.transport.kind == "datagram",
            ),
            compute_as_asked(list(self._computed(own))),
            begun_at_once(list(self._begun(prompt)), self.exact),
            step_ends_witnessed(list(self._ends(own)), self.exact),
            common_start(self.hosts, list(self._starts(prompt)), self.exact),
            self._alike(whole, steps),
        ]

    def _late_steps(self, own: Sequence[Record]) -> set[int]:
        """Return the steps that some rank started late because a packet of the start agreement was lost.

        The rank learnt of the start only after the retransmission, and read its connections' counters then. If nothing
        can have been lost, no step is excused.
        """
        job = self.job
        if not (job.scenario.all_events or job.topology.lossy or self._is_random or self.dropped):
            return set()
        announced = {step for step, (start_s, heard_s) in self.step_clock.starts.items() if heard_s > start_s}
        return announced | {sample["step"] for sample in own if (sample.get("late_s") or 0.0) > EXACT_S}

    @property
    def _is_random(self) -> bool:
        """Whether links treat packets randomly in any way other than loss."""
        return any(direction.is_random for direction in self.job.topology.wan_directions)

    def _cards(self) -> Iterator[Claim]:
        """Compare totals only, since NICs are read before the first step and after the last one."""
        sent: dict[int, int] = dict.fromkeys(range(len(self.hosts)), 0)
        received = dict(sent)
        for sample in self.samples:
            if sample["operation"] == "step":
                for peer, count in sample["sent_bytes"].items():
                    sent[sample["rank"]] += count
                    received[int(peer)] += count
        for rank, host in enumerate(self.hosts):
            card = self.counted[host].ports[NIC]
            for direction, claimed, carried in (
                ("sent", sent[rank], card.tx_bytes),
                ("received", received[rank], card.rx_bytes),
            ):
                text = f"The rank on {host} reports {{}} bytes {direction} in the measured steps; in the whole run "
                yield Claim(f"{text}its host's NIC {direction} {{}}.", claimed, carried)

    def _links(self, steps: Sequence[StepResult]) -> Iterator[Claim]:
        """Compare the traffic that left each building in each step, using the readings before and after the step.

        Steps in which a replica sent its state are left out, as that transfer outlasts the step.
        """
        topology, ranks = self.job.topology, self.job.hosts
        starts = [sample for sample in self.links if sample.edge == START]
        ends = [sample for sample in self.links if sample.edge == END]
        gave = {own["step"] for own in self.samples if own.get("given_bytes") or own.get("checkpoint_bytes")}
        for step in (step for step in steps if step.index not in gave):
            before = [sample for sample in starts if sample.time_s <= step.start_s + EDGE_S]
            after = [sample for sample in ends if before and sample.time_s > before[-1].time_s]
            if not after:
                continue
            first, last = before[-1].account.directions, after[0].account.directions
            for building in topology.buildings:
                outgoing = [
                    (link.name, direction)
                    for link in topology.wan
                    for direction, source in zip(DIRECTIONS, (link.a, link.b), strict=True)
                    if source == building.name
                ]
                claimed = sum(
                    count
                    for (rank, peer), count in step.sent_bytes.items()
                    if ranks[rank].building == building.name != ranks[peer].building
                )
                carried = sum(last[key].sent_bytes - first[key].sent_bytes for key in outgoing)
                text = f"In trial {step.trial} ranks in {building.name} report {{}} bytes sent to other buildings; "
                yield Claim(f"{text}the links from there carried {{}}.", claimed, carried)

    def _computed(self, own: Sequence[Record]) -> Iterator[ComputeTime]:
        if self.job.workload.dispatching is not None:
            return  # the assignment of work to ranks is decided during the step
        plan, share = self.job.workload.plan, self.job.wiring.software.computing_share
        scenario, scale = self.job.scenario, self.job.scale
        faults = rank_faults_of(scenario.all_events, plan, scenario.seed, scale)
        slowed = {fault.rank for fault in faults if fault.action == SLOW}
        operations = [sample for sample in own if sample["operation"] != "step"]
        begun_s = {
            (sample["step"], sample["rank"], sample["index"]): sample["start_s"] for sample in operations
        }
        orders = dependency_orders(plan)
        for sample in operations:
            rank, index = sample["rank"], sample["index"]
            operation = plan.ranks[rank][index]
            if isinstance(operation, Computing):
                asked_s = jittered_s(plan, rank, index, SALT * sample["step"])
                most_s = math.inf if rank in slowed else asked_s / (1 - share)
            elif isinstance(operation, Pause):
                asked_s = most_s = operation.duration_s
            else:
                continue
            followers = [(sample["step"], rank, later) for later in orders[rank].later[index]]
            next_s = min((begun_s[one] for one in followers if one in begun_s), default=math.inf)
            spans_s = asked_s, most_s, next_s - sample["start_s"]
            took_s = sample["end_s"] - sample["start_s"]
            host = self.hosts[rank]
            yield ComputeTime(rank, host, sample["trial"], sample["name"], took_s, *spans_s)

    def _begun(self, own: Sequence[Record]) -> Iterator[CollectiveStart]:
        for sample in own:
            if (late_s := sample.get("late_s")) is not None:
                rank = sample["rank"]
                yield CollectiveStart(rank, self.hosts[rank], sample["trial"], sample["name"], late_s)

    def _ends(self, own: Sequence[Record]) -> Iterator[StepEnd]:
        last_s: dict[tuple[int, int], float] = {}
        for sample in own:
            if sample["operation"] != "step":
                key = sample["step"], sample["rank"]
                last_s[key] = max(last_s.get(key, -math.inf), sample["end_s"])
        for sample in own:
            if sample["operation"] == "step":
                step, rank = sample["step"], sample["rank"]
                yield StepEnd(
                    rank,
                    self.hosts[rank],
                    sample["trial"],
                    sample["end_s"] - sample["start_s"],
                    sample["end_s"],
                    last_s.get((step, rank)),
                    self.step_clock.ends.get(step, {}).get(rank),
                    sample.get("last_byte_s"),
                )

    def _starts(self, own: Sequence[Record]) -> Iterator[StepStart]:
        by_step: dict[int, dict[int, float]] = {}
        first_s: dict[int, dict[int, float]] = {}
        trials = {}
        for sample in own:
            step, rank, start_s = sample["step"], sample["rank"], sample["start_s"]
            if sample["operation"] == "step":
                by_step.setdefault(step, {})[rank] = start_s
                trials[step] = sample["trial"]
            else:
                begun = first_s.setdefault(step, {})
                begun[rank] = min(begun.get(rank, start_s), start_s)
        for step, by_rank in by_step.items():
            if self.job.replication is None and step in self.step_clock.starts:
                yield StepStart(trials[step], *self.step_clock.starts[step], by_rank, first_s.get(step, {}))

    def _alike(self, whole: Sequence[Record], steps: Sequence[StepResult]) -> Invariant:
        resent: dict[int, int] = {}
        for sample in whole:
            traffic = sample["traffic"] or {}
            resent[sample["step"]] = resent.get(sample["step"], 0) + traffic.get("resent", 0)
        times = [
            StepTime(step.trial, step.step_time_s, resent[step.index]) for step in undisturbed_steps(steps)
        ]
        return steps_alike(times, self._reason_for_difference(), self.dropped)

    def _reason_for_difference(self) -> str:
        """Return the reason why the steps of a variant may take different times; empty if they may not."""
        job, plan = self.job, self.job.workload.plan
        differ = plan.jitter or job.workload.dispatching is not None or job.replication is not None
        reasons = {
            "With the real clock, step times vary slightly.": not self.exact,
            "Events and background traffic do not affect all steps alike.": bool(
                job.scenario.all_events or job.scenario.background_traffic
            ),
            "Links lose packets, so the time of a step is random.": job.topology.lossy,
            "Links delay, duplicate, reorder or corrupt packets at random.": self._is_random,
            "Steps do not have the same work for ranks.": bool(differ),
            "The transport's state carries over from earlier steps.": self.again.remembers
            or not job.wiring.transport.settles,
        }
        return next((reason for reason, applies in reasons.items() if applies), "")
