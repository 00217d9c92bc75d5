"""A run that goes on, as its files say it, for tests of who watches it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from testbed.measure.results.run_directory import PARTIAL_SUFFIX
from testbed.measure.results.unfinished_run import EVENT, LINKS, NETWORK, PARTS, PHASE, RUN, STEP, LiveLog
from tests.unit.show.report_run import SIZE_SCALE, SyntheticRun

ORIGIN_S = 5000.0
"""What the ranks' clock says as the run begins."""


WORK = {"tokens": 65536, "sequences": 8, "computing_s": 1.017, "utilisation": 0.4}


class LiveRun:
    """Of a `SyntheticRun`, whose steps come one at a time. Its one part has all algorithms."""

    def __init__(self, folder: Path, like: SyntheticRun | None = None) -> None:
        self.folder = folder
        self.like = like or SyntheticRun()
        source = folder.parent / f"{folder.name}-source"
        self.like.write(source)
        self.samples = _lines(source / "samples.jsonl")
        self.links = _lines(source / "links.jsonl")
        self.manifest = json.loads((source / "manifest.json").read_text())
        self.source = source
        self.partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
        self.part = self.partial / "shards" / "0"
        self.steps_done = 0
        self._time_s = -1.0

    def begin(self) -> None:
        self.part.mkdir(parents=True)
        self.log = LiveLog(self.partial)
        part = {"number": 0, "name": "all algorithms", "variant": None, "first_trial": 0}
        self.log.add(
            RUN,
            {
                "scenario": self.like.name,
                "variants": [{"name": name, "work": WORK} for name in self.like.exposed_s],
                "ranks": self.like.ranks, "scale": {"size_scale": SIZE_SCALE, "time_dilation": 1.0},
                "folder": str(self.part.parent), "parts": [part],
            },
        )  # fmt: skip
        self.log.add(PHASE, {"words": "starting 8 ranks"})
        self.own = LiveLog(self.part)
        self.own.add(NETWORK, self.manifest["fabric"])

    def step(self) -> None:
        """One more step of all ranks, and what links carried until its end."""
        steps = sorted({sample["step"] for sample in self.samples})
        own = [sample for sample in self.samples if sample["step"] == steps[self.steps_done]]
        self.steps_done += 1
        self.log.add(STEP, {"done": self.steps_done, "total": len(steps)})
        until_s = max(sample["end_s"] for sample in own)
        moments: dict[float, list[Any]] = {}
        for line in self.links:
            if self._time_s < line["time_s"] <= until_s:
                key = [line[name] for name in ("a", "b", "plane", "direction")]
                counted = [
                    line["bytes"] + 10**6,
                    line["drops"] + 7,
                    0,
                    line["queue_bytes"],
                    line["losses"] + 5,
                ]
                moments.setdefault(line["time_s"], []).append([*key, *counted])
        self._time_s = until_s
        for time_s, directions in moments.items():
            self.own.add(LINKS, {"time_s": ORIGIN_S + time_s, "directions": directions})
        for rank in range(self.like.ranks):
            with (self.part / f"rank-{rank}.jsonl").open("a") as file:
                for sample in own:
                    if sample["rank"] == rank:
                        moved = {name: sample[name] + ORIGIN_S for name in ("start_s", "end_s")}
                        file.write(json.dumps({**sample, **moved}) + "\n")

    def parts(self) -> None:
        told = {"name": "ring", "done": 2, "total": 6, "clock_s": 12.5, "finished": False}
        self.log.add(PARTS, {"parts": [told, {**told, "name": "hierarchical", "done": 1}]})

    def event(self) -> None:
        record = {"action": "link_down", "target": "east-west-0", "begins": True, "time_s": ORIGIN_S + 1.0}
        self.own.add(EVENT, record)

    def finish(self) -> None:
        shutil.move(self.source, self.folder)
        shutil.rmtree(self.partial)

    def fail(self, words: str) -> None:
        left = self.folder.with_name(f"{self.folder.name}.failed")
        left.mkdir()
        (left / "failure.txt").write_text(words + "\n")
        shutil.rmtree(self.partial)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
