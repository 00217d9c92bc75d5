"""A cache of schedules found by search, keyed by their request: in this process, and in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from importlib import metadata
from pathlib import Path

from testbed.caches import user_cache
from testbed.workload.schedules.actions import read_csv, write_csv
from testbed.workload.schedules.base import ScheduleRequest, SearchResult

SEARCH_VERSION = 2  # increase when the search would find something else

_known: dict[str, SearchResult] = {}


def folder() -> Path:
    """Return the folder of the cache."""
    return user_cache("schedules")


def find(request: ScheduleRequest) -> SearchResult | None:
    """Return the cached result for an equal request."""
    key = _key(request)
    if key not in _known:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            kept = json.loads((folder() / f"{key}.json").read_text())
            known = tuple((str(name), float(step_s)) for name, step_s in kept["known"])
            orders = read_csv(kept["orders"])
            bounds_s = {int(chunks): float(bound_s) for chunks, bound_s in kept["bounds_s"].items()}
            _known[key] = SearchResult(orders, float(kept["step_s"]), bounds_s, known)
    return _known.get(key)


def store(request: ScheduleRequest, found: SearchResult) -> None:
    """Cache a result; in this process only, where the folder cannot be written."""
    key = _key(request)
    _known[key] = found
    text = json.dumps(
        {
            "orders": write_csv(found.orders),
            "step_s": found.step_s,
            "bounds_s": found.bounds_s,
            "known": found.known,
        }
    )
    with contextlib.suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder(), prefix=".", delete=False) as file:
            file.write(text)
        Path(file.name).replace(folder() / f"{key}.json")


def _key(request: ScheduleRequest) -> str:
    what = repr((request, SEARCH_VERSION, metadata.version("ortools")))
    return hashlib.sha256(what.encode()).hexdigest()[:24]
