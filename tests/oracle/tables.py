"""A run's frames, written as CSV, held against the raw files line by line."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

import numpy as np

from tests.oracle.checks import Checks
from tests.oracle.page import Variants
from tests.oracle.raw import RawRun


def check_tables(run: RawRun, variants: Variants, tables: Mapping[str, str], checks: Checks) -> None:
    """tables: CSV by name, of steps, operations and links."""
    rows = {name: list(csv.DictReader(io.StringIO(text))) for name, text in tables.items()}
    if (steps := rows.get("steps")) is not None:
        own = [(name, trial, s) for name, one in variants.items() for trial, s in enumerate(one.times_s)]
        said = [(row["variant"], int(row["trial"]), float(row["step_time_s"])) for row in steps]
        checks.equal(
            "all: steps' variants and trials (CSV)", [row[:2] for row in said], [row[:2] for row in own]
        )
        shares = [share for one in variants.values() for share in one.committed]
        _columns("steps: committed", [float(row["committed"]) for row in steps], shares, checks)
        _columns("steps: step_time_s", [row[2] for row in said], [row[2] for row in own], checks)
    if (operations := rows.get("operations")) is not None:
        raw = run.samples
        for column in ("variant", "operation", "name", "message", "stream"):
            checks.equal(
                f"all: operations: {column} (CSV)",
                [row[column] for row in operations],
                [str(entry.get(column, "")) for entry in raw],
            )
        for column in ("trial", "step", "rank"):
            said_numbers = [int(row[column]) for row in operations]
            checks.equal(f"all: operations: {column} (CSV)", said_numbers, [entry[column] for entry in raw])
        for column in ("start_s", "end_s"):
            own_s = [run.seconds(entry[column]) for entry in raw]
            _columns(f"operations: {column}", [float(row[column]) for row in operations], own_s, checks)
        own_bytes = [run.bytes(entry["bytes"] or 0) for entry in raw]
        _columns(
            "operations: size_bytes", [float(row["size_bytes"]) for row in operations], own_bytes, checks
        )
    if (links := rows.get("links")) is not None:
        raw = run.lines("links.jsonl")
        ends = [
            (entry["a"], entry["b"]) if entry["direction"] == "a_to_b" else (entry["b"], entry["a"])
            for entry in raw
        ]
        checks.equal("all: links: ends (CSV)", [(row["source"], row["target"]) for row in links], ends)
        for column in ("bytes", "queue_bytes"):
            _columns(
                f"links: {column}",
                [float(row[column]) for row in links],
                [run.bytes(entry[column]) for entry in raw],
                checks,
            )
        for column in ("packets", "drops", "losses", "cut_losses", "marks", "plane"):
            checks.equal(
                f"all: links: {column} (CSV)",
                [int(row[column]) for row in links],
                [entry[column] for entry in raw],
            )
        own_times = [run.seconds(entry["time_s"]) for entry in raw]
        _columns("links: time_s", [float(row["time_s"]) for row in links], own_times, checks)


def _columns(what: str, said: Sequence[float], own: Sequence[float], checks: Checks) -> None:
    same = len(said) == len(own) and bool(np.allclose(said, own, rtol=1e-9, atol=1e-12))
    checks.true(f"all: {what} (CSV)", same, "differs from the raw files")
