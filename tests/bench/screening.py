"""How many configurations a second the closed form looks at, and how well it ranks. One core, nothing is built or sent.

    .venv/bin/python -m tests.bench.screening [SCENARIO ...] [--trials 5] [--most 60]

For each scenario with `explore`: combinations of its space, configurations per second in a pass over all of them
(median, least, most over the trials; each with a new screener, so that nothing is remembered from one to the next), and
of `--most` of those that fit, drawn by the scenario's seed, Kendall's tau of the closed form with the model, and how
many of them the model tries in a second of the core's time.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from pathlib import Path

from testbed.cli.experiments.confirmation import kendall_tau
from testbed.gc_control import infrequent_gc
from testbed.prediction.closed_form import Screener
from testbed.prediction.search import Configuration, Evaluation, evaluate
from testbed.spec.scenario import Scenario, load_scenario


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "scenarios", nargs="*", type=Path, default=sorted(Path("scenarios/explore").glob("*.yaml"))
    )
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--most", type=int, default=60)
    options = parser.parse_args()
    for file in options.scenarios:
        scenario = load_scenario(file)
        assert scenario.explore is not None
        if scenario.workload.is_recorded:
            print(f"{file.stem}: left out, a step that was recorded is screened by another closed form")
            continue
        space = scenario.explore.space
        every = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
        rates = [_per_second(scenario, every) for _ in range(options.trials)]
        screener = Screener(scenario)
        fitting = [changes for changes in every if screener.step_s(changes) is not None]
        some = random.Random(scenario.seed).sample(fitting, min(options.most, len(fitting)))
        began_s = time.process_time()
        with infrequent_gc():  # as a search does
            tries = [evaluate(scenario, Configuration(changes)) for changes in some]
        took_s = time.process_time() - began_s
        pairs = [
            (seconds, tried.step_time_s)
            for changes, tried in zip(some, tries, strict=True)
            if isinstance(tried, Evaluation) and (seconds := screener.step_s(changes)) is not None
        ]
        print(
            f"{scenario.name}: {len(every):,} combinations, {statistics.median(rates):,.0f} per second "
            f"({min(rates):,.0f} to {max(rates):,.0f}), Kendall's tau {kendall_tau(pairs):.2f} over {len(pairs)}, "
            f"{len(some) / took_s:.1f} tries by the model in a second",
            flush=True,
        )


def _per_second(scenario: Scenario, every: list[dict[str, object]]) -> float:
    screener = Screener(scenario)
    began_s = time.perf_counter()
    for changes in every:
        screener.step_s(changes)
    return len(every) / (time.perf_counter() - began_s)


if __name__ == "__main__":
    main()
