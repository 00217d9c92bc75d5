"""What a run that is not over says of itself, in files that others may read meanwhile: `testbed watch` does.

`<run>.partial/live.jsonl` is of the whole run: a record each of what was asked (`run`), of phases, of steps that
began, of how far its parts are. Below the folder that it names, each part has one of its own, `NUMBER/live.jsonl`: its
network, readings of its links, events; and a `rank-N.jsonl` of each rank, which grows by a step at a time. All is gone
when the run is over: its folder has the same, and more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIVE = "live.jsonl"
RANK_FILES = "rank-*.jsonl"
RUN, PHASE, STEP, PARTS, NETWORK, LINKS, EVENT = "run", "phase", "step", "parts", "network", "links", "event"
"""Kinds of records."""


class LiveLog:
    """Appends records, each at once and whole, so that a reader finds them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LIVE
        self._file = self.path.open("a", buffering=1)

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        """One more."""
        self._file.write(json.dumps({"kind": kind, **record}) + "\n")

    def close(self, *, remove: bool = False) -> None:
        """No more will come; remove: nor is it of use to anybody."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)
