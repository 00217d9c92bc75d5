"""The result of a search: configurations in order of step time, and the baselines that they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from testbed.notebooks import html_table
from testbed.prediction.search.baselines import Kind, Sensitivity
from testbed.prediction.search.evaluation import (
    Configuration,
    Evaluation,
    Infeasible,
)
from testbed.spec.units import size_text, time_text

SHOWN = 5  # number of best configurations shown in a notebook


@dataclass(frozen=True)
class RankedConfiguration:
    """A feasible configuration, with a name and kind if it is part of a comparison.

    `tuned` is true if the search chose the values that the baseline tunes itself.
    """

    configuration: Configuration
    tried: Evaluation
    name: str = ""
    kind: Kind | None = None
    tuned: bool = False

    @property
    def label(self) -> str:
        """The name, distinct for tuned baselines."""
        return f"{self.name} tuned" if self.tuned else self.name


@dataclass(frozen=True)
class Exploration:
    """The result of a search.

    Attributes:
        combinations: Size of the space.
        tried: Number of combinations that the model evaluated; of random ones, only those that fit.
        fitting: All evaluated configurations that fit, fastest first.
        baselines: The baselines, as given, then tuned.
        single: The best of each dimension alone: as given, then tuned.
        random: The best of the same number of random tries, also in `fitting`; None if the whole space was evaluated.
        infeasible: Number of configurations that each constraint rejects.
        examples: One example per constraint.
        indifferent: Paths whose other feasible values do not change the best configuration's step, with the best's
            value.
        sensitivity: The value of each difference between the best configuration and the first baseline.
        chosen: The best configurations after packet-level measurement, fastest first.
        kept: Indifferent paths for which the best configuration has the scenario's own value.
    """

    combinations: int
    tried: int
    fitting: Sequence[RankedConfiguration]
    baselines: Sequence[RankedConfiguration]
    single: Sequence[RankedConfiguration]
    random: RankedConfiguration | None
    infeasible: Mapping[str, int]
    examples: Mapping[str, Infeasible]
    indifferent: Mapping[str, Any] = field(default_factory=dict)
    sensitivity: Sensitivity | None = None
    chosen: Sequence[RankedConfiguration] = ()
    kept: Sequence[str] = ()

    @property
    def best(self) -> RankedConfiguration:
        """The fastest configuration."""
        return self.fitting[0]

    @property
    def distinct(self) -> list[RankedConfiguration]:
        """One configuration for each distinct result, fastest first."""
        found: dict[Evaluation, RankedConfiguration] = {}
        for result in self.fitting:
            found.setdefault(result.tried, result)
        return list(found.values())

    def compared(self, most: int) -> list[RankedConfiguration]:
        """Return the baselines, the best of each dimension and of random tries, and the `most` best overall."""
        named = [*self.baselines, *self.single, *([self.random] if self.random else [])]
        best = (self.chosen or self.distinct)[:most]
        return [
            *named,
            *(replace(result, name=f"best {n}", kind="best") for n, result in enumerate(best, 1)),
        ]

    def _repr_html_(self) -> str:
        """Return the HTML table that notebooks show."""
        best_s = self.best.tried.step_time_s
        rows = [
            [
                result.label,
                str(result.configuration),
                time_text(result.tried.step_time_s),
                f"{result.tried.step_time_s / best_s:.2f}x",
                size_text(result.tried.wan_bytes),
            ]
            for result in sorted(self.compared(SHOWN), key=lambda result: result.tried.step_time_s)
        ]
        before = [f"The best, by the model: {self.best.configuration}. {time_text(best_s)} a step."]
        after = [
            f"{self.tried:,} tried of {self.combinations:,} combinations, of which {len(self.fitting):,} fit."
        ]
        headings = ("", "configuration", "step time", "against the best", "between buildings")
        return html_table(headings, rows, before, after)

    @property
    def pareto(self) -> list[RankedConfiguration]:
        """The Pareto front of step time and bytes between buildings, fastest first."""
        found: list[RankedConfiguration] = []
        for result in self.fitting:
            if not found or result.tried.wan_bytes < found[-1].tried.wan_bytes:
                found.append(result)
        return found
