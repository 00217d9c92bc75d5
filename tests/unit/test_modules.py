"""A module is as long as can be read at once."""

from __future__ import annotations

from pathlib import Path

import testbed

LINES = 400


def test_no_module_is_longer_than_400_lines() -> None:
    folder = Path(testbed.__file__).parent
    lengths = {
        str(file.relative_to(folder)): len(file.read_text().splitlines()) for file in folder.rglob("*.py")
    }
    assert len(lengths) > 100
    assert {name: length for name, length in lengths.items() if length > LINES} == {}
