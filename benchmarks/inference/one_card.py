"""One card on packets against M/D/1: `PYTHONPATH=. python benchmarks/inference/one_card.py FOLDER`.

Runs scenarios/inference/one-card.yaml under the virtual clock at two loads, with many seeds, and prints the mean wait
beside Pollaczek and Khinchine's with its standard error over the runs; what is in FOLDER already is not run again.
Service is 100 us in place of 1 ms, so that less virtual time passes; the first requests of a run are not counted.

A second estimate of the same mean has less of the draw in it: from each run's mean is taken what its own arrivals would
have waited had the card been idle until a number of arrivals before each, and that wait's mean, which is known exactly
(Spitzer 1956), is put in its place.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from measuring import measured

from testbed.measure.results.result import Variant
from testbed.workload.serving.frontend import draw_arrivals
from tests.queueing import md1_wait_s, recent_wait_s, recent_waits_s

SERVICE_S = 100e-6
# 80 us of computing and 20 us of launch
CARD = {
    "workload.inference.peak_flops": "12.5 Tflop/s",
    "workload.inference.recommendation": {
        "tables": 0,
        "samples": 1,
        "features": 16,
        "dense_flops": 1e9,
        "dense_parameters": 100_000,
    },
}
RECENT = {0.5: 20, 0.8: 100}  # arrivals, by load
NOT_COUNTED = 500
WITHIN = 0.02


def run(folder: Path, load: float, requests: int, seed: int) -> Variant:
    """On packets."""
    changes = {
        **CARD,
        "workload.inference.rate": load / SERVICE_S,
        "workload.inference.requests": requests,
        "workload.inference.not_counted": NOT_COUNTED,
        "seed": seed,
    }
    return measured(folder, f"load-{load}-{requests}-{seed}", "one-card.yaml", "load-800", changes)


def with_known(load: float, requests: int, seed: int, wait_s: float) -> float:
    """A run's mean wait with the part of its draw taken out whose mean is known."""
    arrivals_s = draw_arrivals("poisson", load / SERVICE_S, requests, seed)
    own = recent_waits_s(arrivals_s, SERVICE_S, RECENT[load])[NOT_COUNTED:]
    return wait_s - statistics.mean(own) + recent_wait_s(load / SERVICE_S, SERVICE_S, RECENT[load])


def estimate(values: Sequence[float], exact: float) -> tuple[float, float]:
    """Mean and standard error, as shares of the exact value."""
    return statistics.mean(values) / exact, statistics.stdev(values) / math.sqrt(len(values)) / exact


def main() -> int:
    """Both loads; 1 where the second estimate's 95 % interval does not lie within 2 % of theory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=8000)
    options = parser.parse_args()
    lines = [
        "| load | requests | M/D/1 | mean of the runs | with what is known | trusted |",
        "|---|---|---|---|---|---|",
    ]
    good = True
    for load in RECENT:
        seeds = range(1, options.seeds + 1)
        found = [run(options.folder, load, options.requests, seed) for seed in seeds]
        waits = [own.serving.mean_parts.queue_s for own in found if own.serving is not None]
        exact = md1_wait_s(load / SERVICE_S, SERVICE_S)
        better = [
            with_known(load, options.requests, seed, wait) for seed, wait in zip(seeds, waits, strict=True)
        ]
        plain, known = estimate(waits, exact), estimate(better, exact)
        good = good and abs(known[0] - 1) + 1.96 * known[1] < WITHIN
        trusted = sum(own.verdict.status == "trusted" for own in found)
        count = f"{len(waits)} x {options.requests - NOT_COUNTED:,}"
        words = [f"{100 * (mean - 1):+.2f} % (s.e. {100 * error:.2f} %)" for mean, error in (plain, known)]
        lines.append(f"| {load} | {count} | {1e6 * exact:g} us | {' | '.join(words)} | {trusted} |")
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
