"""Our search against other libraries' at the same budget, by how much longer the best step that each finds is.

    python -m tests.bench.search_methods SCENARIO TABLE [--tries 50 100 200 400] [--jobs 1]

TABLE (JSON Lines) is filled with what the model says of every configuration that fits by the closed form, and read
where it is there; then each method asks it. Needs nevergrad, pymoo and optuna, which the project does not. They choose
a value for every path by its number. A configuration whose degrees do not multiply to the accelerators costs them
nothing, as it costs ours nothing, up to fifty of those for each try; so does one that they have asked for already.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import nevergrad
import numpy as np
import optuna
from pymoo.algorithms.soo.nonconvex.ga import GA
from pymoo.core.problem import ElementwiseProblem
from pymoo.operators.crossover.sbx import SBX
from pymoo.operators.mutation.pm import PM
from pymoo.operators.repair.rounding import RoundingRepair
from pymoo.operators.sampling.rnd import IntegerRandomSampling
from pymoo.optimize import minimize

from testbed.prediction.closed_form import Screener
from testbed.prediction.executors import Processes
from testbed.prediction.search import Configuration, Evaluation, Infeasible, Search
from testbed.prediction.search.evaluator import Evaluator, Tried
from testbed.prediction.search.space import Space
from testbed.spec.scenario import Scenario, load_scenario
from tests.bench.search_regret import on_budget

SEEDS = (1, 2, 3)
FREE = 50  # of what costs nothing, for each try
MISFIT = 1e3  # times the longest step: what a configuration that does not fit is said to take


class Spent(Exception):
    """The budget is used up."""


class Asked:
    """What a method has asked for. best_s: the quickest so far; spent: how many of the model's tries it took."""

    def __init__(self, space: Space, known: dict[str, Tried], budget: int, worst_s: float) -> None:
        self.space, self.known, self.budget, self.worst_s = space, known, budget, worst_s
        self.values = list(space.values.values())
        self.seen: dict[str, float] = {}
        self.spent = self.free = 0
        self.best_s = math.inf

    def __call__(self, numbers: Sequence[int]) -> float:
        """Seconds of the configuration with these values."""
        chosen = [some[int(number)] for some, number in zip(self.values, numbers, strict=True)]
        key = Configuration(dict(zip(self.space.values, chosen, strict=True))).key
        found = self.known.get(key)
        if key in self.seen or found is None:
            self.free += 1
            if self.free > FREE * self.budget:
                raise Spent
            return self.seen.get(key, MISFIT * self.worst_s)
        if self.spent == self.budget:
            raise Spent
        self.spent += 1
        self.seen[key] = found.step_time_s if isinstance(found, Evaluation) else MISFIT * self.worst_s
        self.best_s = min(self.best_s, self.seen[key])
        return self.seen[key]


def at_random(asked: Asked, seed: int) -> None:
    """Of those that fit."""
    draw = random.Random(seed)
    while True:
        asked([draw.randrange(len(some)) for some in asked.values])


def by_nevergrad(name: str) -> Callable[[Asked, int], None]:
    """One of its optimisers."""

    def search(asked: Asked, seed: int) -> None:
        paths = [nevergrad.p.Choice(list(range(len(some)))) for some in asked.values]
        parametrisation = nevergrad.p.Tuple(*paths)
        parametrisation.random_state.seed(seed)
        made = nevergrad.optimizers.registry[name](parametrisation, budget=asked.budget)
        while True:
            one = made.ask()
            made.tell(one, asked(one.value))

    return search


def by_pymoo(asked: Asked, seed: int) -> None:
    """Its genetic algorithm on whole numbers."""

    class Problem(ElementwiseProblem):  # type: ignore[misc]
        def __init__(self) -> None:
            most = np.array([len(some) - 1 for some in asked.values])
            super().__init__(n_var=len(most), n_obj=1, xl=np.zeros(len(most)), xu=most, vtype=int)

        def _evaluate(self, x: Sequence[int], out: dict[str, float], *_: object, **__: object) -> None:
            out["F"] = asked(x)

    algorithm = GA(
        pop_size=max(10, asked.budget // 10),
        sampling=IntegerRandomSampling(),
        crossover=SBX(prob=1.0, eta=3.0, vtype=float, repair=RoundingRepair()),
        mutation=PM(prob=1.0, eta=3.0, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    minimize(Problem(), algorithm, ("n_eval", FREE * asked.budget), seed=seed, verbose=False)


def by_optuna(asked: Asked, seed: int) -> None:
    """Its tree of Parzen estimators. It draws anew what it has had, so what is free is bounded more tightly."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
    for _ in range(5 * asked.budget):
        trial = study.ask()
        numbers = [trial.suggest_categorical(str(n), range(len(some))) for n, some in enumerate(asked.values)]
        study.tell(trial, asked(numbers))


METHODS: dict[str, Callable[[Asked, int], None]] = {
    "Nevergrad, NGOpt": by_nevergrad("NGOpt"),
    "Nevergrad, PortfolioDiscreteOnePlusOne": by_nevergrad("PortfolioDiscreteOnePlusOne"),
    "pymoo, GA": by_pymoo,
    "Optuna, TPE": by_optuna,
    "at random": at_random,
}


def filled(scenario: Scenario, space: Space, file: Path, jobs: int) -> dict[str, Tried]:
    """What the model says of all that fit, from the file as far as that goes."""
    known: dict[str, Tried] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            key, fits, values = json.loads(line)
            known[key] = (Evaluation if fits else Infeasible)(**values)
    screener = Screener(scenario)
    fits = [one for one in space if screener.step_s(one.changes) is not None]
    began_s = time.monotonic()
    with file.open("a") as kept:

        def found(one: Configuration, tried: Tried) -> None:
            print(json.dumps([one.key, isinstance(tried, Evaluation), asdict(tried)]), file=kept, flush=True)
            if len(known) % 100 == 0:
                print(f"{len(known)} of {len(fits)}", file=sys.stderr, flush=True)

        with Evaluator(scenario, known, found, lambda standing: None, len(fits), Processes(jobs)) as tries:
            tries.all(fits)
    print(f"{space.size:,} combinations, {len(fits):,} tried, {time.monotonic() - began_s:.0f} s", flush=True)
    return {one.key: known[one.key] for one in fits}


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--tries", type=int, nargs="*", default=[50, 100, 200, 400])
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(logging.ERROR)
    scenario = load_scenario(options.scenario)
    assert scenario.explore is not None
    space = Space(scenario.explore.space, {})
    known = filled(scenario, space, options.table, options.jobs)
    every = [tried.step_time_s for tried in known.values() if isinstance(tried, Evaluation)]
    best_s, worst_s = min(every), max(every)
    print(f"{len(every):,} fit, the best {best_s:.4g} s, their median {statistics.median(every):.4g} s\n")
    print(f"| budget | ours | {' | '.join(METHODS)} |\n|---{'|---' * (1 + len(METHODS))}|")
    for budget in options.tries:
        cells = []
        ours = [
            Search(
                on_budget(budget, scenario, seed), known=dict(known), engine=Processes(1), at_random=False
            ).run()
            for seed in SEEDS
        ]
        tried = max(one.tried for one in ours)
        cells.append(f"{max(one.best.tried.step_time_s for one in ours) / best_s - 1:.2%} ({tried} tried)")
        for search in METHODS.values():
            regrets = []
            for seed in SEEDS:
                asked = Asked(space, known, budget, worst_s)
                with contextlib.suppress(Spent):
                    search(asked, seed)
                regrets.append(asked.best_s / best_s - 1)
            cells.append(f"{statistics.median(regrets):.2%} ({max(regrets):.2%})")
        print(f"| {budget} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
