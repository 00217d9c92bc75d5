"""Loss against time, over distance: one small model trained for real in six ways, two buildings 1, 20 and 80 ms apart.

    tools/bootstrap peers && make virtual && .venv/bin/python benchmarks/loss_over_distance.py [--jobs 2]

Each network is a guest of the virtual clock in which benchmarks/training/outer.py trains every way; the clock is exact,
the arithmetic real, an accelerator's time slept. The model's 1.1 million parameters stand for 110 million: rates are
divided by 100, times are real ones. A point counts when its network was measured and found as asked for before and
after (`testbed launch --strict`), a probe between the ranks takes what the line allows, replicas have the same
weights, and losses step by step are to the last bit those of every other network: distance changes when, never what.
Writes docs/training/loss-over-distance.json and .svg; `--draw` draws what is there once more.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

import testbed
from testbed.report.svg import Axis, Drawing, standalone

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"
FOUND = ROOT / "docs" / "training" / "loss-over-distance.json"
DELAYS_MS, RATES_GBPS = (1, 20, 80), (1, 100)
SCALE = 100
PROBE_BYTES = 4_000_000
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP = 300, 200, 44, 52
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7")
STYLE = """
text { font: 12px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.title { font-weight: 600; } .tick { fill: #5a6572; font-size: 11px; } .page { fill: #ffffff; }
.grid { stroke: #e3e7ec; stroke-width: 1; }
""" + "".join(
    f".way-{number} {{ stroke: {colour}; stroke-width: 2; stroke-linecap: round; }}\n"
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
TOPOLOGY = """
name: pair
mtu: 9000
buildings:
  east: {{hosts: 1, nic: {{rate: 400 Gbit/s}}}}
  west: {{hosts: 1, nic: {{rate: 400 Gbit/s}}}}
wan:
  - {{a: east, b: west, rate: {rate} Gbit/s, delay: {delay} ms}}
"""


def measure(delay_ms: int, rate_gbps: int, steps: int) -> dict[str, Any]:
    """All ways over one network."""
    with tempfile.TemporaryDirectory() as folder:
        topology = Path(folder) / "pair.yaml"
        topology.write_text(TOPOLOGY.format(rate=rate_gbps, delay=delay_ms))
        options = ["-t", str(topology), "--clock", "virtual", "--size-scale", str(SCALE), "--strict"]
        program = [str(PEERS), "-W", "ignore", str(ROOT / "benchmarks" / "training" / "outer.py")]
        done = subprocess.run(
            [sys.executable, "-m", "testbed", "launch", *options, "--", *program, "--steps", str(steps)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines() if line.startswith("[0] {")]
    if done.returncode not in (0, 3) or not lines:
        raise SystemExit(
            f"{delay_ms} ms, {rate_gbps} Gbit/s: status {done.returncode}\n{done.stderr[-3000:]}"
        )
    probe, *ways = map(json.loads, lines)
    network = {"delay_ms": delay_ms, "rate_gbps": rate_gbps, "checked": done.returncode == 0, **probe}
    print(
        f"{delay_ms} ms, {rate_gbps} Gbit/s: {probe}, {'checked' if network['checked'] else 'NOT AS ASKED'}"
    )
    return {**network, "ways": ways}


def doubts(networks: list[dict[str, Any]]) -> list[str]:
    """Why not every point is to be trusted; empty if all are."""
    found = []
    for network in networks:
        where = f"{network['delay_ms']} ms, {network['rate_gbps']} Gbit/s"
        trip_s, large_s = network["probe"]["round_trip_s"], network["probe"]["large_s"]
        if not network["checked"]:
            found.append(f"{where}: the network is not as asked for")
        if not 2e-3 * network["delay_ms"] <= trip_s <= 2e-3 * network["delay_ms"] + 5e-3:
            found.append(f"{where}: a round trip takes {trip_s:.6f} s")
        line_s = 8 * PROBE_BYTES / (network["rate_gbps"] * 1e9 / SCALE)
        # headers; windows that open take round trips; where a queue is short TCP loses frames and slows down
        if not line_s <= large_s <= line_s * 1.15 + 12 * trip_s:
            found.append(f"{where}: {PROBE_BYTES} bytes take {large_s:.3f} s, the line's {line_s:.3f} s")
        for way, first in zip(network["ways"], networks[0]["ways"], strict=True):
            if not way["alike"]:
                found.append(f"{where}, {way['method']}: replicas differ")
            common = min(len(way["points"]), len(first["points"]))  # of fewer steps, where they were
            if _losses(way)[:common] != _losses(first)[:common]:
                found.append(f"{where}, {way['method']}: not the losses of the first network")
    return found


def kept() -> list[dict[str, Any]]:
    """What was measured before."""
    found: list[dict[str, Any]] = json.loads(FOUND.read_text())["networks"]
    return found


def network_key(network: dict[str, Any]) -> tuple[int, int]:
    """Delay and rate."""
    return network["delay_ms"], network["rate_gbps"]


def _losses(way: dict[str, Any]) -> list[float]:
    return [loss for _, _, loss in way["points"]]


def table(networks: list[dict[str, Any]]) -> list[str]:
    """Markdown: seconds of as many steps as all have made, and the loss there; seconds to the loss that all reach."""
    ways = [way["method"] for way in networks[0]["ways"]]
    count = min(len(way["points"]) for network in networks for way in network["ways"])
    goal = max(min(_losses(way)[:count]) for way in networks[0]["ways"])
    heads = [f"{network['delay_ms']} ms, {network['rate_gbps']} Gbit/s" for network in networks]
    lines = [
        f"| way | loss at the end | {' | '.join(heads)} |",
        f"|---|--:|{'--:|' * len(heads)}",
    ]
    for number, way in enumerate(ways):
        cells = []
        for network in networks:
            points = network["ways"][number]["points"][:count]
            reached = next(time_s for _, time_s, loss in points if loss <= goal)
            cells.append(f"{points[-1][1]:.1f} s ({reached:.1f} s)")
        lines.append(f"| {way} | {points[-1][2]:.3f} | {' | '.join(cells)} |")
    return [*lines, f"{points[-1][0]} steps; in brackets: to a loss of {goal:.3f}, which all reach."]


def predicted_s(network: dict[str, Any], way: dict[str, Any], steps: int) -> float:
    """What the model says of the same bytes in the same steps, as a planned job has them (`plan: local_sgd`)."""
    options = PLANNED[way["method"]]
    topology = TOPOLOGY.format(rate=network["rate_gbps"], delay=network["delay_ms"])
    size = {"parameters": way["parameters"] * 4.0 * SCALE, "compute": "100 ms"}
    scenario = testbed.load(
        {
            "name": "pair",
            "topology": yaml.safe_load(topology),
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


def picture(networks: list[dict[str, Any]]) -> str:
    """A panel for each network: loss against seconds, which have a logarithmic axis, the same in all."""
    columns, rows = len(DELAYS_MS), len(RATES_GBPS)
    width, height = LEFT + columns * PANEL_WIDTH, TOP + rows * (PANEL_HEIGHT + 46)
    drawing = Drawing(width, height, "Held-out loss against time of six ways to train over six networks")
    drawing.rect(0, 0, width, height, "page")
    points = [point for network in networks for way in network["ways"] for point in way["points"][1:]]
    low, high = (edge(math.log10(time_s) for _, time_s, _ in points) for edge in (min, max))
    losses = [loss for *_, loss in points]
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
            dots = [(across(math.log10(time_s)), down(loss)) for _, time_s, loss in way["points"][1:]]
            for start, end in pairwise(dots):
                drawing.line(start, end, f"way-{number}")
    return standalone(drawing.root, STYLE)


def main() -> None:
    """Measure, check, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="guests at once")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--more", action="store_true", help="only networks that are not there yet")
    parser.add_argument("--draw", action="store_true", help="nothing new: what is there once more")
    options = parser.parse_args()
    if not options.draw:
        there = {network_key(network) for network in kept()} if options.more else set()
        asked = [(delay, rate) for rate in RATES_GBPS for delay in DELAYS_MS if (delay, rate) not in there]
        networks = kept() if options.more else []
        with ThreadPoolExecutor(options.jobs) as pool:
            for network in pool.map(lambda one: measure(one[0], one[1], options.steps), asked):
                networks.append(network)
                FOUND.write_text(json.dumps({"scale": SCALE, "networks": networks}) + "\n")
    networks = sorted(kept(), key=lambda network: (network["rate_gbps"], network["delay_ms"]))
    FOUND.with_suffix(".svg").write_text(picture(networks))
    print("\n".join([*table(networks), "", "Measured over predicted:", "", *predictions(networks)]))
    if found := doubts(networks):
        raise SystemExit("\n".join(["not to be trusted:", *found]))
    print(
        f"all {sum(len(way['points']) for network in networks for way in network['ways'])} points are trusted"
    )


if __name__ == "__main__":
    main()
