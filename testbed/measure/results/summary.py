"""Computes a summary's figures from samples, counters and sockets. Pure: no clock, files or network."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from testbed.comm.collectives import between_groups
from testbed.measure.results.link_summary import LinkReadings, link_ends, plane_balance, wan_use
from testbed.measure.results.records import LinkKey
from testbed.spec.buildings import Host
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.workload.plan import COMPUTING

LATENCY_BOUND_BELOW = 0.6  # a link busy for a smaller share of the step than this did not set its pace
SLOWER = 1.1  # than predicted
COMPUTE_BOUND_BELOW = 0.05  # exposed communication as a share of the step below which computing limits


@dataclass(frozen=True)
class StepResult:
    """One measured step of all ranks together; times in seconds of CLOCK_MONOTONIC.

    disturbed: whether, of replicas that come and go, some were not there, or caught up meanwhile.
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
        """From the common start until the last rank ended."""
        return self.end_s - self.start_s


def first_start_s(samples: Sequence[Mapping[str, Any]]) -> float:
    """When the first of these steps began."""
    return float(min(sample["start_s"] for sample in samples if sample["operation"] == "step"))


def gather_steps(samples: Sequence[Mapping[str, Any]], ranks: int) -> list[StepResult]:
    """Put the ranks' samples together, step by step, in the order in which they ran.

    Compute time of a step is the largest sum of computing of any rank. ValueError when a rank's part is missing.
    """
    whole: dict[int, list[Mapping[str, Any]]] = {}
    computing: dict[tuple[int, int], float] = {}
    for sample in samples:
        if sample["operation"] == "step":
            whole.setdefault(sample["step"], []).append(sample)
        elif sample["operation"] in COMPUTING:
            key = (sample["step"], sample["rank"])
            computing[key] = computing.get(key, 0.0) + sample["end_s"] - sample["start_s"]
    results = []
    for step, parts in sorted(whole.items()):
        comes_and_goes = "replicas" in parts[0]
        if len(parts) != ranks and not comes_and_goes:
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
                disturbed=comes_and_goes and (len(parts) < ranks or any(map(_stirred, parts))),
            )
        )
    return results


def _stirred(part: Mapping[str, Any]) -> bool:
    """Whether a rank had to stop in a step, or gave its state to one that returned."""
    return bool(part["stopped_s"] or part["given_bytes"] or part.get("checkpoint_bytes"))


def slower(step_time_s: float, predicted_s: float | None) -> bool:
    """Whether a step took longer than the model says, by more than that is off on clean networks:
    docs/explanation/model.md.
    """
    return predicted_s is not None and step_time_s > SLOWER * predicted_s


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Median, 95th percentile (nearest rank), extremes, count and the values themselves."""
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


def undisturbed(steps: Sequence[StepResult]) -> Sequence[StepResult]:
    """Those in which all took part; all where there are none."""
    return [step for step in steps if not step.disturbed] or steps


def middle_step(steps: Sequence[StepResult]) -> StepResult:
    """The one of middle duration; the shorter of the two middle ones when their number is even.

    Of steps in which all took part, where there are any.
    """
    steps = undisturbed(steps)
    return sorted(steps, key=lambda step: (step.step_time_s, step.index))[(len(steps) - 1) // 2]


def nic_use(topology: Topology, steps: Sequence[StepResult], hosts: Sequence[str]) -> tuple[str, float]:
    """The busiest NIC direction and its utilisation by payload (median over the steps); `hosts` by rank."""
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


def limited_by(
    step_time_s: float,
    exposed_comm_s: float,
    compute_s: float,
    wan: Sequence[Mapping[str, Any]],
    nic: tuple[str, float],
) -> str:
    """One sentence on what set the pace: computing, the busiest link, or waiting for answers.

    A link counts as the limit when it was busy for at least 60 % of the time in which it could have been: backward and
    exposed communication are at least the exposed part, so its busy time is set against the larger of both.
    """
    if exposed_comm_s < COMPUTE_BOUND_BELOW * step_time_s:
        return f"computing: {compute_s / step_time_s:.0%} of the step, communication is hidden behind it"
    busiest = max(wan, key=lambda row: float(row["utilisation"]), default=None)
    wan_share = float(busiest["utilisation"]) if busiest else 0.0
    window = max(exposed_comm_s, step_time_s - compute_s / 3) / step_time_s  # forward, a third, sends nothing
    if busiest is not None and wan_share >= nic[1] and wan_share / window >= LATENCY_BOUND_BELOW:
        here, there = link_ends(busiest)
        return (
            f"WAN link {here} to {there}, plane {busiest['plane']}: busy {wan_share:.0%} of the step, "
            f"{min(1.0, wan_share / window):.0%} of the communication"
        )
    if nic[1] / window >= LATENCY_BOUND_BELOW:
        return (
            f"{nic[0]}: busy {nic[1]:.0%} of the step, {min(1.0, nic[1] / window):.0%} of the communication"
        )
    most = "no WAN link" if busiest is None else f"the busiest WAN link only {wan_share:.0%}"
    return f"latency and rounds of messages: {most}, the busiest NIC {nic[1]:.0%} of the step"


def held_against(predicted_s: float, measured_s: float) -> dict[str, float]:
    """A predicted step time, and by which part it is off."""
    return {"step_time_s": predicted_s, "error": predicted_s / measured_s - 1}


def summarise_variant(
    topology: Topology,
    scale: Scale,
    *,
    name: str,
    algorithm: str,
    policy: str,
    hosts: Sequence[Host],
    steps: Sequence[StepResult],
    readings: Mapping[LinkKey, LinkReadings],
    connections: Sequence[Mapping[str, Any]],
    expected_wan_bytes: float,
    verdict: Mapping[str, Any],
    predicted_s: float | None,
) -> dict[str, Any]:
    """One variant's entry in a summary, in real units. hosts: by rank.

    `topology`, steps and `expected_wan_bytes` are emulated. predicted_s: what the model says of a step, None where it
    says nothing.
    """
    buildings = [topology.building(host.building).index for host in hosts]
    times = distribution([scale.real_s(step.step_time_s) for step in steps])
    compute_s = distribution([scale.real_s(step.compute_s) for step in steps])["median"]
    exposed_s = distribution([scale.real_s(step.step_time_s - step.compute_s) for step in steps])["median"]
    whole = undisturbed(steps)
    spans, places = [(step.start_s, step.end_s) for step in steps], [steps.index(step) for step in whole]
    wan = wan_use(topology, readings, spans, scale, places)
    nic = nic_use(topology, whole, [host.name for host in hosts])
    observed = [between_groups(step.sent_bytes, buildings) for step in whole]
    return {
        "name": name,
        "algorithm": algorithm,
        "policy": policy,
        "ranks": len(hosts),
        "step_time_s": times,
        "predicted": None if predicted_s is None else held_against(predicted_s, times["median"]),
        "compute_s": compute_s,
        "exposed_comm_s": exposed_s,
        "wan_bytes": {
            "expected": round(scale.real_bytes(expected_wan_bytes)),
            "observed": round(scale.real_bytes(distribution(observed)["median"])),
        },
        "wan_links": wan,
        "plane_balance": plane_balance(wan),
        "connections": list(connections),
        "limited_by": limited_by(times["median"], exposed_s, compute_s, wan, nic),
        "verdict": dict(verdict),
    }


CONFIDENCE = 0.95


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower and upper end of an interval for the median, by order statistics, and its confidence.

    The narrowest pair of samples, as many from either end, of 0.95 or more; of fewer than six the least and the
    largest, whose confidence is less. It takes the trials to be independent, and nothing of their distribution.
    """
    ordered, count = sorted(samples), len(samples)
    inside = [(rank, _confidence(count, rank)) for rank in range(1, count // 2 + 1)]
    sure = [entry for entry in inside if entry[1] >= CONFIDENCE]
    rank, confidence = sure[-1] if sure else (1, _confidence(count, 1))
    return ordered[rank - 1], ordered[count - rank], confidence


def _confidence(count: int, rank: int) -> float:
    """That a median lies between the samples of that rank from below and from above."""
    return max(0.0, 1.0 - 2.0 * sum(comb(count, below) for below in range(rank)) / float(2**count))


COUNTS = ("retransmits", "parity", "marked")
# of a rank's card, the same whichever of its connections tells: as sender, as receiver
WENT_BACK, OUT_OF_SEQUENCE = "went_back", "out_of_sequence"
SOCKET_COUNTERS = frozenset(("bytes_acked", *COUNTS, WENT_BACK, OUT_OF_SEQUENCE))
CONNECTION = "rank", "peer", "dscp", "channel"  # what tells a connection from others of a run


def socket_use(
    readings: Iterable[Mapping[str, Any]],
    steps: Sequence[StepResult],
    buildings: Sequence[str],
    scale: Scale,
) -> list[dict[str, Any]]:
    """Round trips and retransmissions of the connections between buildings, by direction of the data.

    readings: as in `sockets.jsonl`, in the order of their times; buildings: by rank. `rtt_s`: least, median and largest
    smoothed round trip of all readings during steps, real seconds; `retransmits`: segments sent again during all steps;
    of datagrams `parity` and `marked`, too: packets of parity, and packets that links have marked. Of RDMA `went_back`:
    how often cards of `from` began to send again, to whomever; `out_of_sequence`: how often cards of `to` told of
    holes.
    """
    connections: dict[tuple[int, ...], tuple[list[float], list[Mapping[str, Any]]]] = {}
    cards: dict[int, tuple[list[float], list[Mapping[str, Any]]]] = {}
    for reading in readings:
        key = tuple(reading[name] for name in CONNECTION)
        times, own = connections.setdefault(key, ([], []))
        times.append(reading["time_s"])
        own.append(reading)
        if WENT_BACK in reading:  # not of bytes, which are a connection's
            times, card = cards.setdefault(reading["rank"], ([], []))
            times.append(reading["time_s"])
            card.append({name: reading[name] for name in (WENT_BACK, OUT_OF_SEQUENCE)})
    groups: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for key in connections:
        ends = buildings[key[0]], buildings[key[1]]
        if ends[0] != ends[1]:
            groups.setdefault(ends, []).append(key)
    rows = []
    for (here, there), keys in sorted(groups.items()):
        round_trips: list[float] = []
        counts = dict.fromkeys(COUNTS[:1], 0)
        for key in keys:
            times, own = connections[key]
            for step in steps:
                first, last = bisect_right(times, step.start_s), bisect_right(times, step.end_s)
                round_trips += [scale.real_s(entry["rtt_s"]) for entry in own[first:last] if entry["rtt_s"]]
            for name in COUNTS:
                if (grown := _grown(times, own, steps, name)) is not None:
                    counts[name] = counts.get(name, 0) + grown
        for name, building in ((WENT_BACK, here), (OUT_OF_SEQUENCE, there)):
            told = [_grown(*card, steps, name) for rank, card in cards.items() if buildings[rank] == building]
            if any(grown is not None for grown in told):
                counts[name] = sum(grown or 0 for grown in told)
        row: dict[str, Any] = {"from": here, "to": there, "connections": len(keys)}
        if round_trips:
            shown = min(round_trips), statistics.median(round_trips), max(round_trips)
            row["rtt_s"] = dict(zip(("min", "median", "max"), shown, strict=True))
        rows.append({**row, "retransmits": counts.pop("retransmits"), **counts})
    return rows


def _grown(
    times: Sequence[float], own: Sequence[Mapping[str, Any]], steps: Sequence[StepResult], name: str
) -> int | None:
    """By how much a connection's count has grown over all steps; None where it has none.

    times: of its readings `own`.
    """
    found: int | None = None
    for step in steps:
        first, last = bisect_right(times, step.start_s), bisect_right(times, step.end_s)
        if not last or name not in own[last - 1]:
            continue
        latest, before = own[last - 1], own[first - 1] if first else {}
        if before and latest.get("bytes_acked", 0) < before.get("bytes_acked", 0):
            before = own[first]  # the connection was made anew
        found = (found or 0) + latest[name] - before.get(name, 0)
    return found
