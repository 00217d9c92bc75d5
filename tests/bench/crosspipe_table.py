"""Every figure of CrossPipe's tables 5 and 6 (arXiv:2507.00217, sections 7.2 and 7.3) beside what our model says.

    .venv/bin/python -m tests.bench.crosspipe_table [--csv FILE]

Seconds per microbatch: eight stages in two data centers (table 5) and in four (table 6), latency and time on the link
in multiples of T_F, in the paper's three cases. The pipeline is that of scenarios/crosspipe.yaml. Prints tables as
docs/evidence/training/crosspipe.md has them, with CrossWave as it was when it always left one place of its memory, and
by how much each schedule is off.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.workload.schedules import ScheduleRequest, schedule
from testbed.workload.schedules.actions import Order
from testbed.workload.schedules.greedy import Limits, greedy
from tests.bench.schedule_grid import FORWARD_MS, played, setting

BACKWARD_INPUT_MS = 33.4
STATIC, DYNAMIC = ("1F1B", "ZBH1", "ZBVZeroBubble"), ("CrossUDSub", "CrossUD", "CrossWave")
BEFORE = "CrossWave before"

# published seconds per microbatch: of 1F1B, ZBH1, ZBV, CrossUDSub, CrossUD, CrossWave; None where the paper has none
PUBLISHED: dict[tuple[int, float, float, int], tuple[float | None, ...]] = {
    (2, 0, 0, 1): (0.151, 0.133, 0.118, 0.137, 0.137, 0.119),
    (2, 0, 0, 2): (0.174, 0.168, 0.161, None, 0.165, 0.157),
    (2, 0, 0, 3): (None, None, None, 0.121, 0.118, 0.108),
    (2, 0.25, 0.25, 1): (0.168, 0.150, 0.148, 0.149, 0.142, 0.127),
    (2, 0.25, 0.25, 2): (0.193, 0.187, 0.177, None, 0.170, 0.159),
    (2, 0.25, 0.25, 3): (None, None, None, 0.123, 0.123, 0.112),
    (2, 0.25, 2, 1): (0.241, 0.230, 0.315, 0.181, 0.177, 0.250),
    (2, 0.25, 2, 2): (0.262, 0.259, 0.330, None, 0.185, 0.274),
    (2, 0.25, 2, 3): (None, None, None, 0.144, 0.150, 0.235),
    (2, 2, 0.25, 1): (0.242, 0.229, 0.314, 0.160, 0.153, 0.148),
    (2, 2, 0.25, 2): (0.262, 0.258, 0.329, None, 0.173, 0.163),
    (2, 2, 0.25, 3): (None, None, None, 0.127, 0.124, 0.115),
    (2, 2, 2, 1): (0.321, 0.309, 0.473, 0.198, 0.196, 0.256),
    (2, 2, 2, 2): (0.333, 0.331, 0.476, None, 0.196, 0.291),
    (2, 2, 2, 3): (None, None, None, 0.145, 0.147, 0.245),
    (4, 0, 0, 1): (0.149, 0.133, 0.119, 0.138, 0.138, 0.122),
    (4, 0, 0, 2): (0.173, 0.168, 0.160, None, 0.167, 0.157),
    (4, 0, 0, 3): (None, None, None, 0.123, 0.119, 0.115),
    (4, 0.25, 0.25, 1): (0.177, 0.158, 0.161, 0.155, 0.148, 0.141),
    (4, 0.25, 0.25, 2): (0.198, 0.190, 0.181, None, 0.173, 0.163),
    (4, 0.25, 0.25, 3): (None, None, None, 0.126, 0.123, 0.115),
    (4, 0.25, 2, 1): (0.269, 0.249, 0.339, 0.216, 0.217, 0.286),
    (4, 0.25, 2, 2): (0.274, 0.269, 0.331, None, 0.198, 0.290),
    (4, 0.25, 2, 3): (None, None, None, 0.158, 0.162, 0.262),
    (4, 2, 0.25, 1): (0.268, 0.248, 0.337, 0.200, 0.197, 0.214),
    (4, 2, 0.25, 2): (0.274, 0.269, 0.330, None, 0.184, 0.177),
    (4, 2, 0.25, 3): (None, None, None, 0.138, 0.138, 0.139),
    (4, 2, 2, 1): (0.359, 0.338, 0.512, 0.268, 0.271, 0.339),
    (4, 2, 2, 2): (0.349, 0.346, 0.479, None, 0.213, 0.295),
    (4, 2, 2, 3): (None, None, None, 0.178, 0.178, 0.264),
}


@dataclass(frozen=True)
class Case:
    """Of the paper: 1F1B's memory is 1. A layer that is computed again does so ahead of its input's gradient."""

    microbatches: int
    memory: float
    again: bool = False


# the second's memory is 1F1B's, too, but of microbatches that keep a layer's input alone: room for all that there are
CASES = {1: Case(16, 1), 2: Case(32, 4, again=True), 3: Case(32, 2)}


@dataclass(frozen=True)
class Row:
    """One schedule in one cell: seconds per microbatch."""

    centers: int
    latency: float
    time: float
    case: int
    schedule: str
    published_s: float
    model_s: float

    @property
    def off(self) -> float:
        """By which share the model is above the paper."""
        return self.model_s / self.published_s - 1


@schedule(chunks=2, split=True, by_costs=True)
def one_place_left(request: ScheduleRequest) -> tuple[Order, ...]:
    """CrossWave before it played out how many places a rank's first stage leaves to its second."""
    room = max(2, round(2 * request.memory * request.ranks))
    return greedy(
        request.there_and_back, request.microbatches, request.costs, Limits((room,) * request.ranks)
    )


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    rows = [row for cell, published in PUBLISHED.items() for row in tried(*cell, published)]
    if options.csv is not None:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            write_csv(rows, file)
    for case in CASES:
        print("\n".join(table(rows, case)) + "\n")
    print("\n".join(repaired(rows)) + "\n")
    print("\n".join(off_by(rows)))


def tried(
    centers: int, latency: float, time: float, number: int, published: tuple[float | None, ...]
) -> Iterator[Row]:
    """What the model says to each schedule that the paper has a figure of."""
    case = CASES[number]
    of_paper = {
        name: seconds
        for name, seconds in zip((*STATIC, *DYNAMIC), published, strict=True)
        if seconds is not None
    }
    asked = dict(of_paper) | ({BEFORE: of_paper["CrossWave"]} if "CrossWave" in of_paper else {})
    overrides = {
        "workload.schedule.memory": case.memory,
        "workload.schedule.microbatches": case.microbatches,
        "workload.stage.backward_input": f"{BACKWARD_INPUT_MS + FORWARD_MS * case.again} ms",
    }
    found = played((centers, latency, time), overrides, {label(name): variant(name) for name in asked})
    for name, published_s in asked.items():
        model_s = found[label(name)]["step_time_s"] / case.microbatches
        yield Row(centers, latency, time, number, name, published_s, model_s)


def label(name: str) -> str:
    """Of a variant."""
    return name.lower().replace(" ", "-")


def variant(name: str) -> dict[str, Any]:
    """What sets a schedule. Static ones post receives in order, as the paper's without its suffix _O."""
    named = f"{Path(__file__).resolve()}:one_place_left" if name == BEFORE else name
    return setting(named, "in_order" if name in STATIC else "early")


def table(rows: list[Row], case: int) -> Iterator[str]:
    """Markdown, in milliseconds: ours, the paper's, and by how much ours is above it."""
    mine = [row for row in rows if row.case == case and row.schedule != BEFORE]
    names = list(dict.fromkeys(row.schedule for row in mine))
    yield f"| case {case} | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for cell in cells(mine):
        figures = {row.schedule: row for row in mine if (row.centers, row.latency, row.time) == cell}
        words = (
            f"{1000 * row.model_s:.0f} / {1000 * row.published_s:.0f} ({percent(row.off)})"
            for row in map(figures.__getitem__, names)
        )
        yield f"| {named(cell)} | " + " | ".join(words) + " |"


def repaired(rows: list[Row]) -> Iterator[str]:
    """Markdown: CrossWave before and after, in the cases in which memory is short."""
    waves = {(row.centers, row.latency, row.time, row.case, row.schedule): row for row in rows}
    yield "| CrossWave | case 1: paper | one left | simulated | case 3: paper | one left | simulated |"
    yield "|---|---|---|---|---|---|---|"
    for cell in cells(rows):
        words = []
        for case in (1, 3):
            keys = [(*cell, case, name) for name in (BEFORE, "CrossWave")]
            before, now = map(waves.__getitem__, keys)
            words.append(f"{1000 * now.published_s:.0f}")
            words += [f"{1000 * row.model_s:.0f} ({percent(row.off)})" for row in (before, now)]
        yield f"| {named(cell)} | " + " | ".join(words) + " |"


def cells(rows: list[Row]) -> list[tuple[int, float, float]]:
    """Data centers, latency and time on the link."""
    return list(dict.fromkeys((row.centers, row.latency, row.time) for row in rows))


def named(cell: tuple[int, float, float]) -> str:
    """For people."""
    return f"{'two' if cell[0] == 2 else 'four'}, ({cell[1]}, {cell[2]})"


def percent(share: float) -> str:
    """With its sign, but for nothing."""
    return f"{round(100 * share, 1) + 0.0:+.1f} %"


def off_by(rows: list[Row]) -> Iterator[str]:
    """By how much each schedule is off, in each case: median of amounts, and the two ends."""
    yield "| schedule | case | median | from | to |"
    yield "|---|---|---|---|---|"
    for name in (*STATIC, *DYNAMIC, BEFORE):
        for case in CASES:
            offs = sorted(row.off for row in rows if row.schedule == name and row.case == case)
            if offs:
                middle = 100 * statistics.median(map(abs, offs))
                yield f"| {name} | {case} | {middle:.1f} % | {percent(offs[0])} | {percent(offs[-1])} |"


def write_csv(rows: list[Row], file: Any) -> None:
    """One line per schedule and cell."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ("centers", "latency_tf", "time_tf", "case", "schedule", "published_s", "model_s", "off_percent")
    )
    for row in rows:
        cell = (row.centers, row.latency, row.time, row.case, row.schedule)
        writer.writerow((*cell, row.published_s, f"{row.model_s:.4f}", f"{100 * row.off:.1f}"))


if __name__ == "__main__":
    main()
