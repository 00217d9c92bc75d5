"""One step of all ranks, operation by operation, as columns for a chart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from testbed.measure.results.records import sample_of
from testbed.plugins import short_name
from testbed.show.live.jsonl_tail import records
from testbed.show.live.page_data import Json
from testbed.show.report.charts import drawn_operations
from testbed.show.report.data import communicates
from testbed.show.report.interval_rows import pack_rows
from testbed.spec.scale import Scale

COMMUNICATION = "communication"


def timeline(files: Iterable[Path], step: int, scale: Scale, offset_s: float) -> Json:
    """Columns as long as each other: rank, row, start_s, end_s, kind and name, which are places in `kinds` and `names`.

    Row 0 of a rank is its computing; below it is what it sends and reduces, in as many rows as were in flight. Receives
    are left out: they are posted long before. offset_s: emulated time that is 0; all others are real.
    """
    mark = f'"step": {step},'.encode()
    zero_s = scale.real_s(offset_s)
    lines = (one for path in files for one in records(path, mark) if one.get("step") == step)
    ranks = drawn_operations([sample_of(one, scale) for one in lines])
    kinds: dict[str, int] = {}
    names: dict[str, int] = {}
    columns: dict[str, list[float]] = {
        name: [] for name in ("rank", "row", "start_s", "end_s", "kind", "name")
    }
    rows = 1
    for rank, own in sorted(ranks.items()):
        flying = [one for one in own if communicates(one.operation)]
        packed = pack_rows([(one.start_s, one.end_s) for one in flying])
        rows = max(rows, 2 + max(packed, default=-1))
        computing = [(one, 0) for one in own if not communicates(one.operation)]
        for one, row in (*computing, *((one, row + 1) for one, row in zip(flying, packed, strict=True))):
            kind = COMMUNICATION if row else one.operation
            columns["rank"].append(rank)
            columns["row"].append(row)
            columns["start_s"].append(round(one.start_s - zero_s, 7))
            columns["end_s"].append(round(one.end_s - zero_s, 7))
            columns["kind"].append(kinds.setdefault(kind, len(kinds)))
            columns["name"].append(names.setdefault(f"{short_name(one.operation)} {one.name}", len(names)))
    return {**columns, "kinds": list(kinds), "names": list(names), "ranks": sorted(ranks), "rows": rows}
