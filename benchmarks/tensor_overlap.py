"""What overlap gains tensor-parallel ranks, against how long computing takes beside communication.

    .venv/bin/python benchmarks/tensor_overlap.py [--run] [--ratios 0.5,1,2]

scenarios/tensor-overlap.yaml with computing of a quarter to four times the communication that it is to hide, by the
part of an accelerator's peak that products reach: without overlap and with, by a ring and by a tree. By the model; with
--run on emulated links under the virtual clock. Prints a table of docs/evidence/training.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import testbed

SCENARIO = Path(__file__).parents[1] / "scenarios" / "tensor-overlap.yaml"
# one after the other, and overlapped
WAYS = {"ring": ("sequence_parallel", "overlapped_ring"), "tree": ("tree", "overlapped_tree")}
PARALLELISM = "workload.parallelism.tensor_communication"
# a peak that leaves room for all ratios
ALIKE = {"workload.accelerator": "gb200"}


def step_s(way: str, utilisation: float, run: bool = False) -> float:
    """Of one way, with products at this part of the peak."""
    changes: dict[str, Any] = {**ALIKE, PARALLELISM: way, "workload.flops_utilisation": utilisation}
    scenario = testbed.load(SCENARIO, changes)
    if not run:
        return testbed.predict(scenario)["ring"].step_time_s
    with tempfile.TemporaryDirectory() as folder:
        result = testbed.run(scenario, clock="virtual", output=Path(folder) / "run")
    if result.status != "trusted":
        raise SystemExit(f"{way}: the run is {result.status}")
    return result.variants[0].step_time_s.median


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", action="store_true", help="on emulated links, in place of by the model")
    parser.add_argument("--ratios", default="0.25,0.5,1,2,4")
    options = parser.parse_args()
    run, ratios = options.run, [float(ratio) for ratio in options.ratios.split(",")]
    print("| way | computing / communication | one after the other | overlapped | |\n|---|---|---|---|---|")
    for way, (apart, together) in WAYS.items():
        # a step is communication and, to the utilisation's inverse, computing
        slow_s, quick_s = step_s(apart, 0.25), step_s(apart, 0.5)
        computing_s = (slow_s - quick_s) / 2  # with all of the peak
        communication_s = quick_s - 2 * computing_s
        for ratio in ratios:
            utilisation = computing_s / (ratio * communication_s)
            before_s, after_s = (step_s(one, utilisation, run) for one in (apart, together))
            times = f"{1e3 * before_s:.2f} ms | {1e3 * after_s:.2f} ms"
            print(f"| {way} | {ratio:g} | {times} | {before_s / after_s:.2f}x |", flush=True)


if __name__ == "__main__":
    main()
