"""Views of a run for notebooks: a table of variants, SVG figures, pandas frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import TestbedError
from testbed.measure.results.records import COUNTERS, LinkReading
from testbed.notebooks import html_image, html_table
from testbed.spec.units import signed_percent_text, size_text, time_text

if TYPE_CHECKING:
    import pandas


HEADINGS = (
    "variant",
    "verdict",
    "step time",
    "shortest",
    "longest",
    "trials",
    "by the model",
    "compute",
    "WAN bytes",
)


def result_html(result: Any) -> str:
    """Return a `Result` as HTML: the overall verdict, then a table of all variants."""
    after = [f"{variant.name} is limited by {variant.limited_by}." for variant in result.variants]
    for variant in result.variants:
        after += [f"{variant.name}, {entry.name}: {entry.sentence}" for entry in variant.verdict.failed]
    after.append(f"Report: {result.folder / 'report.html'}")
    before = [f"{result.scenario}: {result.status}, by the {result.clock} clock"]
    table = html_table(HEADINGS, [_row(variant) for variant in result.variants], before, after)
    return f"{table}{_drawing(result)}"


def _row(variant: Any) -> list[str]:
    times = variant.step_time_s
    predicted = variant.predicted
    return [
        variant.name,
        variant.verdict.status,
        *(time_text(value) for value in (times.median, times.min, times.max)),
        f"{times.n} ({partial} partial)" if (partial := variant.done.partial_steps) else str(times.n),
        f"{time_text(predicted.step_time_s)} ({signed_percent_text(predicted.error)})" if predicted else "",
        time_text(variant.compute_s),
        size_text(variant.wan_bytes.observed),
    ]


def _drawing(result: Any) -> str:
    """Return the step times as an image; empty if the run's files are missing, as a notebook view must not fail."""
    try:
        return html_image(result.figure("step_times").svg, "every measured step of each variant")
    except TestbedError:
        return ""


@dataclass(frozen=True)
class Figure:
    """A figure as an SVG document, which notebooks display."""

    name: str
    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the SVG document and return its path."""
        Path(path).write_text(self.svg, encoding="utf-8")
        return Path(path)


# The columns of each frame, in order and in real units; times in seconds.
STEPS = {
    "variant": "name of the variant",
    "algorithm": "algorithm of its collectives",
    "policy": "transport policy in force",
    "verdict": "verdict on the variant: trusted, caution or untrusted",
    "trial": "number of the trial within the variant, from 0",
    "step_time_s": "step time, until the last rank finished",
    "committed": "share of a whole step's work that was committed: below 1 if replicas were missing",
}
OPERATIONS = {
    "variant": "name of the variant",
    "trial": "number of the trial within the variant, from 0",
    "step": "number of the step within the run, from 0; warm-up steps are counted but not listed",
    "rank": "rank of the process",
    "operation": "kind: a collective, `send`, `recv`, `compute`, or `step` for the whole step",
    "name": "name of the operation in the workload",
    "start_s": "start, since the run's origin",
    "end_s": "end, since the run's origin",
    "size_bytes": "size of the array or message",
    "message": "from>to/tag, the same at both ends of a message; else empty",
    "stream": "stream on which a rank's operations run in order; empty if there is only one",
}
READINGS = {
    "time_s": "time of the reading, since the run's origin",
    "source": "sending building",
    "target": "receiving building",
    "plane": "which of the parallel links between the two, from 0",
    "bytes": "bytes on the wire since the run began, headers included",
    "packets": "packets since the run began",
    "drops": "packets dropped by the full queue since the run began",
    "losses": "packets lost at random on the fibre since the run began",
    "cut_losses": "packets lost to link cuts since the run began",
    "marks": "packets marked with ECN since the run began",
    "queue_bytes": "queue length at that time",
    "edge": "`start` or `end` for a reading at the edge of a measured step; else empty",
}


def link_rows(readings: Iterable[LinkReading]) -> list[tuple[object, ...]]:
    """Return the rows of a frame with the columns READINGS."""
    counted = attrgetter(*COUNTERS, "queue_bytes", "edge")
    return [(one.time_s, one.link.source, one.link.target, one.link.plane, *counted(one)) for one in readings]


def make_frame(rows: Sequence[tuple[object, ...]], columns: Mapping[str, str]) -> pandas.DataFrame:
    """Return a frame of the rows; `columns` maps each column's name to its meaning."""
    import pandas  # noqa: PLC0415

    return pandas.DataFrame.from_records(rows, columns=list(columns))
