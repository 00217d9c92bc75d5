"""Effective training time against the time between failures: the model, calibrated with runs, beside the paper.

    .venv/bin/testbed run scenarios/faults/replica-loss.yaml --clock virtual -o /tmp/loss
    .venv/bin/testbed run scenarios/faults/effective-time.yaml --clock virtual -o /tmp/long
    .venv/bin/python benchmarks/effective_time.py /tmp/loss --held /tmp/long --picture
    docs/evidence/faults/effective-time.svg

What a failure costs is taken from the first run: stall, steps lost, how long the replica was away. --machine: how long
a lost machine takes to be replaced at the paper's scale, in which a lost replica is away. With --held the same model is
held against a run in which ranks die at random: its failures cost what they did in the mean, and came as they came.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from testbed.comm.replicas.effective_training import (
    PAPER_MTBF_S,
    PAPER_RESTART_EFFECTIVE,
    PAPER_RESTART_S,
    PAPER_TOLERANT_EFFECTIVE,
    FailureCost,
)
from testbed.measure.results.replication import ReplicaLoss, Replication
from testbed.measure.results.result import Result
from testbed.show.report.svg import Axis, Drawing, svg_document

LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 60, 190, 20, 320, 860, 360
MORE_REPLICAS = 64
LEAST_S, MOST_S = 300.0, 6 * 3600.0
TICKS_S = {300: "5 min", 600: "10 min", 1080: "18 min", 3600: "1 h", 3 * 3600: "3 h", 6 * 3600: "6 h"}
COLOURS = ("#5a6572", "#0072b2", "#d55e00", "#009e73")
STYLE = """
text { font: 13px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.tick { fill: #5a6572; font-size: 12px; } .grid { stroke: #d9dde3; } .page { fill: #ffffff; }
.paper { fill: #1b1f24; }
""" + "".join(
    f".c{number} {{ stroke: {colour}; stroke-width: 2; }} text.c{number} {{ fill: {colour}; stroke: none; }}\n"
    for number, colour in enumerate(COLOURS)
)


def cost_of(found: Replication, absent_s: float | None = None, restart_s: float | None = None) -> FailureCost:
    """What a loss cost in a run, in the mean; absent_s, restart_s: in place of what it had.

    Losses of which one comes before all are back from another are one incident, with one stall.
    """
    count = len(found.losses)
    stall_s = away_s = 0.0
    for losses in incidents(found.losses):
        longest_s = max(loss.stall_s for loss in losses)
        end_s = max(loss.time_s + (loss.full_s or 0.0) for loss in losses)
        stall_s += longest_s
        away_s += max(0.0, end_s - losses[0].time_s - longest_s)
    redone_s = found.period_s * found.steps_lost / count
    if found.mode == "restart":
        return FailureCost(stall_s / count if restart_s is None else restart_s, redone_s)
    each_s = away_s / count if absent_s is None else absent_s
    return FailureCost(stall_s / count, redone_s, each_s, found.replicas)


def incidents(losses: Sequence[ReplicaLoss]) -> list[list[ReplicaLoss]]:
    """Losses that overlap, put together."""
    made: list[list[ReplicaLoss]] = []
    end_s = -math.inf
    for loss in losses:
        if loss.time_s > end_s:
            made.append([])
        made[-1].append(loss)
        end_s = max(end_s, loss.time_s + (loss.full_s or math.inf))
    return made


def picture(curves: dict[str, FailureCost]) -> str:
    """Curves by name, and the paper's two figures."""
    drawing = Drawing(WIDTH, HEIGHT, "Effective training time against the time between failures")
    drawing.rect(0, 0, WIDTH, HEIGHT, "page")
    axis = Axis(math.log(LEAST_S), math.log(MOST_S), LEFT, WIDTH - RIGHT)
    up = Axis(0.0, 1.0, BOTTOM, TOP)
    for seconds, words in TICKS_S.items():
        x = axis(math.log(seconds))
        drawing.line((x, TOP), (x, BOTTOM), "grid")
        drawing.text(x, BOTTOM + 18, words, "tick", anchor="middle")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawing.line((LEFT, up(share)), (WIDTH - RIGHT, up(share)), "grid")
        drawing.text(LEFT - 8, up(share) + 4, f"{share:.0%}", "tick", anchor="end")
    points = [LEAST_S * (MOST_S / LEAST_S) ** (number / 120) for number in range(121)]
    for number, (name, cost) in enumerate(curves.items()):
        line = [(axis(math.log(one)), up(cost.effective(one))) for one in points]
        for start, end in pairwise(line):
            drawing.line(start, end, f"c{number}")
        drawing.text(WIDTH - RIGHT + 10, TOP + 20 + 22 * number, name, f"c{number}")
    for effective, words in ((PAPER_RESTART_EFFECTIVE, "restart"), (PAPER_TOLERANT_EFFECTIVE, "FT-HSDP")):
        drawing.circle(axis(math.log(PAPER_MTBF_S)), up(effective), 4, "paper")
        drawing.text(
            axis(math.log(PAPER_MTBF_S)) + 8, up(effective) + 14, f"{effective:.0%}, {words}, as published"
        )
    return svg_document(drawing.root, STYLE)


def main() -> None:
    """Say the figures, draw the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--held", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--machine", type=float, default=PAPER_RESTART_S, help="seconds")
    options = parser.parse_args()
    found = {one.name: one.replication for one in Result.open(options.run).variants if one.replication}
    curves = {}
    for name, replication in found.items():
        if replication.mode == "restart":
            curves[f"{name}, {PAPER_RESTART_S:.0f} s"] = cost_of(replication, restart_s=PAPER_RESTART_S)
        else:
            cost = cost_of(replication, absent_s=options.machine)
            curves[f"{name}, {cost.replicas} replicas"] = cost
    # the same, where a replica is a smaller part of the job
    curves[f"{name}, {MORE_REPLICAS} replicas"] = replace(cost, replicas=MORE_REPLICAS)
    for name, cost in curves.items():
        print(f"{name:24} costs {cost.lost_s:7.2f} s; at 18 min {cost.effective(PAPER_MTBF_S):.1%}")
    if options.picture is not None:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        options.picture.write_text(picture(curves))
    if options.held is not None:
        for one in Result.open(options.held).variants:
            if (own := one.replication) is None or not own.losses:
                continue
            mtbf_s = own.elapsed_s / len(own.losses)
            said = cost_of(own).effective(mtbf_s)
            print(
                f"{one.name:24} {len(own.losses)} losses, one in {mtbf_s:.1f} s: "
                f"measured {own.effective:.1%}, model {said:.1%}"
            )


if __name__ == "__main__":
    main()
