"""Waits by dispatch rule, against theory: `PYTHONPATH=. python benchmarks/inference/dispatch.py [--runs FOLDER]`.

By the model, over several seeds, with the standard error over them; with --runs also on packets, a run of each rule of
scenarios/inference/dispatch.yaml, kept in FOLDER, with the model's figure of the same arrivals beside it.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

from measuring import SCENARIOS, measured, predicted

from testbed.measure.results.serving_result import Serving
from testbed.spec.scenario import load_scenario
from tests.queueing import md1_wait_s, mdc_wait_s

SCENARIO, CARDS, SERVICE_S = "dispatch.yaml", 6, 1e-3


def by_model(setup: str, requests: int, seed: int) -> Serving:
    """What the model says of a rule."""
    found = predicted(SCENARIO, setup, {"workload.inference.requests": requests, "seed": seed})
    return Serving.model_validate({**found, "predicted": None})


def main() -> None:
    """All rules."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=6000)
    options = parser.parse_args()
    scenario = load_scenario(SCENARIOS / SCENARIO)
    assert scenario.workload.inference is not None
    rate_per_s, usual = scenario.workload.inference.rate_per_s, scenario.workload.inference.requests
    md1_s, mdc_s = md1_wait_s(rate_per_s / CARDS, SERVICE_S), mdc_wait_s(rate_per_s, SERVICE_S, CARDS)
    print(f"M/D/1 {1e6 * md1_s:.1f} us, M/D/{CARDS} {1e6 * mdc_s:.1f} us")
    print(
        "| rule | mean wait, model | s.e. | p99 | on packets | the model of the same |\n|---|---|---|---|---|---|"
    )
    for setup in scenario.variant_names:
        found = [by_model(setup, options.requests, seed) for seed in range(1, options.seeds + 1)]
        waits = [one.mean_parts.queue_s for one in found]
        error_s = statistics.stdev(waits) / math.sqrt(len(waits))
        late_s = statistics.mean(one.latency.p99 for one in found)
        cells = [
            f"{1e6 * statistics.mean(waits):.1f} us",
            f"{1e6 * error_s:.1f} us",
            f"{1e3 * late_s:.2f} ms",
        ]
        if options.runs:
            run = measured(options.runs, f"{setup}-{usual}", SCENARIO, setup, {}).serving
            assert run is not None
            same = by_model(setup, usual, scenario.seed)
            cells += [f"{1e6 * one.mean_parts.queue_s:.2f} us" for one in (run, same)]
        print(f"| {setup} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
