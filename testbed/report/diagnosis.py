"""The page and the words of a diagnosis: who, what, since when, how sure, what to look at; and the naive answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from testbed.diagnosis import MEANINGS, Diagnosis, Verdict
from testbed.report.figures import percent_text
from testbed.report.pages import render_page

DIAGNOSIS_FILE = "diagnosis.html"


def write_diagnosis(run: Path, found: Mapping[str, Diagnosis]) -> Path:
    """Write the page into a run's folder. found: by part of the run, "" of a whole."""
    path = run / DIAGNOSIS_FILE
    path.write_text(render_diagnosis(run.resolve().name, found), encoding="utf-8")
    return path


def render_diagnosis(name: str, found: Mapping[str, Diagnosis]) -> str:
    """The page's HTML."""
    content = {"name": name, "parts": list(found.items()), "meanings": MEANINGS, "since": since_text}
    return render_page("diagnosis.html.j2", content)


def since_text(verdict: Verdict) -> str:
    """Since when, by the ranks' clocks."""
    return "from the first that is recorded" if verdict.since_s is None else f"{verdict.since_s:.3f} s"


def verdict_line(verdict: Verdict) -> str:
    """One line for a terminal."""
    sure = percent_text(verdict.certainty)
    return (
        f"{verdict.kind}: {verdict.who}, since {since_text(verdict)}, {sure} sure: {MEANINGS[verdict.kind]}"
    )


def diagnosis_lines(found: Diagnosis, most: int = 3) -> list[str]:
    """All of it for a terminal; of many verdicts the first ones."""
    lines = [
        f"{found.ranks} ranks' dumps"
        + (f"; missing: {', '.join(map(str, found.missing))}" if found.missing else "")
    ]
    if found.first_incomplete:
        lines.append(f"first that is not complete: {found.first_incomplete}")
    if not found.verdicts:
        lines.append("nothing is wrong that these dumps tell")
    for verdict in found.verdicts[:most]:
        lines += ["", verdict_line(verdict), f"  why: {verdict.reason}; {verdict.felt_by} ranks feel it"]
        lines += [f"  - {line}" for line in verdict.evidence]
        lines += [f"  look at: {line}" for line in verdict.look_at]
    if len(found.verdicts) > most:
        lines.append(f"and {len(found.verdicts) - most} less likely ones")
    return [*lines, "", f"without comparing dumps one would say: {found.naive.words}"]
