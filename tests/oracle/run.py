"""All figures of a run, held against its raw files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.oracle.checks import Checks
from tests.oracle.html_page import Page
from tests.oracle.page import Shown, check_page
from tests.oracle.pauses import check_shown_pauses
from tests.oracle.printed import check_comparisons, check_printed
from tests.oracle.raw import RawRun, Record
from tests.oracle.serving import check_shown_serving
from tests.oracle.summary import check_variant
from tests.oracle.tables import check_tables
from tests.oracle.variant import MeasuredVariant
from tests.oracle.verdict import check_headline


class Oracle:
    """A run's own figures, worked out from its raw files alone; holds others against them."""

    def __init__(self, folder: Path) -> None:
        self.run = RawRun(folder)
        self._variants: dict[str, MeasuredVariant] = {}

    def check_summary(self, summary: Record, checks: Checks) -> None:
        """Hold what `summary.json` has."""
        for entry in summary["variants"]:
            check_variant(self._variant(entry["name"]), entry, checks)

    def check_shown(
        self, summary: Record, html: str, printed: str, tables: Mapping[str, str], checks: Checks
    ) -> None:
        """Hold what people see of it: page, terminal, and tables as CSV."""
        variants = {entry["name"]: self._variant(entry["name"]) for entry in summary["variants"]}
        entries = {entry["name"]: entry for entry in summary["variants"]}
        page = Page(html)
        check_page(page, variants, entries, checks)
        check_headline(page, printed, summary, checks)
        check_shown_serving(page, printed, entries, checks)
        check_shown_pauses(page, printed, variants, entries, checks)
        check_comparisons(" ".join(page.paragraphs), variants, entries, Shown(checks, "page"))
        if printed.lstrip().startswith("{"):
            checks.equal("all: document (terminal)", json.loads(printed), summary)
        elif printed:
            check_printed(printed, variants, entries, checks)
        check_tables(self.run, variants, tables, checks)

    def _variant(self, name: str) -> MeasuredVariant:
        if name not in self._variants:
            self._variants[name] = MeasuredVariant(self.run, name)
        return self._variants[name]


def check_run(folder: Path, printed: str = "", tables: Mapping[str, str] | None = None) -> Checks:
    """Hold every figure of a finished run against the oracle's own.

    Args:
        folder: Of the run.
        printed: What the command printed on its standard output, if that is to be held, too.
        tables: The run's frames as CSV, by name: steps, operations, links.

    Raises:
        AssertionError: With a line for each figure that is not what the raw files say.
    """
    own, checks = Oracle(folder), Checks()
    summary = json.loads((folder / "summary.json").read_text())
    own.check_summary(summary, checks)
    own.check_shown(summary, (folder / "report.html").read_text(), printed, tables or {}, checks)
    assert not checks.differences, "\n".join([f"{folder}:", *checks.differences])
    return checks
