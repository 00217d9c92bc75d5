"""What each choice is worth alone, and each two together: taken over by the first baseline, given back by the best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.prediction.closed_form import Changes
from testbed.prediction.search.evaluation import Configuration, Evaluation, Infeasible, short

DEGREES = "degrees"  # change together: their product is the number of accelerators
_WITH_DEGREES = ("workload.schedule.microbatches", "workload.local_batch_size")

Pair = tuple[str, str]
"""Two choices; twice the same for one alone."""


@dataclass(frozen=True)
class Sensitivity:
    """Step times in seconds, None of what does not fit. choices: those in which the best and the first baseline differ.

    taken: of the baseline with what the best has there. given_back: of the best with what the baseline has there.
    """

    choices: tuple[str, ...]
    first_s: float
    best_s: float
    taken: Mapping[Pair, float | None]
    given_back: Mapping[Pair, float | None]


def sensitivity(
    first: Changes,
    best: Changes,
    tried: Callable[[Sequence[Configuration]], Sequence[Evaluation | Infeasible]],
) -> Sensitivity | None:
    """Between two configurations of the same paths; None where they do not differ, or one does not fit."""
    choices = choices_of(first, best)
    pairs = list(itertools.combinations_with_replacement(choices, 2))

    def mixed(base: Changes, other: Changes, pair: Pair) -> Configuration:
        paths = {path for choice in pair for path in choices[choice]}
        own = {path: value for path, value in base.items() if path not in paths}
        return Configuration({**own, **{path: other[path] for path in paths if path in other}})

    configurations = [Configuration(first), Configuration(best)]
    configurations += [mixed(first, best, pair) for pair in pairs]
    configurations += [mixed(best, first, pair) for pair in pairs]
    found = [one.step_time_s if isinstance(one, Evaluation) else None for one in tried(configurations)]
    first_s, best_s, *others = found
    if not choices or first_s is None or best_s is None:
        return None
    taken, given_back = others[: len(pairs)], others[len(pairs) :]
    return Sensitivity(
        tuple(choices),
        first_s,
        best_s,
        dict(zip(pairs, taken, strict=True)),
        dict(zip(pairs, given_back, strict=True)),
    )


def choices_of(first: Changes, best: Changes) -> dict[str, list[str]]:
    """Paths in which the two differ, by a word for each choice."""
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys((*first, *best)):
        if first.get(path) != best.get(path):
            together = path.endswith("_degree") or path in _WITH_DEGREES
            found.setdefault(DEGREES if together else short(path), []).append(path)
    return found


def document(found: Sensitivity | None) -> dict[str, Any] | None:
    """As `exploration.json` has it."""
    if found is None:
        return None
    return {
        "choices": list(found.choices),
        "first_s": found.first_s,
        "best_s": found.best_s,
        **{
            name: [
                {"choices": list(dict.fromkeys(pair)), "step_time_s": step_s} for pair, step_s in some.items()
            ]
            for name, some in (("taken", found.taken), ("given_back", found.given_back))
        },
    }
