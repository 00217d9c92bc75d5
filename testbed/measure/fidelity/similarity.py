"""The similarity of the scale model to the real network, in terms of dimensionless numbers. Pure functions.

Two networks behave alike if the dimensionless numbers that govern them are equal, as in any scale model (Barenblatt,
"Scaling", 2003). Size scale and time dilation preserve some of these numbers by construction and change others. A
change does harm only beyond a threshold; if it does, the verdict reports it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from testbed.measure.fidelity.verdict import Finding, check
from testbed.measure.result_model import ResultModel
from testbed.net.paths.congestion.linux_tcp import MIN_RTO_S
from testbed.net.paths.congestion.reno import RESPONSE_FACTOR
from testbed.spec.links import WanLink
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology
from testbed.workload.job.job import Workload

LEAST_PACKETS = 4  # per message: with fewer, the store-and-forward delay of single packets becomes visible
LEAST_QUEUE_PACKETS = 20  # with fewer, the initial windows of two connections (RFC 6928) overflow the queue
LARGEST_OVERHEAD = 0.1
MATHIS = round(RESPONSE_FACTOR, 2)


@dataclass(frozen=True)
class Traffic:
    """The traffic of a step, in real figures.

    `message_bytes` is the size of its largest message, and `gradient_bytes` the total that it reduces. `overhead_s` is
    the software cost per message in the real network, and `emulated_overhead_s` the cost in the emulation, in emulated
    seconds.
    """

    message_bytes: float
    gradient_bytes: float
    compute_s: float
    overhead_s: float
    emulated_overhead_s: float


class DimensionlessNumber(ResultModel):
    """A dimensionless number that characterises the network, before and after scaling."""

    name: str
    real: float = Field(description="In the modelled network.")
    emulated: float = Field(description="In the emulated network.")
    preserved: bool = Field(description="Whether scaling preserves it.")
    meaning: str
    harm: SkipJsonSchema[str | None] = Field(default=None, exclude=True)
    """Why results do not transfer, if they do not; not written to files."""

    @classmethod
    def of(
        cls, name: str, real: float, emulated: float, meaning: str, harm: str | None = None
    ) -> DimensionlessNumber:
        """Return the number; it counts as preserved if the values of both networks agree to within one percent."""
        preserved = math.isclose(real, emulated, rel_tol=0.01)
        return cls(name=name, real=real, emulated=emulated, preserved=preserved, meaning=meaning, harm=harm)


def dimensionless(
    real: Topology, emulated: Topology, scale: Scale, traffic: Traffic
) -> Iterator[DimensionlessNumber]:
    """Yield a scenario's numbers; those of WAN links describe the link with the largest bandwidth-delay product."""
    number, mtu, message_bytes = DimensionlessNumber.of, real.mtu, traffic.message_bytes
    emulated_bytes = scale.emulated_bytes(message_bytes)
    nic, emulated_nic = (min(host.nic.rate_bps for host in one.hosts) for one in (real, emulated))
    if traffic.compute_s:
        yield number(
            "communication over computing",
            traffic.gradient_bytes * 8 / nic / traffic.compute_s,
            scale.emulated_bytes(traffic.gradient_bytes)
            * 8
            / emulated_nic
            / scale.emulated_s(traffic.compute_s),
            "gradients over NIC rate x computing",
        )
    packets, emulated_packets = message_bytes / mtu, emulated_bytes / mtu
    harm = None
    if emulated_packets < LEAST_PACKETS <= packets:
        harm = (
            f"The largest message is {emulated_packets:.2g} packets here and {packets:.3g} in the modelled network: "
            "it cannot be pipelined along its path as it would be there."
        )
    yield number("packets per message", packets, emulated_packets, "largest message over the MTU", harm)
    overhead = traffic.overhead_s / (message_bytes * 8 / nic)
    emulated_overhead = traffic.emulated_overhead_s / (emulated_bytes * 8 / emulated_nic)
    harm = None
    if emulated_overhead > max(LARGEST_OVERHEAD, 2 * overhead):
        harm = (
            f"Software takes {emulated_overhead:.0%} of a message's time on the NIC here, and {overhead:.2%} in the "
            "modelled network."
        )
    meaning = "cost per message over its time on the NIC"
    yield number("software share of a message", overhead, emulated_overhead, meaning, harm)
    if real.wan:
        index = max(range(len(real.wan)), key=lambda at: _bdp_bytes(real.wan[at]))
        yield from _link_numbers(real.wan[index], emulated.wan[index], mtu, scale, message_bytes)
        yield _shortest_queue(real, emulated)


def _shortest_queue(real: Topology, emulated: Topology) -> DimensionlessNumber:
    queues, emulated_queues = (
        [min(link.a_to_b.queue_bytes, link.b_to_a.queue_bytes) / one.mtu for link in one.wan]
        for one in (real, emulated)
    )
    emulated_packets = min(emulated_queues)
    index = emulated_queues.index(emulated_packets)
    name, packets, harm = real.wan[index].name, queues[index], None
    if emulated_packets < LEAST_QUEUE_PACKETS <= packets:
        harm = (
            f"The queue of {name} holds {emulated_packets:.2g} packets here and {packets:.3g} in the modelled "
            "network: it drops bursts that would fit there. Use a larger queue or a smaller size scale."
        )
    return DimensionlessNumber.of(
        "packets per queue", packets, emulated_packets, f"the shortest, of {name}", harm
    )


def _link_numbers(
    real: WanLink, emulated: WanLink, mtu: int, scale: Scale, message_bytes: float
) -> Iterator[DimensionlessNumber]:
    number, bdp, emulated_bdp = DimensionlessNumber.of, _bdp_bytes(real), _bdp_bytes(emulated)
    yield number(
        "bandwidth-delay product over message",
        bdp / message_bytes,
        emulated_bdp / scale.emulated_bytes(message_bytes),
        f"of {real.name}, over the largest message",
    )
    yield number("packets per bandwidth-delay product", bdp / mtu, emulated_bdp / mtu, f"of {real.name}")
    if round_trip_s := real.round_trip_s:
        rto = MIN_RTO_S / round_trip_s
        emulated_rto = scale.emulated_s(MIN_RTO_S) / emulated.round_trip_s
        yield number("shortest timeout over round trip", rto, emulated_rto, f"TCP's, of {real.name}")
    if loss := max(direction.mean_loss for direction in (real.a_to_b, real.b_to_a)):
        limit, emulated_limit = (bytes_ / mtu * math.sqrt(loss) / MATHIS for bytes_ in (bdp, emulated_bdp))
        harm = None
        if emulated_limit < 1 < limit:
            harm = (
                f"Loss limits a connection of the modelled network to 1/{limit:.3g} of the link's rate, but not here, "
                "as the bandwidth-delay product has too few packets. Dilate time instead of scaling sizes."
            )
        meaning = f"of {real.name}: one loss-based connection, after Mathis"
        yield number("rate over what loss lets TCP reach", limit, emulated_limit, meaning, harm)


def _bdp_bytes(link: WanLink) -> float:
    return max(link.a_to_b.rate_bps, link.b_to_a.rate_bps) / 8 * link.round_trip_s


@check("no number beyond where results transfer", "caution")
def scale_similarity(numbers: Sequence[DimensionlessNumber], scale: Scale) -> Finding:
    """Check that the scale model preserves everything that matters in this scenario."""
    if scale.is_one:
        return Finding("not scaled", "The run is not scaled.")
    harms = [number.harm for number in numbers if number.harm]
    preserved = [number.name for number in numbers if number.preserved]
    return Finding(
        f"{len(harms)} beyond",
        harms[0]
        if harms
        else f"The scale model preserves {', '.join(preserved)}; what it changes stays within harmless bounds.",
        not harms,
    )


def run_numbers(
    scenario: Scenario, topology: Topology, workload: Workload, scale: Scale, overhead_s: float
) -> list[DimensionlessNumber]:
    """Return the dimensionless numbers of a run.

    Args:
        scenario: The scenario with real figures.
        topology: The emulated topology.
        workload: The emulated workload.
        scale: The scale in force.
        overhead_s: Software cost per message, in emulated seconds.
    """
    cost = scenario.transport.software_cost
    traffic = Traffic(
        message_bytes=scale.real_bytes(workload.message_bytes),
        gradient_bytes=scale.real_bytes(workload.rank_bytes),
        compute_s=scale.real_s(workload.compute_s),
        overhead_s=cost.per_message_s + cost.handover_s,
        emulated_overhead_s=overhead_s,
    )
    return list(dimensionless(scenario.topology.resolve(), topology, scale, traffic))
