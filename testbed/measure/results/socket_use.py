"""From readings of the ranks' connections to figures per pair of buildings. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed.measure.results.summary import StepResult
from testbed.spec.scale import Scale

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
