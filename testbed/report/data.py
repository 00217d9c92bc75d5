"""What a report reads: one run directory, loaded, checked for completeness and brought to real units.

A run is measured on a scale model (see `Scale`): the files hold emulated figures, a reader wants the real
ones. The translation happens here, once; everything else in this room works in real units.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from testbed.scale import Scale

JsonObject = dict[str, Any]

COMMUNICATION = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "send",
    "recv",
    "turn",
)
WHOLE_STEP = "step"


class ReportError(Exception):
    """A run directory lacks a file, or a file does not hold what it should. Names the file, and the line."""


class Sample(NamedTuple):
    """One operation of one rank, as `samples.jsonl` has it. Times in seconds since the run's origin.

    message: of both ends of a message the same, such as "3>4/17": from rank to rank, and its tag. stream: on which the
    operations of a rank come one after the other, where its plan has such.
    """

    variant: str
    trial: int
    step: int
    rank: int
    operation: str
    name: str
    start_s: float
    end_s: float
    size_bytes: float
    message: str = ""
    stream: str = ""

    @property
    def duration_s(self) -> float:
        """How long the operation took, in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class LinkKey:
    """One direction of one WAN link."""

    a: str
    b: str
    plane: int
    direction: str

    @property
    def source(self) -> str:
        """The building that sends in this direction."""
        return self.a if self.direction == "a_to_b" else self.b

    @property
    def target(self) -> str:
        """The building that receives in this direction."""
        return self.b if self.direction == "a_to_b" else self.a

    @classmethod
    def of(cls, record: JsonObject) -> LinkKey:
        """The key of a record that has `a`, `b`, `plane` and `direction`."""
        return cls(str(record["a"]), str(record["b"]), int(record["plane"]), str(record["direction"]))


@dataclass
class LinkCounters:
    """Cumulative bytes on the wire (real units) of one WAN direction, sampled at `times_s`; equal lengths.

    `dropped` counts packets, over the whole run.
    """

    times_s: list[float] = field(default_factory=list)
    sent_bytes: list[float] = field(default_factory=list)
    dropped: int = 0


@dataclass(frozen=True)
class RunData:
    """A run directory's content in real units; `manifest` alone keeps the emulated figures it recorded."""

    run_dir: Path
    summary: JsonObject
    manifest: JsonObject
    scenario: JsonObject
    scenario_text: str
    scale: Scale
    samples: list[Sample]
    links: dict[LinkKey, LinkCounters]
    events: list[JsonObject] = field(default_factory=list)

    @property
    def variants(self) -> list[JsonObject]:
        """The summary's variants, in the scenario's order."""
        variants: list[JsonObject] = self.summary["variants"]
        return variants


def load_run(run_dir: Path) -> RunData:
    """Reads `run_dir`. Raises `ReportError` when a file is missing or cannot be understood."""
    summary = _read_json(run_dir / "summary.json")
    scale = Scale(
        **{k: float(v) for k, v in summary.get("scale", {}).items() if k in Scale.__dataclass_fields__}
    )
    scenario_text = _read_text(run_dir / "scenario.yaml")
    scenario = yaml.safe_load(scenario_text)
    return RunData(
        run_dir=run_dir,
        summary=summary,
        manifest=_read_json(run_dir / "manifest.json"),
        scenario=scenario if isinstance(scenario, dict) else {},
        scenario_text=scenario_text,
        scale=scale,
        samples=read_samples(run_dir / "samples.jsonl", scale),
        links=_read_links(run_dir / "links.jsonl", scale),
        events=_read_events(run_dir / "events.jsonl", scale),
    )


def read_samples(path: Path, scale: Scale) -> list[Sample]:
    """The samples of `samples.jsonl`, times and sizes in real units, in the file's order."""
    samples = []
    for number, record in _read_lines(path):
        try:
            samples.append(
                Sample(
                    variant=str(record["variant"]),
                    trial=int(record["trial"]),
                    step=int(record["step"]),
                    rank=int(record["rank"]),
                    operation=str(record["operation"]),
                    name=str(record["name"]),
                    start_s=scale.real_s(float(record["start_s"])),
                    end_s=scale.real_s(float(record["end_s"])),
                    size_bytes=scale.real_bytes(float(record["bytes"] or 0)),
                    message=str(record.get("message", "")),
                    stream=str(record.get("stream", "")),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{path}:{number}: not a sample: {error!r}") from error
    return samples


def _read_links(path: Path, scale: Scale) -> dict[LinkKey, LinkCounters]:
    links: dict[LinkKey, LinkCounters] = {}
    for number, record in _read_lines(path):
        try:
            counters = links.setdefault(LinkKey.of(record), LinkCounters())
            counters.times_s.append(scale.real_s(float(record["time_s"])))
            counters.sent_bytes.append(scale.real_bytes(float(record["bytes"])))
            counters.dropped = int(record["drops"])
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{path}:{number}: not a link counter: {error!r}") from error
    return links


def _read_events(path: Path, scale: Scale) -> list[JsonObject]:
    """The scenario's events as they came, in their order; `time_s` in real seconds of the run, None if never."""
    if not path.exists():
        return []
    events = []
    for number, record in _read_lines(path):
        try:
            time_s = record["time_s"]
            events.append({**record, "time_s": None if time_s is None else scale.real_s(float(time_s))})
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{path}:{number}: not an event: {error!r}") from error
    return events


def _read_lines(path: Path) -> Iterator[tuple[int, JsonObject]]:
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise ReportError(f"{path}:{number}: not JSON: {error}") from error


def _read_json(path: Path) -> JsonObject:
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    if not isinstance(content, dict):
        raise ReportError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
