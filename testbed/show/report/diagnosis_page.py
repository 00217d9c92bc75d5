"""The page of a diagnosis, and the report's section on slow or disturbed runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.comm.flight_recorder import DumpError
from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.dumps import read_evidence
from testbed.measure.diagnosis.verdicts import MEANINGS, Diagnosis, impact_text, since_text, verdict_line
from testbed.measure.results.records import EVENTS
from testbed.measure.results.result import Variant
from testbed.measure.results.summary import is_slower_than_predicted
from testbed.show.report.pages import render_page

DIAGNOSIS_FILE = "diagnosis.html"


def write_diagnosis(run: Path, found: Mapping[str, Diagnosis]) -> Path:
    """Write the page into a run's folder; `found` has diagnoses by part of the run, "" for a whole run."""
    path = run / DIAGNOSIS_FILE
    path.write_text(render_diagnosis(run.resolve().name, found), encoding="utf-8")
    return path


def render_diagnosis(name: str, found: Mapping[str, Diagnosis]) -> str:
    """Render the page's HTML."""
    content = {
        "name": name,
        "parts": list(found.items()),
        "meanings": MEANINGS,
        "since": since_text,
        "felt": impact_text,
    }
    return render_page("diagnosis.html.j2", content)


def diagnose_suspects(run_dir: Path, variants: Sequence[Variant]) -> list[tuple[str, Diagnosis]]:
    """Return the diagnoses of variants that were slower than predicted or had events, from their dumps.

    A run without dumps, or with broken ones, has no diagnoses.
    """
    disturbed = (run_dir / EVENTS).exists()
    asked = [
        variant.name
        for variant in variants
        if disturbed
        or (
            variant.predicted is not None
            and is_slower_than_predicted(variant.step_time_s.median, variant.predicted.step_time_s)
        )
    ]
    if not asked:
        return []
    try:
        parts = read_evidence(run_dir)
    except (DumpError, OSError):
        return []
    found = []
    for part in parts:
        # a part covers one variant from one of its trials onwards, or all variants
        name = next((name for name in asked if re.fullmatch(rf"{re.escape(name)}(-\d+)?", part.name)), None)
        if (name is not None or not part.name) and (own := diagnose(part.dumps, part.paths)).verdicts:
            found.append((part.name, own))
    return found


def suspicion_text(name: str, found: Diagnosis) -> str:
    """Return the diagnosis of a part of a run as one line for the terminal."""
    return f"{name}: {verdict_line(found.verdicts[0])}" if name else verdict_line(found.verdicts[0])
