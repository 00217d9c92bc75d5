"""Every schedule, the optimum and its bound, over latency, time on the link, data centers and memory, by the model.

    .venv/bin/python -m tests.bench.schedule_grid FILE.jsonl [--time-limit 24] [--centers 2] [--picture SVG]

The pipeline is that of scenarios/crosspipe.yaml: eight stages, 16 microbatches, T_F = 38 ms. A line per cell; what FILE
has already is not done again. Schedules without links in mind run as they stand there, receives in order, and a second
time with early receives; what needs more memory than the cell has is left out. At the end: by how much the optimum is
quicker than the quickest of them, and how far it can be from the best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from testbed.config import load_scenario
from testbed.model.dry_run import dry_runs
from testbed.report.svg import Drawing
from testbed.results.training_summary import prediction
from testbed.scale import Scale

SCENARIO = Path(__file__).parents[2] / "scenarios" / "crosspipe.yaml"
FORWARD_MS, ONE_FORWARD_GBIT, NONE_GBIT = 38, 212, 12_400
LATENCIES, TIMES = (0, 0.25, 0.5, 1, 2, 4), (0, 0.25, 1, 2, 4)
CENTERS = {2: "topologies/two-data-centers.yaml", 4: "topologies/four-data-centers.yaml"}
MEMORIES = (1, 2, 3)
STATIC = ("1F1B", "ZBH1", "ZBVZeroBubble", "GPipe", "Interleaved1F1B")
PLAYED = ("CrossUD", "CrossUDSub", "CrossWave")
STAGES, STAGE_BYTES = 8, 1_000_000_000
Cell = dict[str, Any]
SHADES = ("#f4f6f8", "#dde9f6", "#c2d9f0", "#a3c6e8", "#82b1df", "#5f9ad3", "#4385c5")
STYLE = """
text { font: 12px sans-serif; fill: #1c2530; }
.title { font-weight: 600; }
.page { fill: #ffffff; }
""" + "".join(f".g{number} {{ fill: {shade}; }}\n" for number, shade in enumerate(SHADES))


def main() -> None:
    """Do what is missing, print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--time-limit", type=float, default=24)
    parser.add_argument("--centers", type=int, nargs="*", choices=list(CENTERS), default=list(CENTERS))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    cells = (
        [json.loads(line) for line in options.file.read_text().splitlines()] if options.file.exists() else []
    )
    done = {(cell["centers"], cell["memory"], cell["latency"], cell["time"]) for cell in cells}
    for centers, memory, latency, time in itertools.product(options.centers, MEMORIES, LATENCIES, TIMES):
        if (centers, memory, latency, time) in done:
            continue
        cell = tried(centers, memory, latency, time, options.time_limit)
        cells.append(cell)
        with options.file.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        print(line_of(cell), flush=True)
    summary(cells)
    if options.picture is not None:
        options.picture.write_text(picture(cells))


def tried(centers: int, memory: float, latency: float, time: float, limit_s: float) -> Cell:
    """Seconds of a step of every schedule that fits."""
    overrides = {"workload.schedule.memory": memory, "workload.schedule.time_limit": f"{limit_s} s"}
    links = 1 if centers == 2 else 3
    for link in range(links):
        overrides[f"topology.wan.{link}.delay"] = f"{latency * FORWARD_MS} ms"
        overrides[f"topology.wan.{link}.rate"] = f"{ONE_FORWARD_GBIT / time if time else NONE_GBIT} Gbit/s"
    variants: dict[str, dict[str, Any]] = {}
    for name in STATIC:
        more = {"workload.schedule.chunks": 2} if name == "Interleaved1F1B" else {}
        for receives in ("in_order", "early"):
            label = name.lower() if receives == "in_order" else f"{name.lower()}-early"
            variants[label] = {
                "workload.schedule.name": name,
                "workload.schedule.receives": receives,
                **more,
            }
    for name in (*PLAYED, "optimal"):
        variants[name.lower()] = {"workload.schedule.name": name, "workload.schedule.receives": "early"}
    document = {"topology": str(SCENARIO.parents[1] / CENTERS[centers]), "variants": variants}
    scenario = load_scenario(
        SCENARIO, [f"{path}={json.dumps(value)}" for path, value in {**document, **overrides}.items()]
    )
    found = {name: prediction(one, Scale()) for name, one in dry_runs(scenario, Scale()).items()}
    room = memory * STAGES * STAGE_BYTES * (1 + 1e-9)
    fitting = {
        name: entry["step_time_s"]
        for name, entry in found.items()
        if max(entry["peak_activation_bytes"]) <= room
    }
    searched = found["optimal"]["searched"]
    return {
        "centers": centers,
        "memory": memory,
        "latency": latency,
        "time": time,
        "bounds_s": searched["bounds_s"],
        "searched_s": searched["step_s"],
        "stages": found["optimal"]["stages"],
        "steps_s": fitting,
    }


def known_of(cell: Cell) -> tuple[str, float]:
    """The quickest that has a name."""
    steps = {name: step_s for name, step_s in cell["steps_s"].items() if name != "optimal"}
    return min(steps.items(), key=lambda entry: entry[1])


def gain_of(cell: Cell) -> float:
    """How many times as long the quickest that has a name takes."""
    return known_of(cell)[1] / float(cell["steps_s"]["optimal"])


def gap_of(cell: Cell) -> float:
    """How much less than the optimum one with as many stages per rank could take, as a share."""
    chunks = str(cell["stages"] // STAGES)
    return 1 - float(cell["bounds_s"][chunks]) / float(cell["searched_s"])


def line_of(cell: Cell) -> str:
    """For people."""
    name, step_s = known_of(cell)
    return (
        f"{cell['centers']} centers, memory {cell['memory']}, latency {cell['latency']}, time {cell['time']}: "
        f"optimal {cell['steps_s']['optimal']:.3f} s ({cell['stages']} stages, gap {gap_of(cell):.1%}), "
        f"{name} {step_s:.3f} s: {gain_of(cell):.3f}x"
    )


def summary(cells: list[Cell]) -> None:
    """Over all cells."""
    gains = sorted(map(gain_of, cells))
    gaps = sorted(map(gap_of, cells))
    print(
        f"{len(cells)} cells: {gains[0]:.3f}x to {gains[-1]:.3f}x, median {statistics.median(gains):.3f}x; "
        f"slower than a known one in {sum(gain < 0.9995 for gain in gains)}; gap {statistics.median(gaps):.2%} in the "
        f"median, {gaps[-1]:.1%} at most, none in {sum(gap < 1e-3 for gap in gaps)}"
    )


def picture(cells: list[Cell]) -> str:
    """A map of latency and time on the link for each memory and number of data centers: how much longer others take."""
    side, left, top = (62, 30), 46, 40
    width, height = side[0] * len(TIMES) + left + 14, side[1] * len(LATENCIES) + top + 10
    whole = width * len(MEMORIES), height * len(CENTERS) + 26
    drawing = Drawing(*whole, "How much longer the quickest known schedule takes than the optimum")
    ET.SubElement(drawing.root, "style").text = STYLE
    drawing.rect(0, 0, *whole, "page")
    drawing.text(
        10, 18, "How much longer the quickest schedule with a name takes than the one searched for", "title"
    )
    for cell in cells:
        x = width * MEMORIES.index(cell["memory"]) + left + side[0] * TIMES.index(cell["time"])
        y = (
            height * list(CENTERS).index(cell["centers"])
            + top
            + 26
            + side[1] * LATENCIES.index(cell["latency"])
        )
        gain = max(0.0, gain_of(cell) - 1)
        drawing.rect(x, y, side[0] - 2, side[1] - 2, f"g{min(6, int(gain / 0.05))}")
        drawing.text(x + side[0] / 2 - 1, y + 19, f"{gain:.1%}", anchor="middle")
    for memory, centers in itertools.product(MEMORIES, CENTERS):
        x0 = width * MEMORIES.index(memory) + left
        y0 = height * list(CENTERS).index(centers) + top + 26
        drawing.text(x0, y0 - 20, f"{centers} data centers, memory {memory}", "title")
        for column, time in enumerate(TIMES):
            drawing.text(
                x0 + side[0] * (column + 0.5), y0 - 4, f"{time} T_F" if time else "no time", anchor="middle"
            )
        for row, latency in enumerate(LATENCIES):
            drawing.text(x0 - 4, y0 + side[1] * row + 19, f"{latency}", anchor="end")
    drawing.root.set("xmlns", "http://www.w3.org/2000/svg")
    drawing.root.set("width", str(whole[0]))
    return ET.tostring(drawing.root, encoding="unicode") + "\n"


if __name__ == "__main__":
    main()
