"""How right the model was where searches like this one were held against packets: what it cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.prediction.search.search import Exploration, Result
from testbed.prediction.stated_errors import ModelErrors, errors_of, kind_of
from testbed.spec.catalogue import model_errors
from testbed.spec.scenario import Scenario


def model_errors_of(scenario: Scenario) -> ModelErrors | None:
    """At points of the scenario's kind; None where none was measured. ConfigError."""
    kind = kind_of(scenario)
    return None if kind is None else errors_of(model_errors()[kind])


def near(found: Exploration, errors: ModelErrors) -> Sequence[Result]:
    """The best, and what the model does not tell from it, the quickest first."""
    most_s = found.best.tried.step_time_s * (1 + errors.median)
    return [one for one in found.distinct if one.tried.step_time_s <= most_s]
