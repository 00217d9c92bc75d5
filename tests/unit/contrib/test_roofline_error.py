"""Computing times against published ones: the tables that the documentation has are those of the benchmark."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "roofline_error.py"))


def test_the_documentation_has_the_tables_as_they_are(benchmark: dict[str, Any]) -> None:
    text = (ROOT / "docs/evidence/captured-steps.md").read_text()
    for table in benchmark["tables"](*benchmark["read_published"]()).split("\n\n"):
        assert table in text


def test_errors_are_of_times_ours_over_theirs(benchmark: dict[str, Any]) -> None:
    row = benchmark["Row"]("half as fast", 2.0, {"utilisation": 4.0, "roofline": 1.0})
    assert row.error("utilisation") == pytest.approx(1.0)
    assert row.error("roofline") == pytest.approx(-0.5)
    # who reckons with 40 % where 20 % were reached takes a step for half as long as it is
    assert benchmark["Share"]("x", "h100", "bf16", 0.2, 0.4).error == pytest.approx(-0.5)


def test_steps_are_what_tokens_and_their_rate_make(benchmark: dict[str, Any]) -> None:
    rows, shares = benchmark["read_published"]()
    assert rows[0].published_s == pytest.approx(2 * 8192 / 5762)
    assert shares[0].published == pytest.approx(430 / 989)
    assert all(0.1 < own.published < 0.6 for own in shares)
