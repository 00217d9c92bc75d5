"""Configuration spaces: all combinations of values for a set of paths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from testbed.prediction.closed_form import Changes
from testbed.prediction.search.evaluation import Configuration
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import Scenario

Values = Mapping[str, Sequence[Any]]
"""Paths as `--set` takes them, each with its possible values."""


@dataclass(frozen=True)
class Space:
    """All combinations of `values` on top of the fixed changes `base`."""

    values: Values
    base: Changes

    @property
    def size(self) -> int:
        """The number of combinations."""
        return math.prod(map(len, self.values.values()))

    def __iter__(self) -> Iterator[Configuration]:
        for chosen in itertools.product(*self.values.values()):
            yield self._with(dict(zip(self.values, chosen, strict=True)))

    def where(self, paths: Sequence[str], fits: Callable[[Changes], bool]) -> Iterator[Configuration]:
        """Yield combinations whose values at `paths` pass `fits`, which is called once per combination of values."""
        some = {path: values for path, values in self.values.items() if path in paths}
        rest = Space({path: values for path, values in self.values.items() if path not in some}, {})
        for one in Space(some, self.base):
            if fits(one.changes):
                for other in rest:
                    yield Configuration({**one.changes, **other.changes})

    def numbered(self, number: int) -> Configuration:
        """Return the combination with this number, from 0."""
        chosen = {}
        for path, values in reversed(tuple(self.values.items())):
            number, index = divmod(number, len(values))
            chosen[path] = values[index]
        return self._with(dict(reversed(tuple(chosen.items()))))

    def neighbours(self, configuration: Configuration) -> dict[str, list[Configuration]]:
        """Return, by path, the configurations that differ from this one only in that path."""
        changes = configuration.changes
        return {
            path: [Configuration({**changes, path: value}) for value in values if value != changes.get(path)]
            for path, values in self.values.items()
        }

    def _with(self, chosen: Changes) -> Configuration:
        return Configuration({**self.base, **chosen})


def tuned_space(entry: Mapping[str, Any], values: Values) -> Space:
    """Return the space that a baseline of `data/baselines.yaml` tunes itself, in a search over these values."""
    own: dict[str, Sequence[Any]] = {}
    for pattern, knob in entry["tunes"].items():
        if "values" in knob:
            own[pattern] = knob["values"]
        else:
            own |= {path: some for path, some in values.items() if fnmatchcase(path, pattern)}
    return space_around(entry["changes"], own)


def space_around(changes: Changes, values: Values) -> Space:
    """Return the space of these values on top of the changes."""
    return Space(values, {path: value for path, value in changes.items() if path not in values})


def own_values(scenario: Scenario, values: Values) -> dict[str, Any]:
    """Return, by path, which of these values the scenario itself has."""
    alone = scenario.changed({}, scenario.name)
    found = {}
    for path, some in values.items():
        for value in some:
            try:
                same = scenario.changed({path: value}, scenario.name) == alone
            except ConfigError:
                continue
            if same:
                found[path] = value
                break
    return found
