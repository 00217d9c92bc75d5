"""What the folder of a run, or of a part of one, keeps when it is over, as its page takes it. Times are emulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from testbed.measure.results.records import LINKS, LinkKey
from testbed.show.live.jsonl_tail import Record, records
from testbed.show.live.page_data import Counted
from testbed.spec.scale import Scale

WHOLE_STEP = b'"operation": "step"'
"""What the line of a rank's whole step has, and no other."""


def link_moments(folder: Path) -> dict[float, dict[LinkKey, Counted]]:
    """What each link had carried, by the times of readings that go by the clock, in their order.

    Those at steps' edges are left out: from one to the next rates would be computed from next to no time.
    """
    moments: dict[float, dict[LinkKey, Counted]] = defaultdict(dict)
    for line in records(folder / LINKS):
        if not line.get("edge"):
            lost = line["losses"] + line["cut_losses"]
            moments[line["time_s"]][LinkKey.of(line)] = (
                line["bytes"],
                line["drops"],
                line["queue_bytes"],
                lost,
            )
    return moments


def real_span(steps: Sequence[Record], zero_s: float, scale: Scale) -> tuple[float, float]:
    """From when the first rank began a step to when the last one ended it: real seconds from `zero_s` on."""
    start_s, end_s = min(one["start_s"] for one in steps), max(one["end_s"] for one in steps)
    return scale.real_s(start_s - zero_s), scale.real_s(end_s - zero_s)
