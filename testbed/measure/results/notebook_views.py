"""A run in a notebook: table of variants, figures, pandas frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import TestbedError
from testbed.measure.results.records import COUNTERS, LINKS, SAMPLES, LinkReading, read_links, read_samples
from testbed.notebooks import html_image, html_table
from testbed.spec.scale import Scale
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
    """Of a `Result`, which imports this: the worst verdict first, then all variants."""
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
    """Empty where the folder is elsewhere: what a notebook shows must not fail."""
    try:
        return html_image(result.figure("step_times").svg, "every measured step of each variant")
    except TestbedError:
        return ""


@dataclass(frozen=True)
class Figure:
    """A drawing as the text of an SVG document, which notebooks show by themselves."""

    name: str
    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the SVG document; returns where it is."""
        Path(path).write_text(self.svg, encoding="utf-8")
        return Path(path)


# What the columns of each table hold, in their order; times in seconds, all in real units.
STEPS = {
    "variant": "by its name",
    "algorithm": "of its collectives",
    "policy": "in force",
    "verdict": "of the variant: trusted, caution, untrusted",
    "trial": "which of the variant's, from 0",
    "step_time_s": "until the last rank had ended",
    "committed": "part of a whole step's work that it committed: below 1 where replicas were missing",
}
OPERATIONS = {
    "variant": "by its name",
    "trial": "which of the variant's, from 0",
    "step": "which of the run's, from 0; warm-ups count, and are left out",
    "rank": "who",
    "operation": "what: a collective, `send`, `recv`, `compute`, `step` for the whole",
    "name": "of the operation in its workload",
    "start_s": "since the run's origin",
    "end_s": "the same",
    "size_bytes": "of its array or message",
    "message": "of both ends of a message the same, from>to/tag; else empty",
    "stream": "on which a rank's operations come one after the other; empty where there is one",
}
READINGS = {
    "time_s": "since the run's origin",
    "source": "the building that sends in this direction",
    "target": "the building that receives",
    "plane": "which of the links between the two, from 0",
    "bytes": "on the wire since the run began, headers included",
    "packets": "since the run began",
    "drops": "packets that its queue has dropped since the run began",
    "losses": "packets that its fibre has lost at random since the run began",
    "cut_losses": "packets lost since the run began as the link was cut",
    "marks": "packets marked by ECN since the run began",
    "queue_bytes": "that waited then",
    "edge": "`start` or `end` where the reading was taken at a measured step's; else empty",
}


def operations_frame(folder: Path, scale: Scale) -> pandas.DataFrame:
    """A row per operation of a rank: columns OPERATIONS. BadResult."""
    return frame(read_samples(folder / SAMPLES, scale), OPERATIONS)


def links_frame(folder: Path, scale: Scale) -> pandas.DataFrame:
    """A row per reading of one direction of a WAN link: columns READINGS. BadResult."""
    return frame([_reading(one) for one in read_links(folder / LINKS, scale)], READINGS)


def _reading(one: LinkReading) -> tuple[object, ...]:
    link = one.link
    counted = (getattr(one, name) for name in (*COUNTERS, "queue_bytes", "edge"))
    return one.time_s, link.source, link.target, link.plane, *counted


def frame(rows: Sequence[tuple[object, ...]], columns: Mapping[str, str]) -> pandas.DataFrame:
    """Of rows with these columns, by name and meaning."""
    import pandas  # noqa: PLC0415

    return pandas.DataFrame.from_records(rows, columns=list(columns))
