"""Schedules that were searched for, kept by what they are for: in this process, and in the user's cache."""

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

RULES = 2  # of the search: another number where it would find something else

_known: dict[str, SearchResult] = {}


def folder() -> Path:
    """Where they are kept."""
    return user_cache("schedules")


def find(request: ScheduleRequest) -> SearchResult | None:
    """What was found for the same before."""
    key = _key(request)
    if key not in _known:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            kept = json.loads((folder() / f"{key}.json").read_text())
            known = tuple((str(name), float(step_s)) for name, step_s in kept["known"])
            orders = read_csv(kept["orders"])
            bounds_s = {int(chunks): float(bound_s) for chunks, bound_s in kept["bounds_s"].items()}
            _known[key] = SearchResult(orders, float(kept["step_s"]), bounds_s, known)
    return _known.get(key)


def keep(request: ScheduleRequest, found: SearchResult) -> None:
    """For the next time; only in this process where the cache cannot be written."""
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
    what = repr((request, RULES, metadata.version("ortools")))
    return hashlib.sha256(what.encode()).hexdigest()[:24]
