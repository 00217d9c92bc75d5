"""The docs' figures: what a page shows is what its command gives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def script() -> ModuleType:
    """The script, which is in no package."""
    spec = importlib.util.spec_from_file_location("docs_figures", ROOT / "benchmarks/docs_figures.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules["docs_figures"] = importlib.util.module_from_spec(spec)  # where dataclasses look
    spec.loader.exec_module(found)
    return found


docs_figures = script()

PAGE = """\
# A page

<!-- figures of: testbed predict one -->

    ring           1.977 s       1.30x      112 GB

    By the model with the calibration of 2026-11-27 (Linux 7.3.4), in 2.589 s, packet by packet

Delays of 400 ms are nobody's business.

<!-- figures of: testbed predict one: 1.98 s, 23 % -->
<!-- figures of: testbed predict two: 1.52 s -->
It takes 1.98 and 1.52 s, which is 23 % less
than in 2 s.

<!-- seconds of CPU of: testbed plan one: 0.53 s -->
It plans in 0.53 s.
"""
ANSWERS = {
    "testbed predict one": docs_figures.Output(
        0, "ring  1.9768 s  1.30x  112 GB  23.1 % less, in 112 s, by packets", 3.0
    ),
    "testbed predict two": docs_figures.Output(0, "1.524 s", 3.0),
    "testbed plan one": docs_figures.Output(0, "", 9.8),
}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(docs_figures, "ROOT", tmp_path)
    monkeypatch.setattr(docs_figures, "output_of", ANSWERS.__getitem__)
    file = tmp_path / "page.md"
    file.write_text(PAGE)
    return file


def stale(page: Path) -> list[str]:
    return [line for mark in docs_figures.marks_of(page) for line in docs_figures.stale_of(mark)]


def test_figures_that_agree_at_the_digits_shown_are_not_stale(page: Path) -> None:
    assert [
        (mark.line, mark.command.split(" ", 1)[1], len(mark.figures)) for mark in docs_figures.marks_of(page)
    ] == [
        (3, "predict one", 3),
        (11, "predict one", 2),
        (12, "predict two", 1),
        (16, "plan one", 1),
    ]
    assert stale(page) == ["page.md:16: got 0.53 s, expected about 9.8 s of CPU of `testbed plan one`"]


TABLES = """\
<!-- figures of: testbed predict one: columns the model, again -->
<!-- figures of: testbed predict two: columns 1 Gbit/s -->

| | the model | measured | again, in ms | 1 Gbit/s |
|---|---|---|---|---|
| a | 1.98 s | 7 s | 1977 ms | 1.52 s |

<!-- figures of: testbed predict {row}: columns step -->

| point | step | searched in |
|---|---|---|
| `one` | 1.977 s | 5 s |
| `two` | 1.53 s | 6 s |

<!-- figures of: python benchmarks/three.py -->

| 1e-4 | 3.87 | 64 |
"""


def test_columns_and_rows_of_tables_have_commands_of_their_own(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = docs_figures.Output(0, "| 0.0001 | 3.87 |", 1.0)
    answers = {**ANSWERS, "python benchmarks/three.py": three}
    monkeypatch.setattr(docs_figures, "output_of", answers.__getitem__)
    page.write_text(TABLES)
    assert [(mark.command.split(" ", 1)[1], len(mark.figures)) for mark in docs_figures.marks_of(page)] == [
        ("predict one", 2),
        ("predict two", 1),
        ("predict one", 1),
        ("predict two", 1),
        ("benchmarks/three.py", 1),
    ]
    wrong = "page.md:13: got 1.53 s, expected 1.524 s as the nearest of `testbed predict two`"
    assert stale(page) == [wrong]
    page.write_text(TABLES.replace("3.87", "3.89").replace("columns 1 Gbit/s", "columns 2 Gbit/s"))
    assert stale(page) == [
        "page.md:2: columns 2 Gbit/s: got a mark, expected it in what follows, too",
        wrong,
        "page.md:17: got 3.89, expected 3.87 as the nearest of `python benchmarks/three.py`",
    ]


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        ("1.977 s ", "1.978 s ", "page.md:5: got 1.978 s, expected 1.9768 s as the nearest of"),
        ("112 GB", "112 MB", "page.md:5: got 112 MB, expected 112 GB as the nearest of"),
        (": 1.98 s, 23 %", ": 1.98 s, 25 %", "page.md:11: 25 %: got a mark, expected it in what follows"),
        ("and 1.52 s", "and 1.53 s", "page.md:12: 1.52 s: got a mark, expected it in what follows"),
    ],
)
def test_figures_that_moved_are_listed_with_file_and_line(
    page: Path, here: str, there: str, said: str
) -> None:
    page.write_text(PAGE.replace(here, there))
    assert [line for line in stale(page) if line.startswith(said)]


def test_a_command_that_fails_is_stale(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        docs_figures, "output_of", lambda command: docs_figures.Output(2, "error: no such file", 0.1)
    )
    assert stale(page)[0] == "page.md:3: testbed predict one: got status 2 (error: no such file), expected 0"


def test_quantities_are_read_with_their_units_and_digits() -> None:
    read = [
        (one.kind, one.value, one.half)
        for one in docs_figures.quantities("33,150 tokens/s, 2.5 ms 7.3.4 and ring-2")
    ]
    assert read == [("tokens/s", 33150.0, 0.5), ("s", pytest.approx(0.0025), pytest.approx(5e-5))]


@pytest.mark.parametrize("command", ["predict quickstart", "plan hundred-thousand"])
def test_what_the_pages_show_is_what_the_model_says(command: str) -> None:
    marks = [mark for mark in docs_figures.marks_in(docs_figures.PAGES, command) if mark.what == "figures"]
    assert marks
    assert [line for mark in marks for line in docs_figures.stale_of(mark)] == []
