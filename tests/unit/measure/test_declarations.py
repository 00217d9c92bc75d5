"""Declarations of checks and of benchmark columns: what derives from them."""

from __future__ import annotations

import dataclasses

import pytest

from testbed.cli.console import print_rows
from testbed.measure.execution.collective_benchmark import COLUMNS, Row
from testbed.measure.fidelity.verdict import Finding, check, checks_of, judge
from testbed.measure.reference_docs import CHECK_MODULES, render_page

ROW = Row(
    collective="all_gather",
    algorithm="auto",
    chosen="/plans/own.py:mine",
    choice_bytes=512,
    size_bytes=4096,
    count=1024,
    dtype="float32",
    op="sum",
    time_s=0.25,
    slowest_s=0.5,
    algbw=2e9,
    busbw=1.5e9,
    wrong=3,
    sent_bytes=4096.0,
    limit_s=0.05,
)


@check("at most {} of the cable", limits=(0.1, 0.5), exempt="Nothing rusts in no time.")
def rust(share: float) -> Finding:
    """Check for rust; `share` is that of the cable."""
    return Finding(f"{share:.0%}", f"Rust covers {share:.0%} of the cable.", value=share)


@check("none", "caution")
def moss(spots: int, allowed: int = 0) -> Finding:
    """Check for moss."""
    return Finding(f"{spots}", "There is moss.", spots == 0, bound=f"at most {allowed}" if allowed else None)


@pytest.mark.parametrize(
    ("share", "ok", "status"), [(0.1, True, "trusted"), (0.11, False, "caution"), (0.51, False, "untrusted")]
)
def test_limits_grade_a_value(share: float, ok: bool, status: str) -> None:
    found = rust(share)
    assert (found.name, found.bound, found.ok) == ("rust", "at most 10% of the cable", ok)
    assert judge([found]).status == status
    assert "severity" not in found.document()
    assert rust.failure_text == "caution; untrusted above 50%"
    assert rust.summary == "Check for rust"


def test_a_finding_may_have_a_bound_of_its_own_and_a_check_may_be_unable_to_fail() -> None:
    assert (moss(0).bound, moss(0, allowed=2).bound, moss(0).ok) == ("none", "at most 2", True)
    assert judge([moss(1)]).status == "caution"
    found = rust.exempted()
    assert (found.measured, found.ok, found.sentence) == ("cannot fail", None, "Nothing rusts in no time.")


def test_every_check_is_on_the_reference_page_once() -> None:
    checks, page = checks_of(*CHECK_MODULES), render_page()
    assert len({own.name for own in checks}) == len(checks) > 30
    for own in checks:
        assert page.count(f"\n| `{own.name}` | {own.bound_text} | {own.failure_text} | {own.summary} |") == 1
        assert "{" not in own.bound_text


def test_a_row_of_the_benchmark_has_a_cell_under_each_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_rows([ROW, dataclasses.replace(ROW, limit_s=None, time_s=0.01)], COLUMNS) != []
    headings, units, row, other = capsys.readouterr().out.splitlines()
    assert headings.split()[:4] == ["#", "size", "count", "type"]
    assert units.split()[-1] == "(%)"
    assert row.split() == [
        "4096",
        "1024",
        "float32",
        "none",
        "(own.py:mine)",
        "250000",
        "2",
        "1.5",
        "3",
        "20.0",
    ]
    assert other.split()[-5:] == ["10000.00", "2", "1.5", "3", "n/a"]
