"""Verdicts of a diagnosis, and their text for terminals and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

CRASHED = "CRASHED"
SILENT = "SILENT"
RANK_NOT_JOINED = "RANK_NOT_JOINED"
MISMATCH = "MISMATCH"
DEADLOCK = "DEADLOCK"
STUCK_IN_NETWORK = "STUCK_IN_NETWORK"
SLOW_RANK = "SLOW_RANK"
SLOW_NETWORK = "SLOW_NETWORK"
SLOW_IO = "SLOW_IO"

MEANINGS = {
    CRASHED: "it has ended, and others wait for it",
    SILENT: "it does nothing any more, but is not known to have ended",
    RANK_NOT_JOINED: "the others have started an operation, and it has not",
    MISMATCH: "ranks disagree on what the same operation is",
    DEADLOCK: "ranks wait for each other in a cycle",
    STUCK_IN_NETWORK: "messages were sent and do not arrive",
    SLOW_RANK: "it repeatedly starts operations late because of its own delay",
    SLOW_NETWORK: "messages are sent in time but take long to arrive",
    SLOW_IO: "its operations take long to start, but move data at normal speed",
}


@dataclass(frozen=True)
class Verdict:
    """One fault that explains what is wrong.

    Attributes:
        kind: One of MEANINGS.
        ranks: The ranks at fault, if any.
        component: The network part or host at fault, if any.
        since_s: Start of the fault on the clock of the first affected rank; None if it was present from the start.
        certainty: 0 to 1.
        reason: Why this is considered the fault.
        felt_by: Number of ranks that wait because of it, directly or indirectly.
        evidence: Observations, as lines of text.
        look_at: Things to check.
        pairs: The (sender, receiver) pairs that a fault of the network explains.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    component: str = ""
    since_s: float | None = None
    certainty: float = 1.0
    reason: str = ""
    felt_by: int = 0
    evidence: Sequence[str] = ()
    look_at: str = ""
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def who(self) -> str:
        """The culprit, such as "rank 3", "ranks 3 and 5" or "link a-b-0"."""
        return self.component or ranks_text(self.ranks)


@dataclass(frozen=True)
class NaiveVerdict:
    """The rank that one would blame without comparing dumps: the peer that the first timeout names, if there is one."""

    rank: int | None
    words: str


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis.

    Attributes:
        verdicts: The most likely one first; empty for a healthy run.
        naive: The conclusion that one would draw without comparing dumps.
        first_incomplete: The first operation that is not complete; "" if there is none.
        ranks: Number of dumps.
        missing: Ranks without a dump, as far as the known groups show.
    """

    verdicts: tuple[Verdict, ...]
    naive: NaiveVerdict
    first_incomplete: str = ""
    ranks: int = 0
    missing: tuple[int, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the diagnosis as data for JSON."""
        document = asdict(self)
        for entry, verdict in zip(document["verdicts"], self.verdicts, strict=True):
            entry |= {"look_at": [verdict.look_at], "who": verdict.who}
        return {"schema": 1, **document}


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Return ranks as text; if there are more than eight, only the first ones."""
    if not ranks:
        return "nobody"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:8]))} and {len(ranks) - 8} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def moment_text(seconds: float) -> str:
    """Return a time on a rank's clock as text, rounded to a millisecond, which is the accuracy of the clocks."""
    return f"{seconds:.3f} s"


def seconds_text(seconds: float) -> str:
    """Return a duration as text, to three digits or more."""
    if abs(seconds) >= 1 or seconds == 0:
        return f"{seconds:.4g} s"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.3g} us"


def since_text(verdict: Verdict) -> str:
    """Return the start of a fault as text, on the ranks' clocks."""
    return "the first record" if verdict.since_s is None else moment_text(verdict.since_s)


def impact_text(verdict: Verdict) -> str:
    """Return the number of affected ranks as text."""
    return f"felt by {verdict.felt_by} rank{'' if verdict.felt_by == 1 else 's'}"


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict as one line: fault, culprit, start, certainty."""
    sure = f"{100 * verdict.certainty:.0f} % sure"
    return f"{verdict.kind}: {verdict.who}, since {since_text(verdict)}, {sure}: {MEANINGS[verdict.kind]}"


def diagnosis_lines(found: Diagnosis, most: int = 3) -> list[str]:
    """Return the diagnosis as lines of text, with at most `most` verdicts."""
    missing = f"; missing: {', '.join(map(str, found.missing))}" if found.missing else ""
    lines = [f"{found.ranks} ranks' dumps{missing}"]
    if found.first_incomplete:
        lines.append(f"first incomplete operation: {found.first_incomplete}")
    if not found.verdicts:
        lines.append("these dumps show nothing wrong")
    for verdict in found.verdicts[:most]:
        lines += ["", verdict_line(verdict), f"  why: {verdict.reason}; {impact_text(verdict)}"]
        lines += [f"  - {line}" for line in verdict.evidence]
        lines.append(f"  look at: {verdict.look_at}")
    if len(found.verdicts) > most:
        lines.append(f"and {len(found.verdicts) - most} less likely ones")
    return [*lines, "", f"without comparing dumps one would say: {found.naive.words}"]
