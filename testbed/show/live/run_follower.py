"""A run that goes on, from the files that it writes meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from testbed.measure.results.failed_run import FAILURE, failed_path
from testbed.measure.results.live_records import (
    EVENT,
    LINKS,
    LIVE,
    NETWORK,
    PARTS,
    PHASE,
    RANK_FILES,
    RUN,
    STEP,
)
from testbed.measure.results.records import SAMPLES, LinkKey, read_json
from testbed.measure.results.result import SUMMARY
from testbed.measure.results.run_directory import partial_path
from testbed.measure.results.shards import FIGURES
from testbed.show.live.jsonl_tail import Record, Tail, records
from testbed.show.live.page_data import FAILED, FINISHED, Readings, StepSpan, View, event_words, network_of
from testbed.show.live.page_record import WHOLE_STEP, link_moments, real_span
from testbed.spec.scale import Scale


class Following:
    """Looks for news of a run in progress, and puts them into `view`. folder: where the run will be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.partial = partial_path(folder)
        self._tail = Tail(self.partial / LIVE)
        self._failed_before = _stamp(folder)
        self._parts: list[_Part] = []
        self.view = View(folder.name, str(folder.resolve()), "")
        self.scale = Scale()

    def look(self) -> None:
        """Whatever has come since the last look."""
        for record in self._tail.new():
            self._take(record)
        for part in self._parts:
            part.look(self.view)
        if (self.folder / SUMMARY).exists() and not self.partial.exists():
            self.view.state = FINISHED
        elif not self.partial.exists():
            self.view.state, self.view.words = FAILED, self._why()

    def files(self, part: int) -> list[Path]:
        """Those that have the operations of a part's ranks, as they are now."""
        return self._parts[part].files() if part < len(self._parts) else []

    def offset_s(self, part: int) -> float:
        """The emulated time in these files that is 0 on the page."""
        return self._parts[part].zero_s or 0.0

    def _why(self) -> str:
        stamp = _stamp(self.folder)
        if stamp and stamp != self._failed_before:
            return (failed_path(self.folder) / FAILURE).read_text().strip()
        return "it ended without a result"

    def _take(self, record: Record) -> None:
        view, kind = self.view, record["kind"]
        if kind == RUN:
            self.scale = Scale(**record["scale"])
            view.name = record["scenario"]
            view.head = {"variants": record["variants"], "ranks": record["ranks"]}
            folder = Path(record["folder"])
            for number, told in enumerate(record["parts"]):
                view.parts.append({"name": told["name"], "variant": told["variant"]})
                view.readings.append(Readings([], self.scale))
                own = folder / str(told["number"])
                self._parts.append(_Part(number, own, told, record["ranks"], self.scale))
        elif kind == PHASE:
            view.phases.append(record["words"])
        elif kind == STEP:
            view.done, view.total = record["done"], record["total"]
        elif kind == PARTS:
            view.progress = record["parts"]


class _Part:
    """One shard: while it goes on, its own log and the ranks' files; when it is done, the record that it left."""

    def __init__(self, number: int, folder: Path, told: Record, ranks: int, scale: Scale) -> None:
        self.number, self.folder, self.told, self.ranks, self.scale = number, folder, told, ranks, scale
        self.zero_s: float | None = None
        self._tail = Tail(folder / LIVE)
        self._rank_tails: dict[Path, Tail] = {}
        self._spans: dict[int, list[Record]] = defaultdict(list)
        self._known: set[int] = set()
        self._over = False

    def look(self, view: View) -> None:
        if self._over:
            return
        over = (self.folder / FIGURES).exists()  # written last
        for record in self._tail.new():
            self._take(record, view)
        for path in sorted(self.folder.glob(RANK_FILES)):
            tail = self._rank_tails.setdefault(path, Tail(path, WHOLE_STEP))
            self._keep(tail.new())
        if self.zero_s is not None:
            self._gather(view)
        if over:
            self._finish(view)

    def files(self) -> list[Path]:
        if (self.folder / SAMPLES).exists():
            return [self.folder / SAMPLES]
        return sorted(self.folder.glob(RANK_FILES))

    def _take(self, record: Record, view: View) -> None:
        if record["kind"] == NETWORK:
            network, directions = network_of(record, self.scale)
            view.network = view.network or network
            view.readings[self.number] = Readings(directions, self.scale)
        elif record["kind"] == LINKS:
            if self.zero_s is None:
                self.zero_s = record["time_s"]
            counted = {LinkKey(*row[:4]): (row[4], row[5], row[7], row[8]) for row in record["directions"]}
            view.readings[self.number].add(record["time_s"] - self.zero_s, counted)
        elif record["kind"] == EVENT and record.get("time_s") is not None:
            time_s = self.scale.real_s(record["time_s"] - (self.zero_s or 0.0))
            view.events.append({"part": self.number, "time_s": time_s, "words": event_words(record)})

    def _keep(self, ended: Iterable[Record]) -> None:
        """Steps that single ranks have ended."""
        for record in ended:
            self._spans[record["step"]].append(record)

    def _gather(self, view: View) -> None:
        """Steps that all ranks have ended; of replicas that come and go, those after which others ended, too."""
        newest = max(self._spans, default=0)
        for step, spans in sorted(self._spans.items()):
            ended = len(spans) >= self.ranks or self._over or newest > step + 1
            if step not in self._known and ended:
                self._add(step, spans, view)

    def _add(self, step: int, spans: list[Record], view: View) -> None:
        self._known.add(step)
        variant, trial = self.told["variant"] or spans[0]["variant"], spans[0]["trial"]
        span_s = real_span(spans, self.zero_s or 0.0, self.scale)
        view.steps.append(StepSpan(self.number, variant, self.told["first_trial"] + trial, step, *span_s))

    def _finish(self, view: View) -> None:
        """From its record, what was not seen while it was written; times there count from another moment."""
        self._over = True
        self._spans.clear()
        moments = link_moments(self.folder)
        self.zero_s = next(iter(moments), 0.0)
        self._keep(records(self.folder / SAMPLES, WHOLE_STEP))
        self._gather(view)
        if not view.readings[self.number].times_s and moments:  # it was over before anybody looked
            fabric = read_json(self.folder / FIGURES)["manifest"]["fabric"]
            self._take({"kind": NETWORK, **fabric}, view)
            for time_s, counted in moments.items():
                view.readings[self.number].add(time_s - self.zero_s, counted)


def _stamp(folder: Path) -> float | None:
    """When what a failed run of this name has left was written."""
    try:
        return (failed_path(folder) / FAILURE).stat().st_mtime
    except OSError:
        return None
