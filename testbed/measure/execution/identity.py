"""What the record of a guest depends on, as one name: where it is the same, so is the record."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.measure.results.run_directory import surroundings
from testbed.prediction.calibration import file_in_use

CODE = Path(__file__).parents[2]
OWN_FILE = re.compile(r"(/[^\s'\":,]+\.py):\w")
DIGITS = 16


def identity_of(scenario: str, others: Any) -> str:
    """Hexadecimal; changes with the scenario's text, the text of files named in it, this code and the calibration.

    scenario: as YAML, with whole paths. others: what else counts, as JSON.
    """
    found = hashlib.sha256()
    for part in (scenario, json.dumps(others, sort_keys=True), *_surroundings(), *_texts(scenario)):
        found.update(part.encode() + b"\0")
    return found.hexdigest()[:DIGITS]


def _surroundings() -> Iterator[str]:
    yield json.dumps(surroundings()["versions"], sort_keys=True)
    yield sys.executable
    yield str(CODE)


def _texts(scenario: str) -> Iterator[str]:
    own = {Path(name) for name in OWN_FILE.findall(scenario)}
    calibration = file_in_use()
    for file in (*sorted(CODE.rglob("*.py")), *sorted(own), *([calibration] if calibration else [])):
        yield str(file)
        yield file.read_text() if file.exists() else ""
