"""When a message is whole, of each transport over losses, round trips and sizes, at 400 Gbit/s: closed forms and draws.

    python benchmarks/losses/grid.py [FOLDER]     # docs/evidence/experiments: losses-grid.csv

What is there already is kept. Half an hour on one core, most of it for TCP's longest messages at the most losses.
"""

from __future__ import annotations

import argparse
import csv
from itertools import product
from pathlib import Path

from forms import TRANSPORTS, Completion, completion
from forms import Path as NetworkPath

FOUND = "losses-grid.csv"
RATE_BPS = 400e9
LOSSES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
ROUND_TRIPS_MS = (1, 5, 25, 80)
SIZES = {"128 KiB": 1 << 17, "1 MiB": 1 << 20, "8 MiB": 1 << 23, "64 MiB": 1 << 26, "1 GiB": 1 << 30}
Cell = tuple[str, float, int, int]
COLUMNS = ("transport", "loss", "round_trip_ms", "size_bytes", "mean_s", "p99_s", "p999_s")


def read(file: Path) -> dict[Cell, Completion]:
    """What was found before: transport, loss, round trip and size, and how long it takes."""
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        return {
            (
                row["transport"],
                float(row["loss"]),
                int(row["round_trip_ms"]),
                int(row["size_bytes"]),
            ): Completion(*(float(row[name]) for name in COLUMNS[4:]))
            for row in csv.DictReader(lines)
        }


def main() -> None:
    """What is not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path(__file__).parents[2] / "docs/evidence/experiments"
    )
    file = parser.parse_args().folder / FOUND
    there = read(file)
    with file.open("a", newline="") as lines:
        writer = csv.writer(lines)
        if not there:
            writer.writerow(COLUMNS)
        for size, loss, trip_ms, name in product(SIZES.values(), LOSSES, ROUND_TRIPS_MS, TRANSPORTS):
            if (name, loss, trip_ms, size) not in there:
                found = completion(name, NetworkPath(RATE_BPS, trip_ms / 1e3, loss), size)
                writer.writerow([name, loss, trip_ms, size, *(f"{seconds:.9g}" for seconds in found)])
                lines.flush()


if __name__ == "__main__":
    main()
