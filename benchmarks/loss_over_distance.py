"""Loss against time, over distance: one small model trained for real in six ways, two buildings 1, 20 and 80 ms apart.

    tools/bootstrap peers && make virtual && .venv/bin/python benchmarks/loss_over_distance.py [--jobs 2]

Each network is a guest of the virtual clock in which benchmarks/training/outer.py trains every way; the clock is exact,
the arithmetic real, an accelerator's time slept. The model's 1.1 million parameters stand for 110 million: rates are
divided by 100, times are real ones. A point counts when its network was measured and found as asked for before and
after (`testbed launch --strict`), a probe between the ranks takes what the line allows, replicas have the same
weights, and losses step by step are to the last bit those of every other network: distance changes when, never what.
So each further seed of first weights and text is trained over one network, and its times are held against the first
seed's there. Three of the ways are trained in four replicas, too, each in a building of its own, with the first seed.
Writes docs/evidence/training/loss-over-distance.json and .svg; `--more` leaves out what is there, `--draw` draws it
once more.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import testbed
from testbed.show.report.svg import Axis, Drawing, svg_document

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"
FOUND = ROOT / "docs/evidence/training/loss-over-distance.json"
DELAYS_MS, RATES_GBPS = (1, 20, 80), (1, 100)
SEEDS = (0, 1, 2)
FOUR, FOUR_WAYS, FOUR_NETWORKS = 4, ("ddp", "diloco", "streaming 4-bit"), ((20, 1), (20, 100))
SCALE = 100
SAME_TIME = 0.01  # of a seed's, as a share of the first one's: TCP remembers what came before
PROBE_BYTES = 4_000_000
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP = 300, 200, 44, 52
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7")
STYLE = """
text { font: 12px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.title { font-weight: 600; } .tick { fill: #5a6572; font-size: 11px; } .page { fill: #ffffff; }
.grid { stroke: #e3e7ec; stroke-width: 1; }
""" + "".join(
    f".way-{number} {{ stroke: {colour}; stroke-width: 2; stroke-linecap: round; }}\n"
    f".band-{number} {{ fill: {colour}; fill-opacity: 0.15; }}\n"
    for number, colour in enumerate(COLOURS)
)
INNER = {"inner_steps": 12}
STREAMED = {**INNER, "outer_parts": 4, "outer_overlap": 2}
PLANNED: dict[str, dict[str, int]] = {
    "ddp": {"inner_steps": 1},
    "ddp 8-bit": {"inner_steps": 1, "outer_bits": 8},
    "ddp 4-bit": {"inner_steps": 1, "outer_bits": 4},
    "diloco": INNER,
    "streaming": STREAMED,
    "streaming 4-bit": {**STREAMED, "outer_bits": 4},
}
BUILDINGS = ("east", "west", "north", "south")


def topology_of(delay_ms: int, rate_gbps: int, replicas: int) -> dict[str, Any]:
    """A building for each replica, each pair of them as far apart, with a link of its own."""
    names = BUILDINGS[:replicas]
    return {
        "name": "apart",
        "mtu": 9000,
        "buildings": {name: {"hosts": 1, "nic": {"rate": "400 Gbit/s"}} for name in names},
        "wan": [
            {"a": a, "b": b, "rate": f"{rate_gbps} Gbit/s", "delay": f"{delay_ms} ms"}
            for a, b in combinations(names, 2)
        ],
    }


class Asked(NamedTuple):
    """What is trained in one guest: a network between so many replicas, a seed, the ways."""

    replicas: int
    seed: int
    delay_ms: int
    rate_gbps: int
    ways: tuple[str, ...] = tuple(PLANNED)

    def __str__(self) -> str:
        return f"{self.delay_ms} ms, {self.rate_gbps} Gbit/s, {self.replicas} replicas, seed {self.seed}"


def everything() -> list[Asked]:
    """The first seed over each network, others over one of them alone; of four replicas the first."""
    pairs = [(delay, rate) for rate in RATES_GBPS for delay in DELAYS_MS]
    found = [Asked(2, SEEDS[0], *pair) for pair in pairs]
    found += [Asked(2, seed, DELAYS_MS[0], RATES_GBPS[-1]) for seed in SEEDS[1:]]
    return found + [Asked(FOUR, SEEDS[0], *pair, FOUR_WAYS) for pair in FOUR_NETWORKS]


def measure(asked: Asked, steps: int) -> dict[str, Any]:
    """All of its ways, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        topology = Path(folder) / "apart.yaml"
        topology.write_text(yaml.safe_dump(topology_of(asked.delay_ms, asked.rate_gbps, asked.replicas)))
        options = ["-t", str(topology), "--clock", "virtual", "--size-scale", str(SCALE), "--strict"]
        program = [str(PEERS), "-W", "ignore", str(ROOT / "benchmarks" / "training" / "outer.py")]
        program += [word for way in asked.ways for word in ("--method", way)]
        program += ["--steps", str(steps), "--seed", str(asked.seed)]
        done = subprocess.run(
            [sys.executable, "-m", "testbed", "launch", *options, "--", *program],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines() if line.startswith("[0] {")]
    if done.returncode not in (0, 3) or not lines:
        raise SystemExit(f"{asked}: status {done.returncode}\n{done.stderr[-3000:]}")
    probe, *ways = map(json.loads, lines)
    checked = done.returncode == 0
    print(f"{asked}: {probe}, {'checked' if checked else 'NOT AS ASKED'}", flush=True)
    return {**asked._asdict(), "checked": checked, **probe, "ways": ways}


def doubts(runs: list[dict[str, Any]]) -> list[str]:
    """Why not every point is to be trusted; empty if all are."""
    found = []
    for run in runs:
        where = str(key_of(run))
        trip_s, large_s = run["probe"]["round_trip_s"], run["probe"]["large_s"]
        if not run["checked"]:
            found.append(f"{where}: the network is not as asked for")
        if not 2e-3 * run["delay_ms"] <= trip_s <= 2e-3 * run["delay_ms"] + 5e-3:
            found.append(f"{where}: a round trip takes {trip_s:.6f} s")
        line_s = 8 * PROBE_BYTES / (run["rate_gbps"] * 1e9 / SCALE)
        # headers; windows that open take round trips; where a queue is short TCP loses frames and slows down
        if not line_s <= large_s <= line_s * 1.15 + 12 * trip_s:
            found.append(f"{where}: {PROBE_BYTES} bytes take {large_s:.3f} s, the line's {line_s:.3f} s")
        found += [
            f"{where}, {way['method']}: {words}" for way in run["ways"] for words in _doubts(run, way, runs)
        ]
    return found


def _doubts(run: dict[str, Any], way: dict[str, Any], runs: list[dict[str, Any]]) -> Iterator[str]:
    """Of one way: against the same over other networks, and of other seeds."""
    if not way["alike"]:
        yield "replicas differ"
    own, times_s = _column(way, 2), _column(way, 1)
    for other in (one for one in runs if one["replicas"] == run["replicas"]):
        for theirs in (one for one in other["ways"] if one["method"] == way["method"]):
            common = min(len(own), len(theirs["points"]))  # of fewer steps, where they were
            if other["seed"] == run["seed"] and _column(theirs, 2)[:common] != own[:common]:
                yield f"not the losses of {key_of(other)}"
            if network_key(other) == network_key(run) and other["seed"] == SEEDS[0]:
                pairs = zip(times_s[:common], _column(theirs, 1)[:common], strict=True)
                if any(abs(here - there) > SAME_TIME * there for here, there in pairs):
                    yield f"not the times of {key_of(other)}"


def kept() -> list[dict[str, Any]]:
    """What was measured before."""
    found: list[dict[str, Any]] = json.loads(FOUND.read_text())["runs"]
    return found


def key_of(run: dict[str, Any]) -> Asked:
    """What was asked for."""
    ways = tuple(way["method"] for way in run["ways"])
    return Asked(run["replicas"], run["seed"], run["delay_ms"], run["rate_gbps"], ways)


def network_key(run: dict[str, Any]) -> tuple[int, int]:
    """Rate and delay."""
    return run["rate_gbps"], run["delay_ms"]


def networks_of(runs: list[dict[str, Any]], replicas: int) -> list[dict[str, Any]]:
    """The first seed's, which have the times."""
    return sorted(
        (run for run in runs if (run["replicas"], run["seed"]) == (replicas, SEEDS[0])), key=network_key
    )


def _column(way: dict[str, Any], number: int) -> list[float]:
    return [point[number] for point in way["points"]]


def losses_of(runs: list[dict[str, Any]], replicas: int, method: str) -> list[list[float]]:
    """By seed, each seed once: step by step the same over all networks."""
    found = {
        run["seed"]: _column(way, 2)
        for run in runs
        for way in run["ways"]
        if (run["replicas"], way["method"]) == (replicas, method)
    }
    shortest = min(map(len, found.values()))
    return [found[seed][:shortest] for seed in sorted(found)]


def medians(seeds: list[list[float]]) -> list[float]:
    """Over seeds, step by step."""
    return [statistics.median(each) for each in zip(*seeds, strict=True)]


def table(runs: list[dict[str, Any]], replicas: int) -> list[str]:
    """Markdown: seconds of as many steps as all have made, and losses there; seconds to the median that all reach."""
    networks = networks_of(runs, replicas)
    ways = [way["method"] for way in networks[0]["ways"]]
    curves = {way: medians(losses_of(runs, replicas, way)) for way in ways}
    goal = max(map(min, curves.values()))
    heads = [f"{network['delay_ms']} ms, {network['rate_gbps']} Gbit/s" for network in networks]
    lines = [
        f"| way | loss at the end | {' | '.join(heads)} |",
        f"|---|--:|{'--:|' * len(heads)}",
    ]
    for number, way in enumerate(ways):
        cells = []
        reached = next(place for place, loss in enumerate(curves[way]) if loss <= goal)
        for network in networks:
            times_s = _column(network["ways"][number], 1)
            cells.append(f"{times_s[len(curves[way]) - 1]:.1f} s ({times_s[reached]:.1f} s)")
        ends = [seed[-1] for seed in losses_of(runs, replicas, way)]
        spread = f"{curves[way][-1]:.3f}" + (
            f" ({min(ends):.3f} to {max(ends):.3f})" if len(ends) > 1 else ""
        )
        lines.append(f"| {way} | {spread} | {' | '.join(cells)} |")
    count, steps = len(ends), networks[0]["ways"][0]["points"][len(curves[ways[0]]) - 1][0]
    seeds = f"{count} seed{'s' * (count > 1)}"
    return [*lines, f"{steps} steps, {seeds}; in brackets: to a median loss of {goal:.3f}, which all reach."]


def predicted_s(network: dict[str, Any], way: dict[str, Any], steps: int) -> float:
    """What the model says of the same bytes in the same steps, as a planned job has them (`plan: local_sgd`)."""
    options = PLANNED[way["method"]]
    topology = topology_of(network["delay_ms"], network["rate_gbps"], network["replicas"])
    size = {"parameters": way["parameters"] * 4.0 * SCALE, "compute": "100 ms"}
    scenario = testbed.load(
        {
            "name": "pair",
            "topology": topology,
            "workload": {"plan": "local_sgd", "options": {**size, **options}},
            "scale": {"size_scale": SCALE},
        }
    )
    (found,) = testbed.predict(scenario).values()
    return found.step_time_s * steps / options["inner_steps"]


def predictions(networks: list[dict[str, Any]]) -> list[str]:
    """Markdown: measured over predicted time of each way and network."""
    heads = [f"{network['delay_ms']} ms, {network['rate_gbps']} Gbit/s" for network in networks]
    lines = [f"| way | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    for number, way in enumerate(networks[0]["ways"]):
        cells = []
        for network in networks:
            steps, time_s, _ = network["ways"][number]["points"][-1]
            cells.append(f"{time_s / predicted_s(network, network['ways'][number], steps):.2f}")
        lines.append(f"| {way['method']} | {' | '.join(cells)} |")
    return lines


def picture(runs: list[dict[str, Any]]) -> str:
    """A panel for each network: the seeds' median loss, and all between their least and most, against seconds.

    These have a logarithmic axis, the same in all.
    """
    networks = networks_of(runs, 2)
    columns, rows = len(DELAYS_MS), len(RATES_GBPS)
    width, height = LEFT + columns * PANEL_WIDTH, TOP + rows * (PANEL_HEIGHT + 46)
    drawing = Drawing(width, height, "Held-out loss against time of six ways to train over six networks")
    drawing.rect(0, 0, width, height, "page")
    points = [point for network in networks for way in network["ways"] for point in way["points"][1:]]
    low, high = (edge(math.log10(time_s) for _, time_s, _ in points) for edge in (min, max))
    seeds = [losses_of(runs, 2, way["method"]) for way in networks[0]["ways"]]
    losses = [loss for way in seeds for seed in way for loss in seed[1:]]
    for number, way in enumerate(networks[0]["ways"]):
        x = LEFT + number * (width - LEFT) / len(networks[0]["ways"])
        drawing.line((x, 14), (x + 22, 14), f"way-{number}")
        drawing.text(x + 28, 18, way["method"])
    for network in networks:
        left = LEFT + DELAYS_MS.index(network["delay_ms"]) * PANEL_WIDTH
        top = TOP + RATES_GBPS.index(network["rate_gbps"]) * (PANEL_HEIGHT + 46)
        across = Axis(low, high, left + 6, left + PANEL_WIDTH - 16)
        down = Axis(min(losses) - 0.05, max(losses) + 0.05, top + PANEL_HEIGHT, top)
        drawing.text(left, top - 8, f"{network['delay_ms']} ms, {network['rate_gbps']} Gbit/s", "title")
        for power in range(math.ceil(low), math.floor(high) + 1):
            drawing.line((across(power), top), (across(power), top + PANEL_HEIGHT), "grid")
            label = f"{10**power:g} s"
            drawing.text(across(power), top + PANEL_HEIGHT + 16, label, "tick", anchor="middle")
        for loss in down.ticks(5):
            drawing.line((left, down(loss)), (left + PANEL_WIDTH - 16, down(loss)), "grid")
            if left == LEFT:
                drawing.text(left - 6, down(loss) + 4, f"{loss:g}", "tick", anchor="end")
        for number, way in enumerate(network["ways"]):
            xs = [across(math.log10(time_s)) for time_s in _column(way, 1)[1 : len(seeds[number][0])]]
            least, most = (
                [down(edge(each)) for each in list(zip(*seeds[number], strict=True))[1:]]
                for edge in (min, max)
            )
            drawing.polygon(
                [*zip(xs, least, strict=True), *reversed([*zip(xs, most, strict=True)])], f"band-{number}"
            )
            dots = zip(xs, map(down, medians(seeds[number])[1:]), strict=True)
            for start, end in pairwise(dots):
                drawing.line(start, end, f"way-{number}")
    return svg_document(drawing.root, STYLE)


def main() -> None:
    """Measure, check, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="guests at once")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--more", action="store_true", help="only what is not there yet")
    parser.add_argument("--draw", action="store_true", help="nothing new: what is there once more")
    options = parser.parse_args()
    runs = kept() if options.draw or options.more else []
    if not options.draw:
        there = {key_of(run) for run in runs}
        asked = [one for one in everything() if one not in there]
        with ThreadPoolExecutor(options.jobs) as pool:
            for run in pool.map(lambda one: measure(one, options.steps), asked):
                runs.append(run)
                FOUND.write_text(json.dumps({"scale": SCALE, "runs": runs}) + "\n")
    FOUND.with_suffix(".svg").write_text(picture(runs))
    for replicas in (2, FOUR):
        print(
            "\n".join(
                [f"{replicas} replicas:", "", *table(runs, replicas), "", "Measured over predicted:", ""]
            )
        )
        print("\n".join([*predictions(networks_of(runs, replicas)), ""]))
    if found := doubts(runs):
        raise SystemExit("\n".join(["not to be trusted:", *found]))
    print(f"all {sum(len(way['points']) for run in runs for way in run['ways'])} points are trusted")


if __name__ == "__main__":
    main()
