"""The verdict on a result: invariants that were checked, and what follows from those that do not hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["trusted", "caution", "untrusted"]
ORDER: tuple[Status, ...] = ("trusted", "caution", "untrusted")


@dataclass(frozen=True)
class Invariant:
    """One check: bound and measured value as text with units, one sentence for a person.

    `ok` is None where the check does not apply. `severity` is what the verdict becomes when it does not hold.
    """

    name: str
    bound: str
    measured: str
    ok: bool | None
    sentence: str
    severity: Status = "untrusted"


@dataclass(frozen=True)
class Verdict:
    """Status and the invariants behind it."""

    status: Status
    invariants: tuple[Invariant, ...]

    def to_dict(self) -> dict[str, Any]:
        """The form in which it stands in a summary."""
        kept = ("name", "bound", "measured", "ok", "sentence")
        rows = [{key: dataclasses.asdict(entry)[key] for key in kept} for entry in self.invariants]
        return {"status": self.status, "invariants": rows}


def judge(invariants: Iterable[Invariant]) -> Verdict:
    """As bad as the worst invariant that does not hold."""
    entries = tuple(invariants)
    return Verdict(worst([entry.severity for entry in entries if entry.ok is False]), entries)


def worst(statuses: Sequence[str]) -> Status:
    """The worst of several statuses; `trusted` when there are none."""
    return ORDER[max((ORDER.index(status) for status in ORDER if status in statuses), default=0)]


def graded(name: str, value: float, caution_above: float, untrusted_above: float, **texts: str) -> Invariant:
    """An invariant with two bounds: above the first caution, above the second untrusted."""
    severity: Status = "untrusted" if value > untrusted_above else "caution"
    return Invariant(name, ok=value <= caution_above, severity=severity, **texts)
