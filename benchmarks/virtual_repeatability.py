"""How well runs under the virtual clock repeat, on an idle and on a loaded machine.

    .venv/bin/python benchmarks/virtual_repeatability.py [--runs 20] [--scenario FILE] [-- OPTIONS OF testbed run...]

Runs the scenario so many times as the machine is, then as often with every core kept busy by two programs that spin.
Prints how many different sets of samples there were (equal to the nanosecond or not), the medians' spread, wall times.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
TESTBED = Path(sys.executable).with_name("testbed")


@contextlib.contextmanager
def load(programs: int) -> Iterator[None]:
    """So many programs that spin, on whatever core."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    hogs = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(programs)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def run(scenario: Path, options: list[str]) -> tuple[str, dict[str, float], float]:
    """(digest of all samples, median step time by variant, wall seconds) of one run."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "run")
        began_s = time.monotonic()
        command = [str(TESTBED), "run", str(scenario), "--clock", "virtual", "-o", str(output), *options]
        subprocess.run(command, check=True, capture_output=True)
        wall_s = time.monotonic() - began_s
        digest = hashlib.sha256((output / "samples.jsonl").read_bytes()).hexdigest()
        summary = json.loads((output / "summary.json").read_text())
    return digest, {item["name"]: item["step_time_s"]["median"] for item in summary["variants"]}, wall_s


def main() -> None:
    """Both series, one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--scenario", type=Path, default=REPOSITORY / "scenarios/quickstart.yaml")
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    print(
        "| machine | runs | different samples | variant | median step time, min to max | wall time, median |"
    )
    print("|---|---|---|---|---|---|")
    for name, hogs in (("as it is", 0), ("loaded", 2 * (os.cpu_count() or 1))):
        with load(hogs):
            runs = [run(arguments.scenario, arguments.options) for _ in range(arguments.runs)]
        different = len({digest for digest, _, _ in runs})
        wall_s = statistics.median(wall for _, _, wall in runs)
        for variant in runs[0][1]:
            medians = [found[variant] for _, found, _ in runs]
            print(
                f"| {name} | {len(runs)} | {different} | {variant} | "
                f"{min(medians):.9f} s to {max(medians):.9f} s | {wall_s:.0f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
