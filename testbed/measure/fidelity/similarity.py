"""What a scale model keeps of the network it stands for: dimensionless numbers, real and emulated. Pure.

Two networks behave alike where the numbers that rule their behaviour are alike (as in any scale model: Barenblatt,
"Scaling", 2003). Size scale and time dilation keep some of them by construction and change others; what changes does
harm only once it crosses a threshold, and the verdict says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testbed.measure.fidelity.verdict import Invariant
from testbed.net.fabric.plan import LINUX_RTO_MIN_MS
from testbed.spec.link_direction import Direction
from testbed.spec.links import WanLink
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology
from testbed.workload.job.job import Workload

LEAST_PACKETS = 4  # per message: fewer and store-and-forward of single packets shows
LEAST_QUEUE_PACKETS = 20  # fewer and the first windows of two connections (RFC 6928) overflow it
LARGEST_OVERHEAD = 0.1
MATHIS = 1.22  # sqrt(3/2): Mathis et al. 1997, "The macroscopic behavior of the TCP congestion avoidance algorithm"


@dataclass(frozen=True)
class Traffic:
    """What a step sends, real figures: its largest message and all it reduces, in bytes; seconds of computing.

    `overhead_s` is what software costs per message where it is modelled or real, `emulated_overhead_s` what it costs
    here, in seconds that pass here.
    """

    message_bytes: float
    gradient_bytes: float
    compute_s: float
    overhead_s: float
    emulated_overhead_s: float


@dataclass(frozen=True)
class Number:
    """One dimensionless number of both networks; `harm` is a sentence where results do not transfer."""

    name: str
    real: float
    emulated: float
    meaning: str
    harm: str | None = None

    @property
    def preserved(self) -> bool:
        """Whether both networks have the same, within a percent."""
        return math.isclose(self.real, self.emulated, rel_tol=0.01)

    def to_dict(self) -> dict[str, Any]:
        """The form in which it stands in a summary."""
        numbers = {"name": self.name, "real": self.real, "emulated": self.emulated}
        return {**numbers, "preserved": self.preserved, "meaning": self.meaning}


def dimensionless(real: Topology, emulated: Topology, scale: Scale, traffic: Traffic) -> list[Number]:
    """The numbers of a scenario; those of a WAN link for the one with the largest bandwidth-delay product."""
    message = scale.emulated_bytes(traffic.message_bytes)
    nic, emulated_nic = (min(host.nic.rate_bps for host in one.hosts) for one in (real, emulated))
    overhead = traffic.overhead_s / (traffic.message_bytes * 8 / nic)
    emulated_overhead = traffic.emulated_overhead_s / (message * 8 / emulated_nic)
    packets, emulated_packets = traffic.message_bytes / real.mtu, message / real.mtu
    found = []
    if traffic.compute_s:
        emulated_gradients = scale.emulated_bytes(traffic.gradient_bytes)
        found.append(
            Number(
                "communication over computing",
                traffic.gradient_bytes * 8 / nic / traffic.compute_s,
                emulated_gradients * 8 / emulated_nic / scale.emulated_s(traffic.compute_s),
                "gradients over NIC rate x computing",
            )
        )
    found += [
        Number(
            "packets per message",
            packets,
            emulated_packets,
            "largest message over the MTU",
            _few_packets(packets, emulated_packets),
        ),
        Number(
            "software share of a message",
            overhead,
            emulated_overhead,
            "cost per message over its time on the NIC",
            _much_overhead(overhead, emulated_overhead),
        ),
    ]
    if real.wan:
        index = max(range(len(real.wan)), key=lambda at: _bdp_bytes(real.wan[at]))
        found += _of_link(real.wan[index], emulated.wan[index], real.mtu, scale, traffic.message_bytes)
        found.append(_shortest_queue(real, emulated))
    return found


def _shortest_queue(real: Topology, emulated: Topology) -> Number:
    """Of the WAN link that has it here."""
    queues = [min(link.a_to_b.queue_bytes, link.b_to_a.queue_bytes) / emulated.mtu for link in emulated.wan]
    index = queues.index(min(queues))
    link, here = real.wan[index], queues[index]
    there = min(link.a_to_b.queue_bytes, link.b_to_a.queue_bytes) / real.mtu
    harm = (
        f"The queue of {link.name} holds {here:.2g} packets here and {there:.3g} in the modelled network: it drops "
        "bursts that would find room there. Give it more room, or divide sizes by less."
        if here < LEAST_QUEUE_PACKETS <= there
        else None
    )
    return Number("packets per queue", there, here, f"the shortest, of {link.name}", harm)


def _of_link(real: WanLink, emulated: WanLink, mtu: int, scale: Scale, message_bytes: float) -> list[Number]:
    bdp, emulated_bdp = _bdp_bytes(real), _bdp_bytes(emulated)
    found = [
        Number(
            "bandwidth-delay product over message",
            bdp / message_bytes,
            emulated_bdp / scale.emulated_bytes(message_bytes),
            f"of {real.name}, over the largest message",
        ),
        Number("packets per bandwidth-delay product", bdp / mtu, emulated_bdp / mtu, f"of {real.name}"),
    ]
    if round_trip_s := real.round_trip_s:
        rto_min_s = LINUX_RTO_MIN_MS / 1e3
        rto = rto_min_s / round_trip_s
        emulated_rto = scale.emulated_s(rto_min_s) / emulated.round_trip_s
        found.append(Number("shortest timeout over round trip", rto, emulated_rto, f"TCP's, of {real.name}"))
    loss = max(direction.mean_loss for direction in (real.a_to_b, real.b_to_a))
    if loss:
        limit, emulated_limit = (bytes_ / mtu * math.sqrt(loss) / MATHIS for bytes_ in (bdp, emulated_bdp))
        found.append(
            Number(
                "rate over what loss lets TCP reach",
                limit,
                emulated_limit,
                f"of {real.name}: one loss-based connection, after Mathis",
                _loss_matters(limit, emulated_limit),
            )
        )
    return found


def _few_packets(real: float, emulated: float) -> str | None:
    if real < LEAST_PACKETS or emulated >= LEAST_PACKETS:
        return None
    return (
        f"The largest message is {emulated:.2g} packets here and {real:.3g} in the modelled network: "
        "it cannot be pipelined along its path as it would be there."
    )


def _much_overhead(real: float, emulated: float) -> str | None:
    if emulated <= max(LARGEST_OVERHEAD, 2 * real):
        return None
    return f"Software takes {emulated:.0%} of a message's time on the NIC here, and {real:.2%} in the modelled network."


def _loss_matters(real: float, emulated: float) -> str | None:
    if real <= 1 or emulated >= 1:
        return None
    return (
        f"Loss holds a connection of the modelled network to 1/{real:.3g} of the link's rate, and not at all here: "
        "packets per bandwidth-delay product are too few. Dilate time rather than divide sizes."
    )


def _bdp_bytes(link: WanLink) -> float:
    directions: Sequence[Direction] = (link.a_to_b, link.b_to_a)
    return max(direction.rate_bps for direction in directions) / 8 * link.round_trip_s


def scale_similarity(numbers: Sequence[Number], scale: Scale) -> Invariant:
    """Whether the scale model leaves out nothing that matters in this scenario."""
    bound = "no number beyond where results transfer"
    if scale.is_one:
        return Invariant("scale_similarity", bound, "not scaled", None, "The figures are real ones.")
    harms = [number for number in numbers if number.harm]
    kept = [number.name for number in numbers if number.preserved]
    return Invariant(
        "scale_similarity",
        bound=bound,
        measured=f"{len(harms)} beyond",
        ok=not harms,
        sentence=str(harms[0].harm)
        if harms
        else f"The scale model keeps {', '.join(kept)}; what it changes stays where it does no harm.",
        severity="caution",
    )


def numbers_of(
    scenario: Scenario, topology: Topology, workload: Workload, scale: Scale, overhead_s: float
) -> list[Number]:
    """topology, workload: emulated ones. overhead_s: of software, emulated, for a message."""
    cost = scenario.transport.software_cost
    traffic = Traffic(
        message_bytes=scale.real_bytes(workload.message_bytes),
        gradient_bytes=scale.real_bytes(workload.rank_bytes),
        compute_s=scale.real_s(workload.compute_s),
        overhead_s=cost.per_message_s + cost.handover_s,
        emulated_overhead_s=overhead_s,
    )
    return dimensionless(scenario.topology.resolve(), topology, scale, traffic)
