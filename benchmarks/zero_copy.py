"""Copies against none: two ranks send each other 8 KiB to 128 MiB in a rack, a zone, a building, between regions.

    make virtual && .venv/bin/python benchmarks/zero_copy.py [--jobs 2]

Each distance and preset is a benchmark of its own in a guest of the virtual clock; latencies are those of
topologies/training-region.yaml, on an idle network in which nothing is oversubscribed. Beside each time stands what the
model says. Writes docs/evidence/latency/zero-copy.json and .svg; `--draw` draws what is there once more, `--only`
measures one distance.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from testbed.net.paths import network_of
from testbed.prediction.simulation import simulate
from testbed.show.report.svg import Axis, Drawing, svg_document
from testbed.spec.overrides import preset_transport
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology
from testbed.workload.job.endpoint_resolution import modelled_software
from testbed.workload.plan import GroupCollective, JobPlan

ROOT = Path(__file__).parents[1]
FOUND = ROOT / "docs/evidence/latency/zero-copy.json"
PRESETS = ("nccl", "ncclx")
EVEN = 'oversubscription: "1:1"'
NIC = "nic: {rate: 400 Gbit/s, delay: 5 us}"
TOPOLOGIES = {
    "rack": f"  hall: {{hosts: 2, {NIC}, clos: {{leaves: 1, spines: 1}}}}\n",
    "zone": f"  hall: {{hosts: 2, {NIC}, clos: {{leaves: 2, spines: 1, leaf: {{{EVEN}, delay: 30 us}}}}}}\n",
    "building": f"  hall: {{hosts: 2, {NIC}, clos: {{zones: 2, leaves: 1, spines: 1, "
    f"leaf: {{{EVEN}, delay: 30 us}}, spine: {{{EVEN}, delay: 40 us}}}}}}\n",
    # a host's card and three cables of 5, 30 and 40 us on either side are 75 us in all
    "region": "".join(
        f"  {name}: {{hosts: 1, region: {name}, nic: {{rate: 400 Gbit/s, delay: 75 us}}}}\n"
        for name in ("here", "there")
    )
    + "wan:\n  - {a: here, b: there, rate: 400 Gbit/s, delay: 150 us}\n",
}
ONE_WAY_US = {"rack": 10, "zone": 70, "building": 150, "region": 300}
# from, to, and how often before: short messages take one connection each, whose windows all have to be open
SIZES = (("8K", "2M", 48), ("8M", "32M", 16), ("128M", "128M", 6))
FACTOR = 4
PAPER = (1.09, 2.7)  # NCCLX's Fig. 10, from 1 to 128 MB, by published summaries
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 340, 56, 130, 24, 292
COLOURS = ("#0072b2", "#009e73", "#e69f00", "#d55e00")
STYLE = """
text { font: 13px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.tick { fill: #5a6572; font-size: 12px; } .grid { stroke: #d9dde3; } .page { fill: #ffffff; } .paper { fill: #eef1f4; }
""" + "".join(
    f"line.c{number} {{ stroke: {colour}; stroke-width: 2; }} text.c{number}, circle.c{number} {{ fill: {colour}; }}\n"
    for number, colour in enumerate(COLOURS)
)


def topology_file(distance: str, folder: Path) -> Path:
    """Of two hosts so far apart."""
    file = folder / f"{distance}.yaml"
    file.write_text(f"name: {distance}\nmtu: 9000\nbuildings:\n{TOPOLOGIES[distance]}")
    return file


def measure(distance: str, preset: str, iterations: int) -> dict[str, Any]:
    """All sizes at one distance, and what the model says of each."""
    with tempfile.TemporaryDirectory(dir=ROOT / "docs") as name:
        topology = topology_file(distance, Path(name))
        points = [point for sizes in SIZES for point in rows(topology, preset, *sizes, iterations)]
    return {"distance": distance, "preset": preset, "points": points}


def rows(
    topology: Path, preset: str, least: str, most: str, warmup: int, iterations: int
) -> list[dict[str, Any]]:
    """Some sizes, in a guest of their own."""
    written = topology.with_suffix(f".{least}.json")
    command = [sys.executable, "-m", "testbed", "bench", "sendrecv", "--preset", preset]
    command += ["-b", least, "-e", most, "-f", str(FACTOR), "-n", str(iterations), "-w", str(warmup)]
    command += ["--topology", str(topology), "--ranks", "2", "--clock", "virtual", "--size-scale", "1"]
    command += ["-J", str(written)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return [
        {
            "size_bytes": row["size_bytes"],
            "time_s": row["slowest_s"],
            "wrong": row["wrong"],
            "model_s": predicted_s(topology, preset, row["size_bytes"]),
        }
        for row in json.loads(written.read_text())["rows"]
    ]


def predicted_s(topology: Path, preset: str, size_bytes: int) -> float:
    """What the model says of one exchange."""
    resolved = load_topology(topology).resolve()
    network = network_of(resolved, resolved.hosts)
    exchange = GroupCollective("exchange", "", "", (), 0, "sendrecv", size_bytes // 4, "direct")
    plan = JobPlan(((exchange,),) * 2, (("both", (0, 1)),))
    return simulate(plan, network, 4, modelled_software(preset_transport(preset), Scale())).step_time_s


def times(found: list[dict[str, Any]], key: str = "time_s") -> dict[str, dict[str, dict[int, float]]]:
    """By distance, preset and size."""
    made: dict[str, dict[str, dict[int, float]]] = {}
    for entry in found:
        points = {point["size_bytes"]: point[key] for point in entry["points"]}
        made.setdefault(entry["distance"], {})[entry["preset"]] = points
    return {distance: own for distance, own in made.items() if len(own) == len(PRESETS)}


def table(found: list[dict[str, Any]]) -> list[str]:
    """In Markdown: both times and how many times the first is the second, by distance and size."""
    lines = ["| size | " + " | ".join(f"{one}, {ONE_WAY_US[one]} us" for one in times(found)) + " |"]
    lines.append("|---|" + "---|" * len(times(found)))
    sizes = next(iter(times(found).values()))["nccl"]
    for size_bytes in sizes:
        cells = []
        for own in times(found).values():
            copied_s, direct_s = own["nccl"][size_bytes], own["ncclx"][size_bytes]
            cells.append(f"{copied_s * 1e6:.1f} / {direct_s * 1e6:.1f} us, {copied_s / direct_s:.2f}x")
        lines.append(f"| {size_words(size_bytes)} | " + " | ".join(cells) + " |")
    return lines


def size_words(size_bytes: int) -> str:
    """4 KiB, 128 MiB."""
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


def errors(found: list[dict[str, Any]]) -> list[float]:
    """The model against packets, as shares."""
    return [point["model_s"] / point["time_s"] - 1 for entry in found for point in entry["points"]]


def picture(found: list[dict[str, Any]]) -> str:
    """How many times as long copies take, by size, a curve for each distance."""
    ratios = {
        distance: [(size, own["nccl"][size] / own["ncclx"][size]) for size in own["nccl"]]
        for distance, own in times(found).items()
    }
    every = [ratio for curve in ratios.values() for _, ratio in curve]
    most = max(3.0, math.ceil(max(every)))
    drawing = Drawing(WIDTH, HEIGHT, "How many times as long a message takes with copies, by its size")
    drawing.rect(0, 0, WIDTH, HEIGHT, "page")
    across, up = Axis(12, 27, LEFT, WIDTH - RIGHT), Axis(min(0.5, *every), most, BOTTOM, TOP)
    drawing.rect(across(20), up(PAPER[1]), across(27) - across(20), up(PAPER[0]) - up(PAPER[1]), "paper")
    drawing.text(across(20) + 6, up(PAPER[1]) + 16, "as published, 1.09x to 2.7x", "tick")
    for power in range(12, 28, 3):
        drawing.line((across(power), TOP), (across(power), BOTTOM), "grid")
        drawing.text(across(power), BOTTOM + 18, size_words(1 << power), "tick", anchor="middle")
    for ratio in range(1, int(most) + 1):
        drawing.line((LEFT, up(ratio)), (WIDTH - RIGHT, up(ratio)), "grid")
        drawing.text(LEFT - 8, up(ratio) + 4, f"{ratio}x", "tick", anchor="end")
    for number, (distance, curve) in enumerate(ratios.items()):
        line = [(across(math.log2(size)), up(ratio)) for size, ratio in curve]
        for start, end in pairwise(line):
            drawing.line(start, end, f"c{number}")
        drawing.text(WIDTH - RIGHT + 8, line[-1][1] + 4, distance, f"c{number}")
    return svg_document(drawing.root, STYLE)


def main() -> None:
    """Measure, say, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="guests at once")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--only", choices=tuple(TOPOLOGIES), action="append")
    parser.add_argument("--draw", action="store_true", help="nothing new: what is there once more")
    options = parser.parse_args()
    found = json.loads(FOUND.read_text()) if FOUND.exists() else []
    if not options.draw:
        asked = list(product(options.only or TOPOLOGIES, PRESETS))
        found = [entry for entry in found if (entry["distance"], entry["preset"]) not in asked]
        FOUND.parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            for entry in pool.map(lambda one: measure(one[0], one[1], options.iterations), asked):
                found.append(entry)
                found.sort(key=lambda one: (list(TOPOLOGIES).index(one["distance"]), one["preset"]))
                FOUND.write_text(json.dumps(found, indent=1) + "\n")
    FOUND.with_suffix(".svg").write_text(picture(found))
    print("\n".join(table(found)))
    off = errors(found)
    print(f"the model against packets: {min(off):+.1%} to {max(off):+.1%}, {len(off)} points")
    if wrong := sum(point["wrong"] for entry in found for point in entry["points"]):
        raise SystemExit(f"{wrong} elements were wrong")


if __name__ == "__main__":
    main()
