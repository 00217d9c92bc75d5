"""The verdict on a result: the declared checks, their findings, and the status that follows from the failed checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, Literal, ParamSpec

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from testbed.measure.result_model import ResultModel

Status = Literal["trusted", "caution", "untrusted"]
ORDER: tuple[Status, ...] = ("trusted", "caution", "untrusted")
P = ParamSpec("P")
_UNITS: dict[str, Callable[[float], str]] = {
    "%": lambda value: f"{100 * value:g}%",
    "ms": lambda value: f"{value * 1e3:g} ms",
}


class Invariant(ResultModel):
    """An invariant: a condition that must be true for the figures to be meaningful."""

    name: str = Field(description="One of the [checks](#checks).")
    bound: str = Field(description="What is allowed.")
    measured: str
    ok: bool | None = Field(description="Whether it held; null where it does not apply.")
    sentence: str = Field(description="The finding in one sentence.")
    severity: SkipJsonSchema[Status] = Field(default="untrusted", exclude=True)
    """The status of the verdict if it does not hold; not written to files."""


class Verdict(ResultModel):
    """A judgement on whether a variant's figures can be trusted, with the reasons."""

    status: Status
    invariants: tuple[Invariant, ...]

    @property
    def failed(self) -> tuple[Invariant, ...]:
        """The invariants that are violated."""
        return tuple(entry for entry in self.invariants if entry.ok is False)


def judge(invariants: Iterable[Invariant]) -> Verdict:
    """Return the verdict on some invariants, with the worst status among those that failed."""
    entries = tuple(invariants)
    return Verdict(status=worst(entry.severity for entry in entries if entry.ok is False), invariants=entries)


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst of several statuses; `trusted` if there are none."""
    return max(statuses, key=ORDER.index, default="trusted")


@dataclass(frozen=True)
class Finding:
    """The outcome of a check: the measured value as text with its unit, and one sentence for the reader.

    `ok` is None if the check does not apply. With a `value`, `ok` and the severity follow from the check's limits.
    `severity`, `bound` and `limits` replace those of the check's declaration if they depend on the run.
    """

    measured: str
    sentence: str
    ok: bool | None = None
    severity: Status | None = None
    bound: str | None = None
    value: float | None = None
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Check(Generic[P]):
    """One field of the verdict. Its record, the reference page and the reports derive from this declaration.

    Attributes:
        compare: Compares the observations with the correct values. Its name is that of the check, and its docstring
            states what is compared.
        bound: The allowed values, as text; `{}` stands for the first of `limits`.
        severity: The status of the verdict if the check fails; with `limits`, it depends on the value.
        limits: The values above which the verdict is `caution` and `untrusted`, in `unit` ("%" or "ms" in text).
        failure: The meaning of a failure, for the reference page, if `severity` depends on the run.
        exempt: Why the check cannot fail under the virtual clock; empty if it can.
    """

    compare: Callable[P, Finding]
    bound: str
    severity: Status = "untrusted"
    limits: tuple[float, float] | None = None
    unit: str = "%"
    failure: str = ""
    exempt: str = ""

    @property
    def name(self) -> str:
        """The check's name in the verdict."""
        return self.compare.__name__

    @property
    def summary(self) -> str:
        """The comparison in words: the first sentence of the docstring, without its remarks on arguments."""
        text = " ".join((self.compare.__doc__ or "").split())
        return re.split(r"\. |\.$|; `|, likewise", text)[0]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Invariant:
        """Run the comparison and return the invariant."""
        found = self.compare(*args, **kwargs)
        ok, severity, limits = found.ok, found.severity or self.severity, found.limits or self.limits
        if found.value is not None and limits is not None:
            ok, severity = found.value <= limits[0], "untrusted" if found.value > limits[1] else "caution"
        return self._invariant(found.bound or self.bound_text, found.measured, found.sentence, ok, severity)

    def exempted(self) -> Invariant:
        """Return the invariant of a check that cannot fail under the virtual clock, where nothing is ever late."""
        return self._invariant("none needed", "cannot fail", self.exempt, None, self.severity)

    def _invariant(
        self, bound: str, measured: str, sentence: str, ok: bool | None, severity: Status
    ) -> Invariant:
        return Invariant(
            name=self.name, bound=bound, measured=measured, ok=ok, sentence=sentence, severity=severity
        )

    @property
    def bound_text(self) -> str:
        """The text of the bound, with the limit filled in."""
        return self.bound.format(_UNITS[self.unit](self.limits[0])) if self.limits else self.bound

    @property
    def failure_text(self) -> str:
        """The status of the verdict if the check fails, in words."""
        if self.limits and not self.failure:
            return f"caution; untrusted above {_UNITS[self.unit](self.limits[1])}"
        return self.failure or self.severity


def check(
    bound: str,
    severity: Status = "untrusted",
    *,
    limits: tuple[float, float] | None = None,
    unit: Literal["%", "ms"] = "%",
    failure: str = "",
    exempt: str = "",
) -> Callable[[Callable[P, Finding]], Check[P]]:
    """Declare a check of the verdict by decorating the function that compares; `Check` explains the arguments."""

    def declare(compare: Callable[P, Finding]) -> Check[P]:
        return Check(compare, bound, severity, limits, unit, failure, exempt)

    return declare


def checks_of(*modules: ModuleType) -> list[Check[Any]]:
    """Return the checks that the given modules declare, in the order of their declaration."""
    return [own for module in modules for own in vars(module).values() if isinstance(own, Check)]
