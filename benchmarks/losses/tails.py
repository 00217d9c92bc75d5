"""What 99 of 100 steps do not exceed where packets are lost: as a run measured it, and as a search tells it.

.venv/bin/python benchmarks/losses/tails.py RUN
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.prediction.calibration import find_calibration
from testbed.prediction.search.evaluation import DRAWS
from testbed.prediction.step_prediction import predict_step, predict_tail_s
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import job_of

SHARES = 0.5, 0.9, 0.95, 0.98, 0.99, 1.0


def main() -> None:
    """By variant."""
    folder = Path(sys.argv[1])
    scenario, calibration = load_scenario(folder / "scenario.yaml"), find_calibration("virtual")
    summary = json.loads((folder / "summary.json").read_text())
    scale = Scale(summary["scale"]["size_scale"])
    for entry in summary["variants"]:
        own = scenario if scenario.variants is None else scenario.variant(entry["name"])
        job, algorithm = job_of(own, scale), own.algorithms[0]
        step_s = predict_step(job, algorithm, calibration, DRAWS, packets=0).step_time_s
        tail_s = predict_tail_s(job, algorithm, step_s, calibration)
        told = "not drawn" if tail_s is None else f"{scale.real_s(tail_s):.3f} s"
        samples = entry["step_time_s"]["samples"]
        each = ", ".join(f"{share:.0%} {quantile(samples, share):.3f}" for share in SHARES)
        print(f"{entry['name']}: {len(samples)} steps, mean {statistics.fmean(samples):.3f} s, {each}")
        print(f"    by the model {scale.real_s(step_s):.3f} s, 99 % within {told}")


def quantile(samples: Sequence[float], share: float) -> float:
    """What so large a share of them do not exceed."""
    return sorted(samples)[math.ceil(share * len(samples)) - 1]


if __name__ == "__main__":
    main()
