"""A diagnosis in words, for terminals and logs."""

from __future__ import annotations

from testbed.measure.diagnosis.verdicts import MEANINGS, Diagnosis, Verdict, moment_text


def since_text(verdict: Verdict) -> str:
    """Since when, by the ranks' clocks."""
    return "the first that is recorded" if verdict.since_s is None else moment_text(verdict.since_s)


def felt_text(verdict: Verdict) -> str:
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
        lines += ["", verdict_line(verdict), f"  why: {verdict.reason}; {felt_text(verdict)}"]
        lines += [f"  - {line}" for line in verdict.evidence]
        lines += [f"  look at: {line}" for line in verdict.look_at]
    if len(found.verdicts) > most:
        lines.append(f"and {len(found.verdicts) - most} less likely ones")
    return [*lines, "", f"without comparing dumps one would say: {found.naive.words}"]
