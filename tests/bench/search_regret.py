"""What a search on a budget misses of what trying everything finds. Two processes, nothing is built or sent.

    .venv/bin/python -m tests.bench.search_regret SCENARIO [--tries 25 50 100 200 400] [--jobs 2]

First all configurations that fit by the closed form are tried on the model; then, for each budget, the search is done
again, which tries nothing that is known: how much longer its best step is than the best of all (regret), how many it
tried, and the same of as many at random (median of three seeds). Then once more with each seed, which knows nothing and
has processes of its own: seconds from its start until it had its best, and until it was over.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from testbed.prediction.closed_form import Screener
from testbed.prediction.executors import Processes
from testbed.prediction.search import Evaluation, Infeasible, Search
from testbed.prediction.search.evaluator import Evaluator, SearchProgress
from testbed.prediction.search.space import Space
from testbed.spec.scenario import Scenario, load_scenario

SEEDS = (1, 2, 3)


def on_budget(budget: int, scenario: Scenario, seed: int) -> Scenario:
    assert scenario.explore is not None
    explore = scenario.explore.model_copy(update={"tries": budget, "baselines": ()})
    return scenario.model_copy(update={"explore": explore, "seed": seed})


def timed(scenario: Scenario, jobs: int) -> tuple[float, float]:
    """Seconds until a search had its best, and until it was over."""
    began_s, had_s = time.monotonic(), dict[float, float]()

    def note(standing: SearchProgress) -> None:
        if standing.best is not None:
            had_s.setdefault(standing.best[1].step_time_s, time.monotonic() - began_s)

    found = Search(scenario, note, engine=Processes(jobs)).run()
    return had_s[found.best.tried.step_time_s], time.monotonic() - began_s


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--tries", type=int, nargs="*", default=[25, 50, 100, 200, 400])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    scenario = load_scenario(options.scenario)
    assert scenario.explore is not None
    space, screener = Space(scenario.explore.space, {}), Screener(scenario)
    fits = [one for one in space if screener.step_s(one.changes) is not None]

    def tell(standing: SearchProgress) -> None:
        if standing.done % 100 == 0:
            print(f"{standing.done} of {standing.planned}", file=sys.stderr, flush=True)

    known: dict[str, Evaluation | Infeasible] = {}
    began_s = time.monotonic()
    with Evaluator(
        scenario, known, lambda one, tried: None, tell, len(fits), Processes(options.jobs)
    ) as tries:
        every = [tried.step_time_s for tried in tries.all(fits) if isinstance(tried, Evaluation)]
    best_s = min(every)
    print(
        f"{scenario.name}: {space.size:,} combinations, {len(fits):,} tried in {time.monotonic() - began_s:.0f} s, "
        f"{len(every):,} fit, the best {best_s:.4g} s, their median {statistics.median(every):.4g} s"
    )
    heads = ("budget", "tried", "regret", "as many at random", "seconds to its best", "in all")
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for budget in options.tries:
        engine = Processes(options.jobs)
        searches = [
            Search(on_budget(budget, scenario, seed), known=dict(known), engine=engine) for seed in SEEDS
        ]
        both = [one.run() for one in searches]
        found = [replace(one, at_random=False).run() for one in searches]
        regrets = [one.best.tried.step_time_s / best_s - 1 for one in found]
        luck = [one.random.tried.step_time_s / best_s - 1 for one in both if one.random is not None]
        at_random = f"{statistics.median(luck):.2%}" if luck else "none fits"
        took = [timed(on_budget(budget, scenario, seed), options.jobs) for seed in SEEDS]
        seconds = [f"{statistics.median(some):.1f} ({max(some):.1f})" for some in zip(*took, strict=True)]
        cells = (budget, found[0].tried, f"{max(regrets):.2%}", at_random, *seconds)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
