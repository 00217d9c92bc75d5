"""Keys of everything that results depend on: a key per shard record, and one that all workers of a cluster share."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from testbed.measure.results.run_directory import describe_environment
from testbed.net.errors import VirtualClockError
from testbed.net.virtual.kernel_image import find_image
from testbed.prediction.calibration import file_in_use
from testbed.version import VERSION

_PACKAGE = Path(__file__).parents[2]
OWN_FILE = re.compile(r"(/[^\s'\":,]+\.py):\w")
_KEY_DIGITS, _WORKER_DIGITS = 16, 12


def record_key(scenario: str, others: Any) -> str:
    """Return a hexadecimal key of the scenario, the files named in it, the testbed's code and the calibration.

    `scenario` is YAML with absolute paths. `others` is any further JSON data that the record depends on.
    """
    digest = hashlib.sha256()
    for part in (scenario, json.dumps(others, sort_keys=True), *_environment(), *_texts(scenario)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:_KEY_DIGITS]


def _environment() -> Iterator[str]:
    yield json.dumps(describe_environment()["versions"], sort_keys=True)
    yield sys.executable
    yield str(_PACKAGE)


def _code_files() -> list[Path]:
    """Return the testbed's sources, with those in C: the model of flows stands in them alone."""
    return sorted(file for file in _PACKAGE.rglob("*") if file.suffix in {".py", ".c", ".h"})


def _texts(scenario: str) -> Iterator[str]:
    own = {Path(name) for name in OWN_FILE.findall(scenario)}
    calibration = file_in_use()
    for file in (*_code_files(), *sorted(own), *([calibration] if calibration else [])):
        yield str(file)
        yield file.read_text() if file.exists() else ""


def worker_identity() -> Mapping[str, str]:
    """Return the properties that must be equal on all workers, so that results do not depend on the worker."""
    try:
        image = find_image()
        kernel = f"{image.version} ({image.recipe[:_WORKER_DIGITS]})"
    except VirtualClockError:
        kernel = "none"
    made = file_in_use()
    return {
        "testbed": f"{VERSION} ({_code()})",
        "Python": ".".join(map(str, sys.version_info[:2])),
        "calibration": "the package's" if made is None else _digest(made.read_bytes()),
        "kernel of the virtual clock": kernel,
    }


@lru_cache(maxsize=1)
def _code() -> str:
    files = ((str(file.relative_to(_PACKAGE)).encode(), file) for file in _code_files())
    return _digest(b"".join(name + b"\0" + file.read_bytes() + b"\0" for name, file in files))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_WORKER_DIGITS]
