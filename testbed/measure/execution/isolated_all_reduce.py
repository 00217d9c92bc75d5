"""The isolated ring all-reduce that a run measures on the idle network, and its predicted time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from testbed.clock import clock_here
from testbed.comm.collectives import pieces_for
from testbed.comm.collectives.baseline_ring import (
    MOST_ROUNDS,
    baseline_is_whole,
    baseline_rounds,
    baseline_times,
)
from testbed.comm.transport import PROTOCOLS
from testbed.comm.transport.wire import ConnectionKey
from testbed.measure.fidelity.host_invariants import Attempt, BaselineTimes
from testbed.measure.fidelity.timing_invariants import model_agreement
from testbed.measure.fidelity.verdict import Invariant
from testbed.net.paths.alpha_beta import (
    RingStep,
    all_planes,
    calibration_bytes,
    nearest_plane,
    ring_all_reduce_s,
    ring_steps,
    worst_plane,
)
from testbed.net.paths.hops import NETEM, Paths
from testbed.net.paths.losses import find_control
from testbed.spec.buildings import Host
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import software_of
from testbed.workload.job.endpoints import JobEndpoints

MESSAGE_S = 0.2e-3  # cost of a message in Python: docs/explanation/fidelity.md


class IsolatedBaseline:
    """The isolated collective and its model, in emulated figures; `message_bytes` is the workload's largest message."""

    def __init__(
        self,
        topology: Topology,
        hosts: Sequence[Host],
        transport: TransportSpec,
        wiring: JobEndpoints,
        scale: Scale,
        message_bytes: float,
        link_engine: str = NETEM,
    ) -> None:
        self.exact = clock_here() == "free"
        # the modelled software cost of messages; without a model, messages cost what they cost in reality
        self.software = software_of(transport, scale)
        self._wiring = wiring
        self._lossy = topology.lossy
        sockets = [wiring.congestion_control, *(own.congestion_control for own in transport.sockets)]
        self._remembers = any(find_control(name).paces for name in sockets if name)
        # the policy decides which plane a message takes, and several connections may take several planes
        best = all_planes if wiring.transport.takes_several_paths else nearest_plane
        paths = Paths(topology, link_engine)
        self._ring = self._as_sockets_allow(ring_steps(paths, hosts, best), paced=False)
        # pacing bounds the time only from above: TCP sends short bursts unpaced
        worst = ring_steps(paths, hosts, worst_plane)
        self._worst_ring = self._as_sockets_allow(worst, paced=True)
        self.message_bytes = 0
        if len(hosts) > 1:
            self.message_bytes = calibration_bytes(self._worst_ring, topology.mtu, message_bytes)

    @property
    def times(self) -> int:
        """The number of times that the collective is run before the steps."""
        return baseline_times(self.exact, self._lossy, self._wiring.transport.warms_up)

    @property
    def overhead_s(self) -> float:
        """The cost of each message in addition to its network time, without the cost per byte."""
        return self.software.message_s + self.software.handover_s if self.exact else MESSAGE_S

    def agreement(self, calibrations: Sequence[Mapping[str, Any]]) -> Invariant:
        """Return the invariant that compares the ranks' measurements with the model."""
        what = f"The beginning of a ring all-reduce, {MOST_ROUNDS} rounds,"
        if baseline_is_whole(len(self._ring)):
            what = "A ring all-reduce"
        return model_agreement(
            min((attempt.took_s for attempt in self.attempts(calibrations)[0]), default=None),
            self._model_s(self._ring),
            exact=self.exact,
            slowest_s=self._model_s(self._worst_ring),
            lossy=self._lossy,
            what=what,
        )

    def attempts(self, calibrations: Sequence[Mapping[str, Any]]) -> tuple[list[Attempt], list[Attempt]]:
        """Return all attempts before the steps, and those after them if the collective was repeated."""
        before, after = (
            [entry for entry in calibrations if entry["again"] is again] for again in (False, True)
        )
        return _attempts(before), _attempts(after)

    def lone(self, calibrations: Sequence[Mapping[str, Any]]) -> BaselineTimes:
        """Return the measurements before and after the steps, with possible causes of a difference."""
        rounds = baseline_rounds(len(self._ring))
        return BaselineTimes(
            *self.attempts(calibrations),
            order_s=rounds * self.software.message_s if self.exact else 0.0,
            path_s=self._model_s(self._ring),
            resent=_resent_between(calibrations),
            remembers=self._remembers,
        )

    def _model_s(self, ring: Sequence[RingStep]) -> float:
        if not ring:
            return 0.0
        size = len(ring)
        pieces = pieces_for("all_reduce", "ring", self.message_bytes * size, size)
        rounds, piece_bytes = baseline_rounds(size), self.message_bytes / pieces
        ring = [self._through_slots(step, piece_bytes) for step in ring]
        software = self.software
        note_s = 2 * software.note_cost_s if self._announced else None
        acknowledged_s = 0.0
        if self._wiring.transport.writes:
            note_s = note_s or 0.0  # announcements of RDMA writes cost hosts nothing in addition
            acknowledged_s = max(step.returned_s for step in ring)  # of the last message
        if not self.exact:
            took_s = ring_all_reduce_s(ring, self.message_bytes, MESSAGE_S, pieces, rounds, note_s)
            return took_s + acknowledged_s
        # for a message sent in chunks, only the first chunk's cost is not hidden behind transfers
        whole_bytes = min(piece_bytes, software.slots.chunk_bytes) if self._copies else piece_bytes
        overhead_s = 2 * (software.message_s + software.handover_s + whole_bytes * software.byte_s)
        around_s = software.launch_s + software.completion_s + acknowledged_s
        return around_s + ring_all_reduce_s(ring, self.message_bytes, overhead_s, pieces, rounds, note_s)

    @property
    def _announced(self) -> bool:
        protocol = PROTOCOLS.find(self.software.protocol)
        return protocol.registers or (protocol.copies and self.software.slots.announced)

    @property
    def _copies(self) -> bool:
        return PROTOCOLS.find(self.software.protocol).copies

    def _through_slots(self, step: RingStep, piece_bytes: float) -> RingStep:
        """Add the time that each message waits for slots, if their window is below the bandwidth-delay product."""
        slots, software = self.software.slots, self.software
        windows = (math.ceil(piece_bytes / slots.chunk_bytes) - 1) // slots.count  # that are waited for
        if not self._copies or not windows:
            return step
        each_s = software.message_s + software.handover_s + slots.chunk_bytes * software.byte_s
        round_s = step.round_trip_s(slots.chunk_bytes) + 2 * (each_s + software.note_cost_s)
        waits_s = max(0.0, round_s - slots.count * slots.chunk_bytes * step.beta_s)
        return replace(step, delay_s=step.delay_s + windows * waits_s)

    def _as_sockets_allow(self, ring: Sequence[RingStep], paced: bool) -> list[RingStep]:
        """Slow down steps that pacing, parity or windows below the bandwidth-delay product limit.

        With receiver-driven grants, a receiver grants a share of its NIC's rate, and each message waits for its grant.
        """
        size = len(ring)
        found: list[RingStep] = []
        if size == 1:
            return found
        for rank, step in enumerate(ring):
            peer = (rank + 1) % size
            channels = self._wiring.channels(rank, peer)
            slowest_s = self._wiring.slowest_byte_s(rank, peer, ConnectionKey(), step, paced=paced)
            beta_s = max(step.beta_s, slowest_s / channels) * (1 + self._wiring.overhead(rank, peer))
            delay_s = step.delay_s
            if (granted := self._wiring.transport.granted_share) is not None:
                beta_s, delay_s = beta_s / granted, delay_s + step.delay_s + step.returned_s
            found.append(replace(step, beta_s=beta_s, delay_s=delay_s, back_s=step.returned_s))
        return found


def _resent_between(calibrations: Iterable[Mapping[str, Any]]) -> int:
    """Return the count of segments retransmitted from the last attempt before the steps to the first one after."""
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    for entry in calibrations:
        rank, before = entry["rank"], entry["resent_before"]
        if entry["again"]:
            first[rank] = min(before, first.get(rank, before))
        else:
            last[rank] = max(before + entry["resent"], last.get(rank, 0))
    return sum(count - last.get(rank, 0) for rank, count in first.items())


def _attempts(calibrations: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """Return the time of each attempt, from the common start until the last rank finished."""
    took: dict[int, Attempt] = {}
    for entry in calibrations:
        before = took.get(entry["attempt"], Attempt(0.0, 0))
        took_s = max(before.took_s, entry["end_s"] - entry["start_s"])
        took[entry["attempt"]] = Attempt(took_s, before.resent + entry["resent"])
    return list(took.values())
