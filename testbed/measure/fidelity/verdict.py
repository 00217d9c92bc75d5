"""The verdict on a result: the checked invariants, and the status that follows from those that failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["trusted", "caution", "untrusted"]
ORDER: tuple[Status, ...] = ("trusted", "caution", "untrusted")


@dataclass(frozen=True)
class Invariant:
    """A check of a run: bound and measured value as text with units, and one sentence for the reader.

    `ok` is None if the check does not apply. `severity` is the status of the verdict if it fails.
    """

    name: str
    bound: str
    measured: str
    ok: bool | None
    sentence: str
    severity: Status = "untrusted"


@dataclass(frozen=True)
class Verdict:
    """The status of a result and the invariants behind it."""

    status: Status
    invariants: tuple[Invariant, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as it is written to a summary."""
        keys = ("name", "bound", "measured", "ok", "sentence")
        rows = [{key: getattr(entry, key) for key in keys} for entry in self.invariants]
        return {"status": self.status, "invariants": rows}


def judge(invariants: Iterable[Invariant]) -> Verdict:
    """Return the verdict on some invariants: as bad as the worst that failed."""
    entries = tuple(invariants)
    return Verdict(worst([entry.severity for entry in entries if entry.ok is False]), entries)


def worst(statuses: Sequence[str]) -> Status:
    """Return the worst of several statuses; `trusted` if there are none."""
    return ORDER[max((ORDER.index(status) for status in ORDER if status in statuses), default=0)]


def graded(name: str, value: float, caution_above: float, untrusted_above: float, **texts: str) -> Invariant:
    """Return an invariant with two bounds: caution above the first, untrusted above the second."""
    severity: Status = "untrusted" if value > untrusted_above else "caution"
    return Invariant(name, ok=value <= caution_above, severity=severity, **texts)
