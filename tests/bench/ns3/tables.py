"""What both instruments found beside theory, as Markdown, and whether the goals are met."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.bench.ns3.cells import (
    ACCESS_FRAME_S,
    BURST,
    FRAME_S,
    LINE_BPS,
    MESSAGE_BYTES,
    ONE,
    RTTS_S,
    SEGMENT_BYTES,
    SENDERS,
    Flows,
    Frames,
    round_trip_s,
)
from tests.bench.ns3.theory import Path, Replayed, Rules, pollaczek_khinchine, replay, replay_queue

Found = dict[str, Any]
Look = Callable[[Flows | Frames], Found]
GOODPUT, QUEUE, LOSSY_GOODPUT, MD1, FRAME_DELAY_S, SPACING_NS = 0.02, 0.10, 0.05, 0.02, 1e-7, 64
TOLD_ROUND_TRIPS, NOT_FULL = 10, 0.9
GOALS = (
    "Goals: without loss, goodput within 2 % and the mean wait in the queue within 10 % of ns-3 or of theory; with "
    "loss, goodput within 5 % of theory with the run's own losses (for CUBIC, as in Linux); M/D/1 within 2 % of a FIFO "
    "replayed with the same arrivals; one frame's delay within 0.1 us; a burst's frames one frame time apart, within "
    "the 64 ns of the kernel's shaper."
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def yes(met: bool) -> str:
    """For the last column."""
    return "yes" if met else "**no**"


def near(value: float, wanted: Iterable[float], share: float) -> bool:
    """Whether it is within that share of one of them."""
    return any(abs(value - one) <= share * one for one in wanted)


def mbit(bps: float) -> str:
    """Of a goodput."""
    return f"{bps / 1e6:.2f}"


def ms(seconds: float) -> str:
    """Of a wait."""
    return f"{seconds * 1e3:.2f}"


def path_of(cell: Flows) -> Path:
    """The link as theory sees it."""
    return Path(round_trip_s(cell), 1 / FRAME_S, cell.queue_frames)


def theory_of(cell: Flows, found: Found, cubic: Rules = "cubic") -> Replayed | None:
    """Over what this run lost by chance and by its queue; over the queue's alone where nothing is lost by chance."""
    rules: Rules = cubic if cell.congestion_control == "cubic" else "reno"
    if not cell.loss:
        return replay_queue(rules, path_of(cell))
    events = told_apart(cell, found)
    if len(events) < 3:
        return None
    return replay(rules, path_of(cell), [count for _, count in events], events[1][0] - events[0][0])


def told_apart(cell: Flows, found: Found) -> list[tuple[float, float]]:
    """A run's congestion events from the first on whose window can be told from the time to the next.

    Theory begins with that window. A full link carries the same with any that is large enough, and a few round trips
    are too few.
    """
    (events,) = found["events"]
    path = path_of(cell)
    for number, ((from_s, before), (to_s, after)) in enumerate(itertools.pairwise(events)):
        if len(events) - number < 3:
            break
        filled = (after - before) / (to_s - from_s) / path.frames_per_s
        if to_s - from_s > TOLD_ROUND_TRIPS * path.round_trip_s and filled < NOT_FULL:
            return list(events[number:])
    return list(events)


def between_losses(cell: Flows, found: Found) -> float:
    """Segments a second from the second congestion event to the last, which is what theory replays."""
    events = told_apart(cell, found)
    (first_s, first), (last_s, last) = events[1], events[-1]
    return float((last - first) / (last_s - first_s))


def mean(values: Iterable[float]) -> float:
    """NaN of none."""
    listed = list(values)
    return statistics.fmean(listed) if listed else float("nan")


def dumbbells(cells: Sequence[Flows], ns3: Look, ours: Look) -> tuple[str, str]:
    """(without loss, with loss): each a table."""
    groups: dict[str, list[Flows]] = {}
    for cell in cells:
        groups.setdefault(cell.name, []).append(cell)
    clean: list[list[str]] = []
    lossy: list[list[str]] = []
    for name, group in groups.items():
        if group[0].loss:
            lossy.append(_lossy_row(name, group, ns3, ours))
        else:
            clean.append(_clean_row(name, group[0], ns3, ours))
    head = ["flow, round trip, queue, loss"]
    three = "ns-3, testbed, theory"
    return (
        table(
            [
                *head,
                f"goodput, Mbit/s: {three}",
                f"mean wait, ms: {three}",
                f"longest wait, ms: {three}",
                "drops: ns-3, testbed",
                "goal met",
            ],
            clean,
        ),
        table(
            [
                *head,
                "goodput, Mbit/s: ns-3, testbed",
                "error against Mathis or RFC 8312 with its own losses: ns-3, testbed",
                "testbed's error against CUBIC in Linux",
                "error against RFC 9438: ns-3, testbed",
                "mean wait, ms: ns-3, testbed",
                "lost + dropped: ns-3, testbed",
                "goal met",
            ],
            lossy,
        ),
    )


def _clean_row(name: str, cell: Flows, ns3: Look, ours: Look) -> list[str]:
    there, here, theory = ns3(cell), ours(cell), theory_of(cell, {})
    assert theory is not None
    says = theory.frames_per_s * SEGMENT_BYTES * 8
    (goodput,) = here["goodput_bps"]
    met = near(goodput, (there["goodput_bps"][0], says), GOODPUT)
    met &= near(here["mean_wait_s"], (there["mean_wait_s"], theory.mean_wait_s), QUEUE)
    return [
        name,
        ", ".join(mbit(value) for value in (there["goodput_bps"][0], goodput, says)),
        ", ".join(ms(value) for value in (there["mean_wait_s"], here["mean_wait_s"], theory.mean_wait_s)),
        ", ".join(ms(value) for value in (there["peak_wait_s"], here["peak_wait_s"], theory.peak_wait_s)),
        f"{there['dropped']}, {here['dropped']}",
        yes(met),
    ]


def _lossy_row(name: str, group: Sequence[Flows], ns3: Look, ours: Look) -> list[str]:
    goodputs, offs, newest, waits, lost = [], [], [], [], []
    cubic = group[0].congestion_control == "cubic"
    for look in (ns3, ours):
        runs = [look(cell) for cell in group]
        goodputs.append(mean(found["goodput_bps"][0] for found in runs))
        offs.append(_off_theory(group, look, "cubic"))
        newest.append(_off_theory(group, look, "cubic_9438"))
        waits.append(mean(found["mean_wait_s"] for found in runs))
        lost.append(f"{sum(found['lost'] for found in runs)} + {sum(found['dropped'] for found in runs)}")
    of_linux = _off_theory(group, ours, "cubic_linux")
    return [
        name,
        ", ".join(map(mbit, goodputs)),
        ", ".join(f"{off:+.1%}" for off in offs),
        f"{of_linux:+.1%}" if cubic else "",
        ", ".join(f"{off:+.1%}" for off in newest) if cubic else "",
        ", ".join(map(ms, waits)),
        ", ".join(lost),
        yes(abs(of_linux) <= LOSSY_GOODPUT),
    ]


def _off_theory(group: Sequence[Flows], look: Look, cubic: Rules) -> float:
    """All runs together; NaN where none had losses enough."""
    seen = says = 0.0
    for cell in group:
        theory = theory_of(cell, look(cell), cubic)
        if theory is not None:
            seen += between_losses(cell, look(cell))
            says += theory.frames_per_s
    return seen / says - 1 if says else float("nan")


def round_trips(cells: Sequence[Flows], ns3: Look, ours: Look) -> str:
    """Goodput by round trip, means over the seeds; the goal is on the sum."""
    rows = []
    for control in ("reno", "cubic"):
        group = [cell for cell in cells if cell.congestion_control == control]
        each = [
            [mean(look(cell)["goodput_bps"][i] for cell in group) for i in range(len(RTTS_S))]
            for look in (ns3, ours)
        ]
        for rtt_s, there, here in zip(RTTS_S, *each, strict=True):
            rows.append([control, f"{rtt_s * 1e3:g} ms", mbit(there), mbit(here), ""])
        sums = [sum(column) for column in each]
        rows.append([control, "total", *map(mbit, sums), yes(near(sums[1], (sums[0], LINE_BPS), GOODPUT))])
    return table(["flow", "round trip", "ns-3, Mbit/s", "testbed, Mbit/s", "goal met"], rows)


def incast(cells: Sequence[Flows], ns3: Look, ours: Look) -> str:
    """Until the last message is complete."""
    least_s = SENDERS * MESSAGE_BYTES * 8 / LINE_BPS + round_trip_s(cells[0])
    rows = []
    for name, look in (("ns-3", ns3), ("testbed", ours)):
        lasts = [max(look(cell)["done_s"]) for cell in cells]
        drops = [look(cell)["dropped"] for cell in cells]
        unfinished = sum(min(look(cell)["done_s"]) < 0 for cell in cells)
        said = f"{statistics.median(lasts):.3f} s ({min(lasts):.3f} to {max(lasts):.3f})"
        rows.append([name, f"{least_s:.3f} s", said, f"{statistics.median(drops):.0f}", str(unfinished)])
    return table(["", "at line rate", "last message complete", "drops", "incomplete rounds"], rows)


def frames(cells: Sequence[Frames], ns3: Look, ours: Look) -> str:
    """M/D/1: mean sojourn, what else the path takes left out."""
    rows = []
    for cell in cells:
        assert cell.load is not None
        there, here = ns3(cell), ours(cell)
        took = [found["took_s"] - cell.delay_s - 2 * ACCESS_FRAME_S for found in (there, here)]
        off = took[1] / here["fifo_s"] - 1
        rows.append(
            [
                f"{cell.load:g}",
                str(cell.count),
                f"{pollaczek_khinchine(cell.load, FRAME_S) * 1e6:.2f}",
                f"{there['fifo_s'] * 1e6:.2f}, {here['fifo_s'] * 1e6:.2f}",
                f"{took[0] * 1e6:.2f}, {took[1] * 1e6:.2f}",
                f"{off:+.2%}",
                yes(abs(off) <= MD1),
            ]
        )
    head = [
        "load",
        "frames",
        "Pollaczek and Khinchine, us",
        "FIFO with the same arrivals: ns-3's, testbed's",
    ]
    return table([*head, "measured: ns-3, testbed", "testbed's error against its FIFO", "goal met"], rows)


def single_frames(ns3: Look, ours: Look) -> str:
    """One frame over all hops, and a burst."""
    there, here = ns3(ONE), ours(ONE)
    says = ONE.delay_s + FRAME_S + 2 * ACCESS_FRAME_S
    off_s = here["took_s"] - says
    rows = [
        [
            "one frame from socket to socket, us",
            *(f"{value * 1e6:.3f}" for value in (says, there["took_s"], here["took_s"])),
            f"{off_s * 1e6:+.3f}",
            yes(abs(off_s) <= FRAME_DELAY_S),
        ]
    ]
    there, here, says_ns = ns3(BURST), ours(BURST), FRAME_S * 1e9
    off_ns = max(abs(gap - says_ns) for gap in here["gaps_ns"])
    gaps = [
        f"{min(found['gaps_ns']) / 1e3:.3f} to {max(found['gaps_ns']) / 1e3:.3f}" for found in (there, here)
    ]
    what = f"spacing of {BURST.count} frames sent at once, us"
    rows.append([what, f"{says_ns / 1e3:.3f}", *gaps, f"{off_ns / 1e3:.3f}", yes(off_ns <= SPACING_NS)])
    return table(["measurement", "theory", "ns-3", "testbed", "testbed's error", "goal met"], rows)


def speed(cells: Sequence[Flows], ns3: Look, ours: Look) -> str:
    """CPU time for a gigabyte received, of the flows without loss."""
    rows = []
    for cell in cells:
        if cell.loss or cell.congestion_control != "cubic":
            continue
        row = [cell.name]
        for look in (ns3, ours):
            found = look(cell)
            gigabytes = found["goodput_bps"][0] * cell.duration_s / 8e9
            row.append(f"{found['cpu_s'] / gigabytes:.1f}")
        rows.append(row)
    return table(["flow, round trip, queue, loss", "ns-3, s/GB", "testbed, s/GB"], rows)
