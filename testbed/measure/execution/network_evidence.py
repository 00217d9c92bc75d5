"""Counters of hosts, ports and pausing links during a run, as evidence for its verdict."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from testbed.measure.execution.event_player import affected_cards
from testbed.measure.execution.job_run import JobRun, LinkSample
from testbed.measure.execution.rank_evidence import RankEvidence
from testbed.measure.fidelity.building_invariants import (
    building_of,
    conservation_in_buildings,
    lossless,
    no_pause_circle,
    packet_balances,
    subtract_counts,
    timed_cables,
)
from testbed.measure.fidelity.host_invariants import (
    find_stalls,
    foreign_in_steps,
    foreign_outside_steps,
    network_as_before,
    no_foreign_traffic,
    ranks_awake,
)
from testbed.measure.fidelity.invariants import Conservation
from testbed.measure.fidelity.link_invariants import DroppingPort
from testbed.measure.fidelity.verdict import Invariant
from testbed.measure.ranks.telemetry import REAL_LATE_S, REAL_WAIT_S
from testbed.measure.results.summary import StepResult
from testbed.net.fabric.bridges import NIC, Cable, End, cables
from testbed.net.links.interfaces import NodeCounts
from testbed.net.links.link_engine import DirectionStats, EngineStats
from testbed.net.paths.buffer_checks import find_pause_cycle
from testbed.spec.events import EventSpec
from testbed.spec.link_direction import DIRECTIONS, PACKET_FAULTS, Direction
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology, TopologySpec
from testbed.workload.plan_volume import result_elements

Record = Mapping[str, Any]


@dataclass(frozen=True)
class HostEvidence(RankEvidence):
    """The counters of hosts and switches in a run, and the facts known about its ranks, in emulated figures."""

    @cached_property
    def topology(self) -> Topology:
        """The emulated network."""
        return self.job.topology

    @cached_property
    def events(self) -> Sequence[EventSpec]:
        """The scenario's events."""
        return self.job.scenario.all_events

    @cached_property
    def background(self) -> frozenset[str]:
        """The hosts that have background traffic in the scenario."""
        return frozenset(name for other in self.job.scenario.background_traffic for name in other.hosts)

    def result_elements(self, steps: Sequence[StepResult]) -> int | None:
        """Return the number of result elements that ranks get in these steps; None if it is not known in advance."""
        if self.job.workload.dispatching is not None or self.job.replication is not None or self.events:
            return None
        each = result_elements(self.job.workload.plan)
        return None if each is None else each * len(steps)

    def invariants(self, steps: Sequence[StepResult]) -> list[Invariant]:
        """Return the invariants of one variant's measured steps."""
        variant = steps[0].variant
        own = [
            sample
            for sample in self.samples
            if sample["operation"] == "step" and sample["variant"] == variant
        ]
        return [
            self._conservation(),
            self._foreign(own, sum(step.step_time_s for step in steps)),
            self._awake(own, variant),
            *self.rank_invariants(steps),
            network_as_before(
                replace(self.again, overflowed=self.dropped > 0),
                self.exact and self.job.wiring.transport.settles,
                reason_not_repeated(self.events, self.background, self.topology),
            ),
        ]

    def _conservation(self) -> Invariant:
        down = {str(event.target) for event in self.events if event.action == "switch_down"}
        left_out = sorted(
            building.name for building in self.topology.buildings if down & set(building.switches)
        )
        settings = [*self.topology.directions, *(event.settings for event in self.events)]
        misdirecting = [name for name, fault in PACKET_FAULTS.items() if fault.misdirects]
        corrupting = any(getattr(one, name, None) for one in settings for name in misdirecting)
        cards = affected_cards(self.events)
        balances = list(packet_balances(self.topology, self.counted, left_out, cards))
        timed = self._timed(left_out, cards)
        without = sorted({*left_out, *cards})
        return conservation_in_buildings(balances, timed, without, corrupting)

    def _timed(self, left_out: Sequence[str], cards: Collection[str]) -> list[Conservation]:
        """Return counts of the cables that the link engine emulates, except those of the given buildings and hosts."""
        first, last = self.links[0].account, self.links[-1].account
        found = []
        for cable in timed_cables(self.topology):
            if building_of(self.topology, cable) in left_out or cable.a[0] in cards:
                continue
            for direction, near, far in (("a_to_b", cable.a, cable.b), ("b_to_a", cable.b, cable.a)):
                early, late = first.directions[cable.name, direction], last.directions[cable.name, direction]
                sent, came = (self.counted[node].ports[name] for node, name in (near, far))
                key = cable.name, direction
                found.append(conservation_between(key, early, late, sent.tx_packets, came.rx_packets))
        return found

    def _foreign(self, own: Sequence[Record], steps_s: float) -> Invariant:
        names = [host.name for host in self.topology.hosts]
        found = foreign_in_steps(self.hosts, own, self.topology.mtu)
        found += foreign_outside_steps(self.counted, self.hosts, self.background, names)
        known = all(sample["traffic"] is not None for sample in own)
        slowest_bps = min(direction.rate_bps for direction in self.topology.directions)
        return no_foreign_traffic(found, slowest_bps, steps_s, known)

    def _awake(self, own: Sequence[Record], variant: str) -> Invariant:
        pauses = scenario_pauses([entry for entry in self.event_log if entry["variant"] == variant])
        noticed_s = REAL_WAIT_S + REAL_LATE_S
        if self.exact:
            noticed_s = max(sample["looks_s"] for sample in own)
        return ranks_awake(find_stalls(self.hosts, own, pauses), noticed_s, self.exact, sorted(pauses))


def count_nodes(job: JobRun, sockets: Sequence[Record], hosts: Sequence[str]) -> dict[str, NodeCounts]:
    """Return the counters of hosts and switches in a run, read while no frame was in flight.

    Args:
        job: The run.
        sockets: Final state of the ranks' connections, to account for packets that the kernel segmented below IP.
        hosts: Host of each rank.
    """
    found = subtract_counts(job.before, job.after)
    for pair in sockets:
        if cut := pair.get("packets_cut"):
            host = hosts[pair["rank"]]
            found[host] = found[host].with_sent_packets(cut)
    return found


def conservation_between(
    key: tuple[str, str], early: DirectionStats, late: DirectionStats, entered: int, arrived: int
) -> Conservation:
    """Return a direction's frame counts between two readings; `entered` and `arrived` are from its two ends."""
    counters = {
        name: getattr(late, name) - getattr(early, name)
        for name in ("lost", "duplicated", "dropped", "overrun", "held")
    }
    return Conservation(
        f"{key[0]} {key[1]}",
        entered=entered,
        crossed=late.crossed_packets - early.crossed_packets,
        taken_in=late.in_packets - early.in_packets,
        given_out=late.out_packets - early.out_packets,
        arrived=arrived,
        **counters,
    )


def reason_not_repeated(events: Sized, background: Sized, topology: Topology) -> str:
    """Return the reason why the isolated collective is not repeated after the steps; empty if it is repeated."""
    if events:
        return "The scenario's events may change the network."
    if background:
        return (
            "The scenario's background traffic continues after the last step, so the network is never idle."
        )
    if topology.lossy:
        return "Links lose packets, so the time of a collective is random."
    return ""


def scenario_pauses(log: Sequence[Record]) -> dict[str, list[tuple[float, float]]]:
    """Return the spans in which the scenario paused each host, from one variant's log of events."""
    found: dict[str, list[tuple[float, float]]] = {}
    for entry in log:
        if entry["action"] != "host_pause" or entry["time_s"] is None:
            continue
        spans = found.setdefault(str(entry["target"]), [])
        if entry["begins"]:
            spans.append((entry["time_s"], math.inf))
        elif spans:
            spans[-1] = (spans[-1][0], entry["time_s"])
    return found


Span = tuple[float, float]


@dataclass(frozen=True)
class PortCounts:
    """The counters of all ports at one point in time, from the kernel's shapers and from a link engine."""

    nodes: Mapping[str, NodeCounts]
    account: EngineStats

    def drops(self, cable: Cable, end: int) -> int:
        """Return the drops of the queue at the cable's end a (0) or b (1)."""
        if cable.needs_engine:
            return self.account.directions[cable.name, DIRECTIONS[end]].dropped
        node, interface = (cable.a, cable.b)[end]
        return self.nodes[node].ports[interface].dropped


def port_drops(
    spec: TopologySpec, topology: Topology, job: JobRun, steps: Sequence[Span], scale: Scale
) -> list[DroppingPort]:
    """Return every port inside buildings that dropped packets in these steps, with the worst first.

    Hosts' NICs are counted over the whole run, since their queues are in host memory and never fill up. Without
    readings at the edges of the steps, every port is counted over the whole run.
    """
    whole = PortCounts(job.before, job.samples[0].account), PortCounts(job.after, job.samples[-1].account)
    windows = list(_windows(job.samples, steps))
    given = set().union(
        *(spec.buildings[one.name].uplinks_with_given_buffers(one) for one in topology.buildings)
    )
    found = []
    for cable in cables(topology):
        assert cable.direction is not None
        for end, (near, far) in enumerate(((cable.a, cable.b), (cable.b, cable.a))):
            own = [whole] if near[1] == NIC or len(windows) < len(steps) else windows
            if packets := sum(late.drops(cable, end) - early.drops(cable, end) for early, late in own):
                is_given = cable.a[0] in given and near[1] != NIC
                queue_bytes = round(scale.real_bytes(cable.direction.queue_bytes))
                place = _place(near, far)
                found.append(
                    DroppingPort(place=place, queue_bytes=queue_bytes, given=is_given, drops=packets)
                )
    return sorted(found, key=lambda port: -port.drops)


def _place(near: End, far: End) -> str:
    return f"the NIC of {near[0]}" if near[1] == NIC else f"the port of {near[0]} to {far[0]}"


def _windows(samples: Sequence[LinkSample], steps: Sequence[Span]) -> Iterator[tuple[PortCounts, PortCounts]]:
    """Yield the readings before and after each step that has readings at both edges."""
    edges = [sample for sample in samples if sample.switches]
    for start_s, end_s in steps:
        before = [sample for sample in edges if sample.time_s <= start_s]
        after = [sample for sample in edges if sample.time_s >= end_s]
        if before and after:
            yield (
                PortCounts(before[-1].switches, before[-1].account),
                PortCounts(after[0].switches, after[0].account),
            )


def paused_links(
    topology: Topology, first: EngineStats, last: EngineStats, scale: Scale
) -> list[dict[str, Any]]:
    """Return the fields of a `PausedLink` for each link of a network with pause frames; else none."""
    if not topology.pauses:
        return []
    found = []
    for (link, which), direction in _engine_directions(topology).items():
        early, late = first.directions[link, which], last.directions[link, which]
        buffer_bytes = direction.pause.buffer_bytes if direction.pause else 0
        found.append(
            {
                "link": link,
                "direction": which,
                "pauses": late.pauses - early.pauses,
                "paused_share": (late.paused_s - early.paused_s) / (last.time_s - first.time_s),
                "buffer_bytes": round(scale.real_bytes(buffer_bytes)),
                "buffer_peak_bytes": round(scale.real_bytes(late.buffer_peak_bytes)),
                "dropped": late.buffer_drops - early.buffer_drops,
            }
        )
    return found


def _engine_directions(topology: Topology) -> dict[tuple[str, str], Direction]:
    """Return all directions that the link engine emulates, except those towards hosts, which send no pause frames."""
    found = {(link.name, which): getattr(link, which) for link in topology.wan for which in DIRECTIONS}
    hosts = {host.name for host in topology.hosts}
    for cable in cables(topology):
        assert cable.direction is not None
        found[cable.name, "a_to_b"] = cable.direction
        if cable.a[0] not in hosts:
            found[cable.name, "b_to_a"] = cable.direction
    return found


def pause_invariants(topology: Topology, rows: Sequence[Mapping[str, Any]]) -> list[Invariant]:
    """Return the invariants of a network with pause frames; else none."""
    if not topology.pauses:
        return []
    shares = {f"{row['link']} {row['direction']}": _filled(row) for row in rows}
    fullest = max(shares, key=shares.__getitem__)
    dropped, pauses = (sum(row[name] for row in rows) for name in ("dropped", "pauses"))
    return [
        lossless(dropped, pauses, fullest, shares[fullest]),
        no_pause_circle(find_pause_cycle(topology)),
    ]


def _filled(row: Mapping[str, Any]) -> float:
    return row["buffer_peak_bytes"] / row["buffer_bytes"] if row["buffer_bytes"] else 0.0
