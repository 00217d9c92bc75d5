"""What docs/evidence/losses.md shows of the grid and of the packets: its picture, and its tables in Markdown.

python benchmarks/losses/page.py [FOLDER]     # docs/evidence/experiments: losses.svg; tables are printed
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import grid
import numpy as np
import sdr_rdma
from forms import PACKET_BYTES, TRANSPORTS, Completion, completion
from forms import Path as NetworkPath
from packets import FOUND as ON_PACKETS

from testbed.comm.transport.rdma.wire import HEADERS_BYTES
from testbed.net.paths.datagram_recovery import RecoveryForm
from testbed.show.report.svg import Axis, Drawing, svg_document

COLOURS = dict(
    zip(
        TRANSPORTS,
        ("#8c510a", "#d8b365", "#01665e", "#000000", "#999999", "#56b4e9", "#0072b2", "#d55e00", "#cc79a7"),
        strict=True,
    )
)
PANEL, HEIGHT, LEFT, TOP, GAP = 300, 210, 52, 56, 46
ROUND_TRIP_MS = 25
SHOWN = ("128 KiB", "8 MiB", "1 GiB")
STYLE = """
text { font: 12px system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.title { font-weight: 600; } .tick { fill: #5a6572; font-size: 11px; } .page { fill: #ffffff; }
.grid { stroke: #e3e7ec; stroke-width: 1; }
""" + "".join(
    f".{name} {{ stroke: {colour}; stroke-width: 2; stroke-linecap: round; }} .dot-{name} {{ fill: {colour}; }}\n"
    for name, colour in COLOURS.items()
)
Found = dict[grid.Cell, Completion]


def least_s(size_bytes: int, trip_ms: float) -> float:
    """Of a message of so many bytes alone: the line's time, half a round trip."""
    return size_bytes * 8 * (PACKET_BYTES + HEADERS_BYTES) / PACKET_BYTES / grid.RATE_BPS + trip_ms / 2e3


def picture(found: Found, runs: list[dict[str, Any]]) -> str:
    """Means above, p99.9 below, by size; dots are packets' means."""
    width, height = LEFT + 3 * PANEL, TOP + 2 * (HEIGHT + GAP)
    drawing = Drawing(width, height, "Completion of messages against loss, 400 Gbit/s, 25 ms, by transport")
    drawing.rect(0, 0, width, height, "page")
    for number, name in enumerate(TRANSPORTS):
        x = LEFT + number * (width - LEFT) / len(TRANSPORTS)
        drawing.line((x, 14), (x + 14, 14), name)
        drawing.text(x + 18, 18, name.replace("selective_repeat", "sel. repeat").replace("_", " "))
    for row, (field, title) in enumerate((("mean_s", "mean"), ("p999_s", "99.9 of 100 within"))):
        for column, size in enumerate(SHOWN):
            left, top = LEFT + column * PANEL, TOP + row * (HEIGHT + GAP)
            _panel(drawing, found, runs if row == 0 else [], left, top, size, field, title)
    return svg_document(drawing.root, STYLE)


def _panel(
    drawing: Drawing,
    found: Found,
    runs: list[dict[str, Any]],
    left: float,
    top: float,
    size: str,
    field: str,
    title: str,
) -> None:
    size_bytes = grid.SIZES[size]
    alone_s = least_s(size_bytes, ROUND_TRIP_MS)
    across = Axis(-6, -2, left + 12, left + PANEL - 34)
    down = Axis(-0.1, 4.3, top + HEIGHT, top)
    drawing.text(left, top - 8, f"{size}, {title}, times {alone_s * 1e3:.1f} ms", "title")
    for power in range(-6, -1):
        drawing.line((across(power), top), (across(power), top + HEIGHT), "grid")
        drawing.text(across(power), top + HEIGHT + 15, f"1e{power}", "tick", anchor="middle")
    for power in range(5):
        drawing.line((left, down(power)), (left + PANEL - 16, down(power)), "grid")
        if left == LEFT:
            drawing.text(left - 6, down(power) + 4, f"{10**power:g}", "tick", anchor="end")
    for name in TRANSPORTS:
        dots = [
            (
                across(math.log10(loss)),
                down(math.log10(getattr(found[name, loss, ROUND_TRIP_MS, size_bytes], field) / alone_s)),
            )
            for loss in grid.LOSSES
        ]
        for start, end in pairwise(dots):
            drawing.line(start, end, name)
    for run in runs:
        for cell in run["cells"] if run["round_trip_ms"] == ROUND_TRIP_MS else ():
            if cell["size_bytes"] == size_bytes:
                mean = math.log10(statistics.mean(cell["took_s"]) / alone_s)
                x = across(math.log10(run["loss"]))
                drawing.circle(x, down(mean), 4, f"dot-{cell['name']}")


def overview(found: Found, field: str) -> list[str]:
    """At 25 ms, times what a message takes without losses."""
    lines = [f"| message | loss | {' | '.join(TRANSPORTS)} |", f"|---|---|{'--:|' * len(TRANSPORTS)}"]
    for size in SHOWN:
        for loss in grid.LOSSES:
            alone_s = least_s(grid.SIZES[size], ROUND_TRIP_MS)
            values = [
                getattr(found[name, loss, ROUND_TRIP_MS, grid.SIZES[size]], field) for name in TRANSPORTS
            ]
            best = min(values)
            cells = [
                f"{'**' * (value < 1.01 * best)}{value / alone_s:.3g}{'**' * (value < 1.01 * best)}"
                for value in values
            ]
            lines.append(f"| {size} | {loss:g} | {' | '.join(cells)} |")
    return lines


def quickest(found: Found) -> list[str]:
    """By round trip, size and loss: which is the quickest in the mean, and at p99.9 where that is another."""
    lines = [
        f"| round trip | message | {' | '.join(f'{loss:g}' for loss in grid.LOSSES)} |",
        "|--:|---|" + "---|" * 5,
    ]
    for trip_ms in grid.ROUND_TRIPS_MS:
        for size, size_bytes in grid.SIZES.items():
            cells = []
            for loss in grid.LOSSES:
                own = {name: found[name, loss, trip_ms, size_bytes] for name in TRANSPORTS}
                firsts = [
                    _all_best({name: getattr(one, field) for name, one in own.items()})
                    for field in ("mean_s", "p999_s")
                ]
                cells.append(firsts[0] if firsts[0] == firsts[1] else f"{firsts[0]}; p99.9 {firsts[1]}")
            lines.append(f"| {trip_ms} ms | {size} | {' | '.join(cells)} |")
    return lines


def _all_best(values: dict[str, float]) -> str:
    """Those within a hundredth of the best."""
    least = min(values.values())
    best = [name for name, value in values.items() if value <= 1.01 * least]
    return (
        "all"
        if len(best) == len(values)
        else "all but BBR"
        if len(best) == len(values) - 1 and "bbr" not in best
        else ", ".join(best)
    )


def on_packets(runs: list[dict[str, Any]], tail: bool = False) -> list[str]:
    """By point and size: of each transport the mean on packets in ms, or what 99 of 100 are within, over the form's."""
    lines = [
        f"| loss | round trip | message | {' | '.join(TRANSPORTS)} |",
        f"|---|--:|---|{'---|' * len(TRANSPORTS)}",
    ]
    for run in runs:
        path = NetworkPath(grid.RATE_BPS, run["round_trip_ms"] / 1e3, run["loss"])
        for size, size_bytes in grid.SIZES.items():
            found = {cell["name"]: cell for cell in run["cells"] if cell["size_bytes"] == size_bytes}
            if found and not (tail and min(len(cell["took_s"]) for cell in found.values()) < 100):
                told = [_beside(found[name], path, tail) for name in TRANSPORTS]
                lines.append(f"| {run['loss']:g} | {run['round_trip_ms']} ms | {size} | {' | '.join(told)} |")
    return lines


def _beside(cell: dict[str, Any], path: NetworkPath, tail: bool) -> str:
    took_s = np.array(cell["took_s"])
    form = completion(cell["name"], path, cell["size_bytes"], (cell["unmeasured"], len(took_s)))
    if tail:
        return f"{np.quantile(took_s, 0.99) * 1e3:.1f} / {form.p99_s * 1e3:.1f}"
    error_ms = took_s.std(ddof=1) / math.sqrt(len(took_s)) * 1e3
    spread = f" ± {error_ms:.2g}" if error_ms >= 0.01 else ""
    return f"{took_s.mean() * 1e3:.4g}{spread} ({took_s.mean() / form.mean_s:.2f})"


def crossovers(chunk_bytes: int = 4096, draws: int = 8000) -> list[str]:
    """Erasure ahead of selective repeat on average, 400 Gbit/s, 25 ms: by the paper's equations, and by our forms.

    Sizes in steps of the square root of two.
    """
    lines = [
        "| loss | ahead by a tenth from, paper | here | ahead up to, paper | here | most, paper | here |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    rng = np.random.default_rng(1)
    sizes = [2 ** (half / 2) for half in range(17 * 2, 37 * 2)]
    for loss in grid.LOSSES:
        channel = sdr_rdma.Channel(grid.RATE_BPS, ROUND_TRIP_MS / 1e3, chunk_bytes, loss)
        paper, ours = [], []
        for size in sizes:
            count = max(100, min(draws, int(4e5 / (1 + size / chunk_bytes * loss))))
            repeat, erasure = (
                of(channel, size, count, rng).mean() for of in (sdr_rdma.selective_repeat, sdr_rdma.erasure)
            )
            paper.append(repeat / erasure)
            packets = math.ceil(size / chunk_bytes)
            forms = (
                RecoveryForm(name, packets, channel.inject_s, channel.round_trip_s, loss)
                for name in ("selective_repeat", "erasure")
            )
            known_s = [form.mean_s + form.round_trip_s / 2 for form in forms]
            ours.append(known_s[0] / known_s[1])
        both = paper, ours
        first = [next(size for size, ratio in zip(sizes, own, strict=True) if ratio >= 1.1) for own in both]
        last = [max(size for size, ratio in zip(sizes, own, strict=True) if ratio >= 1.0) for own in both]
        cells = [*map(_size, first), *map(_size, last), *(f"{max(own):.2f}" for own in both)]
        lines.append(f"| {loss:g} | {' | '.join(cells)} |")
    return lines


def _size(size_bytes: float) -> str:
    power = min(3, int(math.log2(size_bytes) // 10))
    return f"{size_bytes / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(__file__).parents[2] / "docs/evidence/experiments"
    )
    folder = parser.parse_args().folder
    found = grid.read(folder / grid.FOUND)
    runs = json.loads((folder / ON_PACKETS).read_text())
    (folder / "losses.svg").write_text(picture(found, runs))
    for title, lines in (
        ("mean", overview(found, "mean_s")),
        ("p99.9", overview(found, "p999_s")),
        ("quickest", quickest(found)),
        ("on packets, ms, mean and standard error (over the form's mean)", on_packets(runs)),
        ("99 of 100 within, ms, on packets / by the form", on_packets(runs, tail=True)),
        ("crossovers, chunks of 4 KiB", crossovers()),
    ):
        print(f"\n{title}\n\n" + "\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
