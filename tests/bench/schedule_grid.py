"""Every schedule, the optimum and its bound, over latency, time on the link, data centers and memory, by the model.

    .venv/bin/python -m tests.bench.schedule_grid FILE.jsonl [--time-limit 24] [--centers 2] [--csv CSV] [--picture SVG]

The pipeline is that of scenarios/crosspipe.yaml: eight stages, 16 microbatches, T_F = 38 ms. A line per cell; what FILE
has already is not done again. Schedules without links in mind run as they stand there, receives in order, and a second
time with early receives; what needs more memory than the cell has is left out. `--time-limit 0` searches for nothing.
At the end: by how much the optimum is quicker than the quickest of them, and how far it can be from the best. A table
(`--csv`) and a picture are made from such a file without doing any cell again with `--draw`. In the table, cells that
were not searched in may have what an earlier picture says of them (`--shown`), whose seconds and bounds were not kept.
`--bounds CSV` fills in, of cells in such a table that have none, the bounds that need no search.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import statistics
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from testbed.measure.results.training_summary import summarise_prediction
from testbed.prediction.dry_run import dry_runs
from testbed.show.report.svg import Drawing
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario

SCENARIO = Path(__file__).parents[2] / "scenarios" / "crosspipe.yaml"
FORWARD_MS, ONE_FORWARD_GBIT, NONE_GBIT = 38, 212, 12_400
LATENCIES, TIMES = (0, 0.25, 0.5, 1, 2, 4), (0, 0.25, 1, 2, 4)
CENTERS = {2: "topologies/two-data-centers.yaml", 4: "topologies/four-data-centers.yaml"}
MEMORIES = (1, 2, 3)
STATIC = ("1F1B", "ZBH1", "ZBVZeroBubble", "GPipe", "Interleaved1F1B")
PLAYED = ("CrossUD", "CrossUDSub", "CrossWave")
STAGES, STAGE_BYTES = 8, 1_000_000_000
Cell = dict[str, Any]
Place = tuple[int, float, float, float]
LABELS = (*(f"{name.lower()}{way}" for name in STATIC for way in ("", "-early")), *map(str.lower, PLAYED))
HEADS = (
    *(
        "centers",
        "memory",
        "latency_tf",
        "time_tf",
        *LABELS,
        "quickest_named",
        "named_longer_percent",
        "optimal",
    ),
    *("stages_per_rank", "bound_one_stage", "bound_two_stages", "gap_percent", "effort_s"),
)
AS_QUICK = 0.9995  # what rounding leaves of the optimum's rate where it is a schedule that has a name
SHADES = ("#f4f6f8", "#dde9f6", "#c2d9f0", "#a3c6e8", "#82b1df", "#5f9ad3", "#4385c5")
SIDE, LEFT, TOP = (62, 30), 46, 66  # of a cell; of a map
WIDTH, HEIGHT = SIDE[0] * len(TIMES) + LEFT + 14, SIDE[1] * len(LATENCIES) + TOP - 16
WORDS = (SIDE[0] / 2 - 1, 19)
STYLE = """
text { font: 12px sans-serif; fill: #1c2530; }
.title { font-weight: 600; }
.page { fill: #ffffff; }
""" + "".join(f".g{number} {{ fill: {shade}; }}\n" for number, shade in enumerate(SHADES))


def main() -> None:
    """Do what is missing, print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--bounds", type=Path)
    parser.add_argument("--time-limit", type=float, default=24)
    parser.add_argument("--centers", type=int, nargs="*", choices=list(CENTERS), default=list(CENTERS))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--shown", type=Path)
    options = parser.parse_args()
    if options.bounds is not None:
        fill(options.bounds)
        return
    if options.file is None:
        parser.error("FILE.jsonl is missing")
    done = read(options.file)
    places = [] if options.draw else itertools.product(options.centers, MEMORIES, LATENCIES, TIMES)
    for place in places:
        if place in done and (searched(done[place]) or not options.time_limit):
            continue
        done[place] = cell = tried(*place, options.time_limit)
        with options.file.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        print(line_of(cell), flush=True)
    cells = [done[place] for place in itertools.product(CENTERS, MEMORIES, LATENCIES, TIMES) if place in done]
    summary(cells)
    if options.csv is not None:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            shown = {} if options.shown is None else read_picture(options.shown.read_text())
            csv.writer(file, lineterminator="\n").writerows(
                [HEADS, *(columns(cell, shown) for cell in cells)]
            )
    if options.picture is not None:
        options.picture.write_text(picture(cells))


def read(file: Path) -> dict[Place, Cell]:
    """Cells that were done, by where they are; of two that are the same one that was searched in."""
    done: dict[Place, Cell] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        cell = json.loads(line)
        place = (cell["centers"], cell["memory"], cell["latency"], cell["time"])
        if place not in done or searched(cell):
            done[place] = cell
    return done


def tried(centers: int, memory: float, latency: float, time: float, limit_s: float) -> Cell:
    """Seconds of a step of every schedule that fits."""
    names = (*PLAYED, "optimal") if limit_s else PLAYED
    early = {name.lower(): setting(name, "early") for name in names}
    overrides: dict[str, Any] = {"workload.schedule.memory": memory}
    if limit_s:
        overrides["workload.schedule.time_limit"] = f"{limit_s} s"
    found = dict(static(centers, latency, time)) | played((centers, latency, time), overrides, early)
    room = memory * STAGES * STAGE_BYTES * (1 + 1e-9)
    steps_s = {
        name: entry["step_time_s"]
        for name, entry in found.items()
        if max(entry["peak_activation_bytes"]) <= room
    }
    cell = {"centers": centers, "memory": memory, "latency": latency, "time": time, "steps_s": steps_s}
    if limit_s:
        best = found["optimal"]["searched"]
        cell |= {"effort_s": limit_s, "bounds_s": best["bounds_s"], "searched_s": best["step_s"]}
        cell["stages"] = found["optimal"]["stages"]
    return cell


@cache
def static(centers: int, latency: float, time: float) -> dict[str, Any]:
    """Of schedules that take no more memory where there is more, in which the cells of all memories share."""
    variants = {}
    for name in STATIC:
        variants[name.lower()] = setting(name, "in_order")
        variants[f"{name.lower()}-early"] = setting(name, "early")
    return played((centers, latency, time), {}, variants)


def setting(name: str, receives: str) -> dict[str, Any]:
    """What sets a schedule."""
    more = {"workload.schedule.chunks": 2} if name == "Interleaved1F1B" else {}
    return {"workload.schedule.name": name, "workload.schedule.receives": receives, **more}


def played(
    where: tuple[int, float, float], overrides: dict[str, Any], variants: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What the model says of each variant."""
    topology = str(SCENARIO.parents[1] / CENTERS[where[0]])
    settings = {"topology": topology, "variants": variants, **overrides, **links_of(*where)}
    scenario = load_scenario(SCENARIO, [f"{path}={json.dumps(value)}" for path, value in settings.items()])
    return {name: summarise_prediction(one, Scale()) for name, one in dry_runs(scenario, Scale()).items()}


def links_of(centers: int, latency: float, time: float) -> dict[str, str]:
    """Settings of the links between data centers, both figures in multiples of T_F."""
    rate = f"{ONE_FORWARD_GBIT / time if time else NONE_GBIT} Gbit/s"
    return {
        f"topology.wan.{link}.{key}": value
        for link in range(1 if centers == 2 else 3)
        for key, value in (("delay", f"{latency * FORWARD_MS} ms"), ("rate", rate))
    }


def searched(cell: Cell) -> bool:
    """Whether an optimum was searched for."""
    return "optimal" in cell["steps_s"]


def known_of(cell: Cell) -> tuple[str, float]:
    """The quickest that has a name."""
    steps = {name: step_s for name, step_s in cell["steps_s"].items() if name != "optimal"}
    return min(steps.items(), key=lambda entry: entry[1])


def gain_of(cell: Cell) -> float:
    """How many times as long the quickest that has a name takes: never less than once, but for rounding."""
    gain = known_of(cell)[1] / float(cell["steps_s"]["optimal"])
    assert gain >= AS_QUICK, f"the optimum is slower than {known_of(cell)[0]}: {cell}"
    return gain


def gap_of(cell: Cell) -> float:
    """How much less than the optimum one with as many stages per rank could take, as a share."""
    chunks = str(cell["stages"] // STAGES)
    return 1 - float(cell["bounds_s"][chunks]) / float(cell["searched_s"])


def line_of(cell: Cell) -> str:
    """For people."""
    name, step_s = known_of(cell)
    place = f"{cell['centers']} centers, memory {cell['memory']}, latency {cell['latency']}, time {cell['time']}: "
    if not searched(cell):
        return f"{place}{name} {step_s:.3f} s"
    return (
        f"{place}optimal {cell['steps_s']['optimal']:.3f} s ({cell['stages']} stages, gap {gap_of(cell):.1%}), "
        f"{name} {step_s:.3f} s: {gain_of(cell):.3f}x"
    )


def summary(cells: list[Cell]) -> None:
    """Over all cells, and over those of each number of data centers and memory."""
    print(f"quickest of those with a name: {Counter(known_of(cell)[0] for cell in cells)}")
    found = [cell for cell in cells if searched(cell)]
    groups = {"all": found}
    for cell in found:
        groups.setdefault(f"{cell['centers']} centers, memory {cell['memory']}", []).append(cell)
    for name, group in groups.items():
        if not group:
            continue
        gains = sorted(map(gain_of, group))
        gaps = sorted(map(gap_of, group))
        single = sum(cell["stages"] == STAGES for cell in group)
        print(
            f"{name}: {len(group)} cells searched: {gains[0]:.4f}x to {gains[-1]:.3f}x, median "
            f"{statistics.median(gains):.3f}x; one stage per rank in {single}; "
            f"gap {statistics.median(gaps):.2%} in the median, {gaps[-1]:.1%} at most, none in "
            f"{sum(gap < 1e-3 for gap in gaps)}"
        )


def columns(cell: Cell, shown: Mapping[Place, float] = MappingProxyType({})) -> tuple[object, ...]:
    """Of a cell; empty: more memory than there is, or not searched for. shown: by how much others take longer."""
    steps_s, (quickest, known_s) = cell["steps_s"], known_of(cell)
    place = (cell["centers"], cell["memory"], cell["latency"], cell["time"])
    steps = [f"{steps_s[name]:.4f}" if name in steps_s else "" for name in LABELS]
    found: tuple[object, ...] = ("",) * 7
    if searched(cell):
        bounds = [f"{cell['bounds_s'][chunks]:.4f}" for chunks in ("1", "2")]
        longer = percent(gain_of(cell) - 1)
        found = (longer, f"{steps_s['optimal']:.4f}", cell["stages"] // STAGES, *bounds)
        found += (percent(gap_of(cell)), cell["effort_s"])
    elif place in shown:
        found = (percent(shown[place]), f"{known_s / (1 + shown[place]):.3f}", *found[2:])
    return (*place, *steps, quickest, *found)


def fill(table: Path) -> None:
    """Bounds without a search, of all cells in a table that have none; a gap to the smaller one."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = ("bound_one_stage", "bound_two_stages")
    for row in rows:
        if row[names[0]]:
            continue
        centers, memory, latency, time = (float(row[name]) for name in HEADS[:4])
        overrides = {"workload.schedule.memory": memory, "workload.schedule.time_limit": "0 s"}
        # one alone is no variant
        variants = {name.lower(): setting(name, "early") for name in ("optimal", "1F1B")}
        found = played((int(centers), latency, time), overrides, variants)
        bounds_s = found["optimal"]["searched"]["bounds_s"]
        row |= {name: f"{bounds_s[chunks]:.4f}" for name, chunks in zip(names, ("1", "2"), strict=True)}
        # of an optimum that was reckoned from a picture, which may be half a thousandth less than it is
        row["gap_percent"] = percent(max(0.0, 1 - min(bounds_s.values()) / float(row["optimal"])))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HEADS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def percent(share: float) -> str:
    """Of a table."""
    return f"{round(100 * share, 1) + 0.0:.1f}"  # no minus before a zero


def corner(centers: int, memory: float, latency: float, time: float) -> tuple[float, float]:
    """Of a cell in the picture."""
    return (
        WIDTH * MEMORIES.index(int(memory)) + LEFT + SIDE[0] * TIMES.index(time),
        HEIGHT * list(CENTERS).index(centers) + TOP + SIDE[1] * LATENCIES.index(latency),
    )


def read_picture(svg: str) -> dict[Place, float]:
    """By which share others take longer, of every cell that a picture has."""
    texts = {
        (float(text.get("x", 0)), float(text.get("y", 0))): text.text or ""
        for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    }
    shown: dict[Place, float] = {}
    for place in itertools.product(CENTERS, MEMORIES, LATENCIES, TIMES):
        x, y = corner(*place)
        if (x + WORDS[0], y + WORDS[1]) in texts:
            shown[place] = float(texts[x + WORDS[0], y + WORDS[1]].rstrip("%")) / 100
    return shown


def picture(cells: list[Cell]) -> str:
    """A map of latency and time on the link for each memory and number of data centers: how much longer others take."""
    side, left, width, height = SIDE, LEFT, WIDTH, HEIGHT
    whole = width * len(MEMORIES), height * len(CENTERS) + 26
    drawing = Drawing(*whole, "How much longer the quickest known schedule takes than the optimum")
    ET.SubElement(drawing.root, "style").text = STYLE
    drawing.rect(0, 0, *whole, "page")
    drawing.text(
        10, 18, "How much longer the quickest schedule with a name takes than the one searched for", "title"
    )
    for cell in cells:
        if not searched(cell):
            continue
        x, y = corner(cell["centers"], cell["memory"], cell["latency"], cell["time"])
        gain = gain_of(cell) - 1
        drawing.rect(x, y, side[0] - 2, side[1] - 2, f"g{max(0, min(6, int(gain / 0.05)))}")
        drawing.text(x + WORDS[0], y + WORDS[1], f"{percent(gain)}%", anchor="middle")
    for memory, centers in itertools.product(MEMORIES, CENTERS):
        x0 = width * MEMORIES.index(memory) + left
        y0 = height * list(CENTERS).index(centers) + TOP
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
