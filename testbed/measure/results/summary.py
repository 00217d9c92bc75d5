"""Figures of `summary.json`, computed from samples, counters and sockets. Pure: no clock, files or network."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from operator import itemgetter
from typing import Any

from testbed.measure.results.records import LinkKey
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.workload.plan import COMPUTING

Record = Mapping[str, Any]
LATENCY_BOUND_BELOW = 0.6  # a link that is busy for a smaller share of the step does not limit the step
SLOWER = 1.1  # a step that takes longer than this factor times its prediction counts as slow
COMPUTE_BOUND_BELOW = 0.05  # below this share of exposed communication, a step is compute-bound


@dataclass(frozen=True)
class StepResult:
    """One measured step of all ranks; times are in seconds of CLOCK_MONOTONIC.

    `disturbed` is true if an elastic replica was missing or catching up during the step.
    """

    index: int
    variant: str
    trial: int
    start_s: float
    end_s: float
    compute_s: float
    sent_bytes: Mapping[tuple[int, int], int]
    wrong: int
    checked: int
    disturbed: bool = False

    @property
    def step_time_s(self) -> float:
        """Time from the common start until the last rank finished."""
        return self.end_s - self.start_s


def first_start_s(samples: Sequence[Record]) -> float:
    """Return when the first step started."""
    return float(min(sample["start_s"] for sample in samples if sample["operation"] == "step"))


def gather_steps(samples: Sequence[Record], ranks: int) -> list[StepResult]:
    """Combine the ranks' samples into steps, in execution order.

    A step's compute time is that of the rank that computes longest.

    Raises:
        ValueError: If the sample of a rank is missing from a step.
    """
    whole: dict[int, list[Record]] = defaultdict(list)
    computing: dict[tuple[int, int], float] = defaultdict(float)
    for sample in samples:
        if sample["operation"] == "step":
            whole[sample["step"]].append(sample)
        elif sample["operation"] in COMPUTING:
            # in this order, since it affects the last digit
            key = sample["step"], sample["rank"]
            computing[key] = computing[key] + sample["end_s"] - sample["start_s"]
    results = []
    for step, parts in sorted(whole.items()):
        is_elastic = "replicas" in parts[0]
        # a rank stopped, sent its state to a returning rank, or wrote a checkpoint
        is_interrupted = is_elastic and any(
            part["stopped_s"] or part["given_bytes"] or part.get("checkpoint_bytes") for part in parts
        )
        if len(parts) != ranks and not is_elastic:
            raise ValueError(f"step {step}: samples of {len(parts)} ranks, expected {ranks}")
        results.append(
            StepResult(
                index=step,
                variant=parts[0]["variant"],
                trial=parts[0]["trial"],
                start_s=min(part["start_s"] for part in parts),
                end_s=max(part["end_s"] for part in parts),
                compute_s=max(computing.get((step, part["rank"]), 0.0) for part in parts),
                sent_bytes={
                    (part["rank"], int(peer)): count
                    for part in parts
                    for peer, count in part["sent_bytes"].items()
                },
                wrong=sum(part["wrong"] for part in parts),
                checked=sum(part["checked"] for part in parts),
                disturbed=is_interrupted or (is_elastic and len(parts) < ranks),
            )
        )
    return results


def is_slower_than_predicted(step_time_s: float, predicted_s: float | None) -> bool:
    """Return whether a step took longer than predicted by more than the model's own error on clean networks.

    That error is documented in docs/explanation/model.md.
    """
    return predicted_s is not None and step_time_s > SLOWER * predicted_s


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Return the median, 95th percentile (nearest rank), extremes, count and the values themselves."""
    ordered = sorted(values)
    nearest = max(0, -(-95 * len(ordered) // 100) - 1)
    return {
        "median": statistics.median(ordered),
        "p95": ordered[nearest],
        "min": ordered[0],
        "max": ordered[-1],
        "n": len(ordered),
        "samples": list(values),
    }


def undisturbed_steps(steps: Sequence[StepResult]) -> Sequence[StepResult]:
    """Return the steps in which all replicas took part; all steps if there are none."""
    return [step for step in steps if not step.disturbed] or steps


def middle_step(steps: Sequence[StepResult]) -> StepResult:
    """Return the undisturbed step of median duration; the shorter of the two middle ones if their number is even."""
    steps = undisturbed_steps(steps)
    return sorted(steps, key=lambda step: (step.step_time_s, step.index))[(len(steps) - 1) // 2]


def find_busiest_nic(
    topology: Topology, steps: Sequence[StepResult], hosts: Sequence[str]
) -> tuple[str, float]:
    """Return the busiest NIC direction and its median utilisation by payload; `hosts` is by rank."""
    best = ("", 0.0)
    rates = {host.name: host.nic.rate_bps for host in topology.hosts}
    for rank, host in enumerate(hosts):
        for end in (0, 1):
            shares = [
                sum(count for ends, count in step.sent_bytes.items() if ends[end] == rank)
                * 8
                / (rates[host] * step.step_time_s)
                for step in steps
            ]
            if (share := statistics.median(shares)) > best[1]:
                best = (f"NIC of {host}, {'receiving' if end else 'sending'}", share)
    return best


def describe_bottleneck(
    step_time_s: float,
    exposed_comm_s: float,
    compute_s: float,
    wan: Sequence[Record],
    nic: tuple[str, float],
) -> str:
    """Describe in one sentence what limited the step: computation, the busiest link, or latency.

    A link is the limit if it was busy for at least 60 % of the time in which it could have been busy. That window is
    the backward pass (two thirds of computation) plus exposed communication, and never less than the exposed
    communication.
    """
    if exposed_comm_s < COMPUTE_BOUND_BELOW * step_time_s:
        return f"computing: {compute_s / step_time_s:.0%} of the step, communication is hidden behind it"
    busiest = max(wan, key=lambda row: float(row["utilisation"]), default=None)
    wan_share = float(busiest["utilisation"]) if busiest else 0.0
    # the forward pass, a third of computation, sends nothing
    window = max(exposed_comm_s, step_time_s - compute_s / 3) / step_time_s
    if busiest is not None and wan_share >= nic[1] and wan_share / window >= LATENCY_BOUND_BELOW:
        link = LinkKey.of(busiest)
        return (
            f"WAN link {link.source} to {link.target}, plane {link.plane}: busy {wan_share:.0%} of the step, "
            f"{min(1.0, wan_share / window):.0%} of the communication"
        )
    if nic[1] / window >= LATENCY_BOUND_BELOW:
        return (
            f"{nic[0]}: busy {nic[1]:.0%} of the step, {min(1.0, nic[1] / window):.0%} of the communication"
        )
    most = "no WAN link" if busiest is None else f"the busiest WAN link only {wan_share:.0%}"
    return f"latency and rounds of messages: {most}, the busiest NIC {nic[1]:.0%} of the step"


def compare_prediction(predicted_s: float, measured_s: float) -> dict[str, float]:
    """Return the fields of `Predicted`: a predicted step time and its relative error."""
    return {"step_time_s": predicted_s, "error": predicted_s / measured_s - 1}


CONFIDENCE = 0.95


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return a confidence interval for the median from order statistics: lower end, upper end, confidence.

    It is the narrowest symmetric pair of samples with a confidence of at least 0.95. With fewer than six samples it is
    the smallest and the largest sample, with a lower confidence. Samples must be independent; their distribution is
    arbitrary.
    """
    ordered, count = sorted(samples), len(samples)
    candidates = [(rank, _confidence(count, rank)) for rank in range(1, count // 2 + 1)]
    confident = [entry for entry in candidates if entry[1] >= CONFIDENCE]
    rank, confidence = confident[-1] if confident else (1, _confidence(count, 1))
    return ordered[rank - 1], ordered[count - rank], confidence


def _confidence(count: int, rank: int) -> float:
    """Return the probability that the median lies between the rank-th smallest and the rank-th largest sample."""
    return max(0.0, 1.0 - 2.0 * sum(comb(count, below) for below in range(rank)) / float(2**count))


COUNTS = ("retransmits", "parity", "marked")
# counters of a rank's NIC as sender and as receiver: every connection of the rank reports the same values
WENT_BACK, OUT_OF_SEQUENCE = "went_back", "out_of_sequence"
SOCKET_COUNTERS = frozenset(("bytes_acked", *COUNTS, WENT_BACK, OUT_OF_SEQUENCE))
CONNECTION = "rank", "peer", "dscp", "channel"  # the key of a connection within a run


def summarise_connections(
    readings: Iterable[Record],
    steps: Sequence[StepResult],
    buildings: Sequence[str],
    scale: Scale,
) -> list[dict[str, Any]]:
    """Return round-trip times and retransmissions of connections between buildings, as fields of `Connections`.

    Args:
        readings: Records of `sockets.jsonl`, in time order.
        steps: The measured steps.
        buildings: Building of each rank.
        scale: Converts emulated seconds to real ones.
    """
    connections: dict[tuple[int, ...], list[Record]] = defaultdict(list)
    nics: dict[int, list[Record]] = defaultdict(list)
    for reading in readings:
        connections[tuple(reading[name] for name in CONNECTION)].append(reading)
        if WENT_BACK in reading:  # without bytes_acked, which belongs to the connection
            nics[reading["rank"]].append(
                {name: reading[name] for name in ("time_s", WENT_BACK, OUT_OF_SEQUENCE)}
            )
    groups: dict[tuple[str, str], list[list[Record]]] = defaultdict(list)
    for key, own in connections.items():
        ends = buildings[key[0]], buildings[key[1]]
        if ends[0] != ends[1]:
            groups[ends].append(own)
    rows = []
    for (source, target), members in sorted(groups.items(), key=itemgetter(0)):
        round_trips: list[float] = []
        counts = dict.fromkeys(COUNTS[:1], 0)
        for own in members:
            for step in steps:
                first, last = _within(own, step)
                round_trips += [scale.real_s(entry["rtt_s"]) for entry in own[first:last] if entry["rtt_s"]]
            for name in COUNTS:
                if (growth := _growth(own, steps, name)) is not None:
                    counts[name] = counts.get(name, 0) + growth
        for name, building in ((WENT_BACK, source), (OUT_OF_SEQUENCE, target)):
            found = [_growth(nic, steps, name) for rank, nic in nics.items() if buildings[rank] == building]
            if any(growth is not None for growth in found):
                counts[name] = sum(growth or 0 for growth in found)
        row: dict[str, Any] = {"from": source, "to": target, "connections": len(members)}
        if round_trips:
            shown = min(round_trips), statistics.median(round_trips), max(round_trips)
            row["rtt_s"] = dict(zip(("min", "median", "max"), shown, strict=True))
        rows.append({**row, "retransmits": counts.pop("retransmits"), **counts})
    return rows


def _within(own: Sequence[Record], step: StepResult) -> tuple[int, int]:
    """Return the index of the first reading in a step, and the index after the last one."""
    first, last = (
        bisect_right(own, time_s, key=itemgetter("time_s")) for time_s in (step.start_s, step.end_s)
    )
    return first, last


def _growth(own: Sequence[Record], steps: Sequence[StepResult], name: str) -> int | None:
    """Return the growth of a counter over all steps, or None if there is no such counter."""
    found: int | None = None
    for step in steps:
        first, last = _within(own, step)
        if not last or name not in own[last - 1]:
            continue
        latest, before = own[last - 1], own[first - 1] if first else {}
        if before and latest.get("bytes_acked", 0) < before.get("bytes_acked", 0):
            before = own[first]  # the connection was re-established
        found = (found or 0) + latest[name] - before.get(name, 0)
    return found
