"""The verdicts of a diagnosis, and their text for terminals and logs."""

from __future__ import annotations

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
    SILENT: "it does nothing any more, though nothing says that it has ended",
    RANK_NOT_JOINED: "the others have begun an operation and it has not",
    MISMATCH: "ranks mean different things by the same operation",
    DEADLOCK: "ranks wait for each other in a circle",
    STUCK_IN_NETWORK: "messages were sent and do not arrive",
    SLOW_RANK: "it begins late, again and again, by time of its own",
    SLOW_NETWORK: "messages leave in time and travel long",
    SLOW_IO: "its operations take long to begin, their data are as quick as ever",
}


@dataclass(frozen=True)
class Verdict:
    """What is wrong. kind: one of MEANINGS. ranks: whose it is, if anybody's; component: of the network, or a host.

    since_s: by the clock of the first rank that felt it, None where it always was so. certainty: 0 to 1, for `reason`.
    felt_by: how many ranks wait for it, at one or more removes. pairs: (sender, receiver) that it explains, of the
    network. evidence, look_at: a line each.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    component: str = ""
    since_s: float | None = None
    certainty: float = 1.0
    reason: str = ""
    felt_by: int = 0
    evidence: tuple[str, ...] = ()
    look_at: tuple[str, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def who(self) -> str:
        """For people: "rank 3", "ranks 3 and 5", "link a-b-0"."""
        return self.component or ranks_text(self.ranks)


@dataclass(frozen=True)
class NaiveVerdict:
    """Who is to blame if nobody compares dumps: the peer that the first time-out names. rank: None if there is none."""

    rank: int | None
    words: str


@dataclass(frozen=True)
class Diagnosis:
    """verdicts: likeliest first; none for a healthy run. first_incomplete: the first operation that is not over, or "".

    ranks: whose dumps there were; missing: whose there were not, as far as groups tell.
    """

    verdicts: tuple[Verdict, ...]
    naive: NaiveVerdict
    first_incomplete: str = ""
    ranks: int = 0
    missing: tuple[int, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Ready for JSON."""
        document = asdict(self)
        for entry, verdict in zip(document["verdicts"], self.verdicts, strict=True):
            entry["who"] = verdict.who
        return {"schema": 1, **document}


def ranks_text(ranks: tuple[int, ...]) -> str:
    """For people, of many the first ones."""
    if not ranks:
        return "nobody"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:8]))} and {len(ranks) - 8} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def moment_text(seconds: float) -> str:
    """A moment on a rank's clock, to a millisecond: no closer than clocks agree."""
    return f"{seconds:.3f} s"


def seconds_text(seconds: float) -> str:
    """A duration, to three figures or more."""
    if abs(seconds) >= 1 or seconds == 0:
        return f"{seconds:.4g} s"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.3g} us"


def since_text(verdict: Verdict) -> str:
    """Since when, by the ranks' clocks."""
    return "the first that is recorded" if verdict.since_s is None else moment_text(verdict.since_s)


def impact_text(verdict: Verdict) -> str:
    """By how many ranks."""
    return f"felt by {verdict.felt_by} rank{'' if verdict.felt_by == 1 else 's'}"


def verdict_line(verdict: Verdict) -> str:
    """One line: what, who, since when, how sure."""
    sure = f"{100 * verdict.certainty:.0f} % sure"
    return f"{verdict.kind}: {verdict.who}, since {since_text(verdict)}, {sure}: {MEANINGS[verdict.kind]}"


def diagnosis_lines(found: Diagnosis, most: int = 3) -> list[str]:
    """All of it; of many verdicts the first ones."""
    missing = f"; missing: {', '.join(map(str, found.missing))}" if found.missing else ""
    lines = [f"{found.ranks} ranks' dumps{missing}"]
    if found.first_incomplete:
        lines.append(f"first that is not complete: {found.first_incomplete}")
    if not found.verdicts:
        lines.append("nothing is wrong that these dumps tell")
    for verdict in found.verdicts[:most]:
        lines += ["", verdict_line(verdict), f"  why: {verdict.reason}; {impact_text(verdict)}"]
        lines += [f"  - {line}" for line in verdict.evidence]
        lines += [f"  look at: {line}" for line in verdict.look_at]
    if len(found.verdicts) > most:
        lines.append(f"and {len(found.verdicts) - most} less likely ones")
    return [*lines, "", f"without comparing dumps one would say: {found.naive.words}"]
