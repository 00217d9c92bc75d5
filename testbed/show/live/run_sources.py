"""Data sources of the live page: files of a run in progress, a finished run, one step's timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from testbed.measure.results.manifest import MANIFEST
from testbed.measure.results.records import EVENTS, SAMPLES, LinkKey, parse_sample, read_events, read_json
from testbed.measure.results.result import SUMMARY, Result, Variant
from testbed.measure.results.run_directory import partial_path
from testbed.measure.results.shards import FIGURES
from testbed.measure.results.unfinished_run import (
    EVENT,
    FAILURE,
    LINKS,
    LIVE,
    NETWORK,
    PARTS,
    PHASE,
    RANK_FILES,
    RUN,
    STEP,
    failed_path,
)
from testbed.plugins import short_name
from testbed.show.live.page_data import (
    FAILED,
    FINISHED,
    WHOLE_STEP,
    Json,
    JsonlTail,
    PageData,
    Readings,
    Record,
    StepSpan,
    event_text,
    link_moments,
    network_of,
    real_span,
    records,
)
from testbed.show.report.charts import timeline_operations
from testbed.show.report.run_data import is_communication
from testbed.show.report.svg import pack_rows
from testbed.show.report.variant_text import opening_sentences
from testbed.spec.scale import Scale


class RunFollower:
    """A follower of a run in progress that updates `view`; `folder` is where the finished run will be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.partial = partial_path(folder)
        self._tail = JsonlTail(self.partial / LIVE)
        self._old_failure = _failure_time(folder)
        self._parts: list[_ShardFollower] = []
        self.view = PageData(folder.name, str(folder.resolve()), "")
        self.scale = Scale()

    def update(self) -> None:
        """Read the data added since the last call."""
        for record in self._tail.read_new():
            self._apply(record)
        for part in self._parts:
            part.update(self.view)
        if (self.folder / SUMMARY).exists() and not self.partial.exists():
            self.view.state = FINISHED
        elif not self.partial.exists():
            self.view.state, self.view.words = FAILED, "it ended without a result"
            stamp = _failure_time(self.folder)
            if stamp and stamp != self._old_failure:
                self.view.words = (failed_path(self.folder) / FAILURE).read_text().strip()

    def files(self, part: int) -> list[Path]:
        """Return the current files with the operations of a part's ranks."""
        return self._parts[part].files() if part < len(self._parts) else []

    def offset_s(self, part: int) -> float:
        """Return the emulated time in these files that corresponds to 0 on the page."""
        return self._parts[part].zero_s or 0.0

    def _apply(self, record: Record) -> None:
        view, kind = self.view, record["kind"]
        if kind == RUN:
            self.scale = Scale(**record["scale"])
            view.name = record["scenario"]
            view.head = {"variants": record["variants"], "ranks": record["ranks"]}
            folder = Path(record["folder"])
            for number, shard in enumerate(record["parts"]):
                view.parts.append({"name": shard["name"], "variant": shard["variant"]})
                view.readings.append(Readings([], self.scale))
                own = folder / str(shard["number"])
                self._parts.append(_ShardFollower(number, own, shard, record["ranks"], self.scale))
        elif kind == PHASE:
            view.phases.append(record["words"])
        elif kind == STEP:
            view.done, view.total = record["done"], record["total"]
        elif kind == PARTS:
            view.progress = record["parts"]


class _ShardFollower:
    """A follower of one shard: of its log and the ranks' files during the run, then of its final record."""

    def __init__(self, number: int, folder: Path, shard: Record, ranks: int, scale: Scale) -> None:
        self.number, self.folder, self.shard, self.ranks, self.scale = number, folder, shard, ranks, scale
        self.zero_s: float | None = None
        self._tail = JsonlTail(folder / LIVE)
        self._rank_tails: dict[Path, JsonlTail] = {}
        self._spans: dict[int, list[Record]] = defaultdict(list)
        self._added_steps: set[int] = set()
        self._is_finished = False

    def update(self, view: PageData) -> None:
        if self._is_finished:
            return
        is_finished = (self.folder / FIGURES).exists()  # written last
        for record in self._tail.read_new():
            self._apply(record, view)
        for path in sorted(self.folder.glob(RANK_FILES)):
            tail = self._rank_tails.setdefault(path, JsonlTail(path, WHOLE_STEP))
            self._add_spans(tail.read_new())
        if self.zero_s is not None:
            self._add_finished_steps(view)
        if is_finished:
            self._finish(view)

    def files(self) -> list[Path]:
        if (self.folder / SAMPLES).exists():
            return [self.folder / SAMPLES]
        return sorted(self.folder.glob(RANK_FILES))

    def _apply(self, record: Record, view: PageData) -> None:
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
            view.events.append({"part": self.number, "time_s": time_s, "words": event_text(record)})

    def _add_spans(self, ended: Iterable[Record]) -> None:
        """Collect the spans of steps on individual ranks."""
        for record in ended:
            self._spans[record["step"]].append(record)

    def _add_finished_steps(self, view: PageData) -> None:
        """Add steps that all ranks have ended; with elastic replicas, also steps before a later one."""
        newest = max(self._spans, default=0)
        for step, spans in sorted(self._spans.items()):
            ended = len(spans) >= self.ranks or self._is_finished or newest > step + 1
            if step not in self._added_steps and ended:
                self._add_step(step, spans, view)

    def _add_step(self, step: int, spans: list[Record], view: PageData) -> None:
        self._added_steps.add(step)
        variant, trial = self.shard["variant"] or spans[0]["variant"], spans[0]["trial"]
        span_s = real_span(spans, self.zero_s or 0.0, self.scale)
        view.steps.append(StepSpan(self.number, variant, self.shard["first_trial"] + trial, step, *span_s))

    def _finish(self, view: PageData) -> None:
        """Complete the data from the final record, whose times have another origin."""
        self._is_finished = True
        self._spans.clear()
        moments = link_moments(self.folder)
        self.zero_s = next(iter(moments), 0.0)
        self._add_spans(records(self.folder / SAMPLES, WHOLE_STEP))
        self._add_finished_steps(view)
        if not view.readings[self.number].times_s and moments:  # the shard ended before the first update
            fabric = read_json(self.folder / FIGURES)["manifest"]["fabric"]
            self._apply({"kind": NETWORK, **fabric}, view)
            for time_s, counted in moments.items():
                view.readings[self.number].add(time_s - self.zero_s, counted)


def _failure_time(folder: Path) -> float | None:
    """Return when the failure record of a run with this name was written."""
    try:
        return (failed_path(folder) / FAILURE).stat().st_mtime
    except OSError:
        return None


MOST_READINGS = 2000


class FinishedRun:
    """A finished run, loaded into `view`; raises BadResult if it is broken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        result = Result.open(folder)
        self.scale = result.conversion
        self.view, self._zero_s = _view(result)

    def update(self) -> None:
        """Do nothing, since a finished run does not change."""

    def files(self, part: int) -> list[Path]:
        """Return the files with the operations of the ranks."""
        return [self.folder / SAMPLES]

    def offset_s(self, part: int) -> float:
        """Return the emulated time in these files that corresponds to 0 on the page."""
        return self._zero_s


def _view(result: Result) -> tuple[PageData, float]:
    """Return the page's data, and the emulated time of the run that corresponds to 0 on the page."""
    folder, scale = result.folder, result.conversion
    manifest = read_json(folder / MANIFEST)
    network, directions = network_of(manifest["fabric"], scale)
    readings = Readings(directions, scale)
    moments = link_moments(folder)
    zero_s = next(iter(moments), 0.0)
    stride = len(moments) // MOST_READINGS + 1  # thinning averages over longer intervals
    for time_s in list(moments)[::stride]:
        readings.add(time_s - zero_s, moments[time_s])
    view = PageData(result.scenario, str(folder.resolve()), result.clock, FINISHED)
    view.network, view.readings = network, [readings]
    view.parts = [{"name": "the whole run", "variant": None}]
    spans: dict[int, list[Record]] = defaultdict(list)
    for record in records(folder / SAMPLES, WHOLE_STEP):
        spans[record["step"]].append(record)
    for step, own in sorted(spans.items()):
        view.steps.append(
            StepSpan(0, own[0]["variant"], own[0]["trial"], step, *real_span(own, zero_s, scale))
        )
    view.events = [
        {"part": 0, "time_s": one["time_s"] - scale.real_s(zero_s), "words": event_text(one)}
        for one in read_events(folder / EVENTS, scale)
        if one["time_s"] is not None
    ]
    view.done = view.total = len(view.steps)
    view.head = {
        "status": result.status,
        "answer": opening_sentences(result.variants),
        "ranks": max((variant.ranks for variant in result.variants), default=0),
        "created": manifest["created"],
        "variants": [_variant(variant) for variant in result.variants],
    }
    return view, zero_s


def _variant(variant: Variant) -> Json:
    return {
        "name": variant.name,
        "status": variant.verdict.status,
        "median_s": variant.step_time_s.median,
        "predicted_s": variant.predicted.step_time_s if variant.predicted else None,
        "compute_s": variant.compute_s,
        "exposed_comm_s": variant.exposed_comm_s,
        "limited_by": variant.limited_by,
        "rates": variant.rates.document() if variant.rates else None,
        "invariants": [entry.document() for entry in variant.verdict.invariants],
    }


COMMUNICATION = "communication"


def timeline(files: Iterable[Path], step: int, scale: Scale, offset_s: float) -> Json:
    """Return columns of equal length: rank, row, start_s, end_s, kind and name, the last two as indices into lists.

    Row 0 of a rank is its compute. Below it are its sends and reductions, with one row per operation in flight.
    Receives are omitted, since they are posted long before. `offset_s` is the emulated origin; all other times are
    real.
    """
    mark = f'"step": {step},'.encode()
    zero_s = scale.real_s(offset_s)
    lines = (one for path in files for one in records(path, mark) if one.get("step") == step)
    ranks = timeline_operations([parse_sample(one, scale) for one in lines])
    kinds: dict[str, int] = {}
    names: dict[str, int] = {}
    columns: dict[str, list[float]] = {
        name: [] for name in ("rank", "row", "start_s", "end_s", "kind", "name")
    }
    rows = 1
    for rank, own in sorted(ranks.items()):
        flying = [one for one in own if is_communication(one.operation)]
        packed = pack_rows([(one.start_s, one.end_s) for one in flying])
        rows = max(rows, 2 + max(packed, default=-1))
        computing = [(one, 0) for one in own if not is_communication(one.operation)]
        for one, row in (*computing, *((one, row + 1) for one, row in zip(flying, packed, strict=True))):
            kind = COMMUNICATION if row else one.operation
            columns["rank"].append(rank)
            columns["row"].append(row)
            columns["start_s"].append(round(one.start_s - zero_s, 7))
            columns["end_s"].append(round(one.end_s - zero_s, 7))
            columns["kind"].append(kinds.setdefault(kind, len(kinds)))
            columns["name"].append(names.setdefault(f"{short_name(one.operation)} {one.name}", len(names)))
    return {**columns, "kinds": list(kinds), "names": list(names), "ranks": sorted(ranks), "rows": rows}
