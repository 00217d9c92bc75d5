"""A run that is over, from its folder."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from testbed.measure.results.manifest import MANIFEST
from testbed.measure.results.records import EVENTS, SAMPLES, read_events, read_json
from testbed.measure.results.result import Result, Variant
from testbed.show.live.jsonl_tail import Record, records
from testbed.show.live.page_data import FINISHED, Json, Readings, StepSpan, View, event_words, network_of
from testbed.show.live.page_record import WHOLE_STEP, link_moments, real_span
from testbed.show.report.compare import opening

MOST_READINGS = 2000


class Finished:
    """What its page shows, in `view`. BadResult."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        result = Result.open(folder)
        self.scale = result.conversion
        self.view, self._zero_s = _view(result)

    def look(self) -> None:
        """Nothing comes any more."""

    def files(self, part: int) -> list[Path]:
        """Those that have the operations of the ranks."""
        return [self.folder / SAMPLES]

    def offset_s(self, part: int) -> float:
        """The emulated time in these files that is 0 on the page."""
        return self._zero_s


def _view(result: Result) -> tuple[View, float]:
    """And the emulated time of the run that is 0 on the page."""
    folder, scale = result.folder, result.conversion
    manifest = read_json(folder / MANIFEST)
    network, directions = network_of(manifest["fabric"], scale)
    readings = Readings(directions, scale)
    moments = link_moments(folder)
    zero_s = next(iter(moments), 0.0)
    every = len(moments) // MOST_READINGS + 1  # left out, which averages over the longer time
    for time_s in list(moments)[::every]:
        readings.add(time_s - zero_s, moments[time_s])
    view = View(result.scenario, str(folder.resolve()), result.clock, FINISHED)
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
        {"part": 0, "time_s": one["time_s"] - scale.real_s(zero_s), "words": event_words(one)}
        for one in read_events(folder / EVENTS, scale)
        if one["time_s"] is not None
    ]
    view.done = view.total = len(view.steps)
    view.head = {
        "status": result.status,
        "answer": opening(result.variants),
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
