"""Readers of a run's JSON-lines files, in real units: operations, link counters, sockets, events.

A run is measured on a scale model (see `Scale`), and its files have emulated figures. Only this module converts them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from pydantic import ValidationError

from testbed.measure.result_model import ResultModel
from testbed.measure.results.run_directory import BadResult
from testbed.spec.scale import Scale

JsonObject = dict[str, Any]
Record = TypeVar("Record")
Reading = TypeVar("Reading", "Sample", "LinkReading", "SocketReading")
Model = TypeVar("Model", bound=ResultModel)
SAMPLES, LINKS, EVENTS = "samples.jsonl", "links.jsonl", "events.jsonl"
COUNTERS = ("bytes", "packets", "drops", "losses", "cut_losses", "marks")
"""The counters in each line of `links.jsonl`, cumulative from the start of the run."""


class Sample(NamedTuple):
    """One operation of one rank, from `samples.jsonl`. Times are in seconds since the run's origin.

    `message` is the same at both ends of a message, such as "3>4/17": sender, receiver and tag. `stream` is the stream
    on which a rank's operations run in order, if its plan has streams.
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
        """Duration of the operation in seconds."""
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
    def of(cls, record: Mapping[str, Any]) -> LinkKey:
        """Return the key of a record with the fields `a`, `b`, `plane` and `direction`."""
        return cls(str(record["a"]), str(record["b"]), int(record["plane"]), str(record["direction"]))


def hosts_by_building(fabric: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the hosts of each building, in topology order; a transit site has none.

    `fabric` is the manifest's entry. Older manifests list only hosts, and have no transit sites.
    """
    found: dict[str, list[JsonObject]] = {name: [] for name in fabric.get("buildings", ())}
    for host in fabric["hosts"]:
        found.setdefault(host["building"], []).append(host)
    return found


class LinkReading(NamedTuple):
    """Counters of one direction of a WAN link at one point in time, from `links.jsonl`.

    Counters are cumulative from the start of the run. `bytes` (on the wire) and `packets` count traffic that left the
    queue. `drops` counts drops of the full queue, `losses` random losses on the fibre, `cut_losses` losses of a cut
    link, and `marks` ECN marks. `queue_bytes` is the queue length at `time_s`, which is in seconds since the run's
    origin. `edge` is "start" or "end" for a reading at the edge of a measured step, else empty.
    """

    time_s: float
    link: LinkKey
    bytes: float
    packets: int
    drops: int
    losses: int
    cut_losses: int
    marks: int
    queue_bytes: float
    edge: str = ""


class SocketReading(NamedTuple):
    """TCP state of one connection of a rank at one point in time, from `sockets.jsonl`.

    `time_s` is in real seconds since the run's origin. `window_segments` is the congestion window in segments of the
    scale model. `retransmits` counts segments, cumulative over the variant's trials.
    """

    time_s: float
    rank: int
    peer: int
    dscp: int
    channel: int
    window_segments: int
    retransmits: int


_TYPES = {kind: get_type_hints(kind) for kind in (Sample, LinkReading, SocketReading)}


def _convert(kind: type[Reading], record: JsonObject, scale: Scale, **own: Any) -> Reading:
    """Return a record in real units: fields that end in `_s` are times, those that end in `bytes` are sizes."""
    convert = {
        "s": lambda value: scale.real_s(float(value)),
        "bytes": lambda value: scale.real_bytes(float(value)),
    }
    for name, of_type in _TYPES[kind].items():
        if name not in own and (name in record or name not in kind._field_defaults):
            own[name] = convert.get(name.rsplit("_", 1)[-1], of_type)(record[name])
    return kind(**own)


def parse_sample(record: JsonObject, scale: Scale) -> Sample:
    """Convert a line of `samples.jsonl`, or of a rank's own file, to real units."""
    return _convert(Sample, record, scale, size_bytes=scale.real_bytes(float(record["bytes"] or 0)))


def read_samples(path: Path, scale: Scale) -> list[Sample]:
    """Read `samples.jsonl`, in real units and in file order, or raise BadResult."""
    return _read(path, lambda record: parse_sample(record, scale), "a sample")


def read_links(path: Path, scale: Scale) -> list[LinkReading]:
    """Read `links.jsonl`, in real units and in file order, or raise BadResult."""
    return _read(
        path, lambda record: _convert(LinkReading, record, scale, link=LinkKey.of(record)), "a link counter"
    )


def read_sockets(path: Path, scale: Scale) -> list[SocketReading]:
    """Read `sockets.jsonl`, in real seconds and in file order, or raise BadResult; empty if there is no such file."""

    def reading(record: JsonObject) -> SocketReading:
        window = int(record["congestion_window_segments"])
        return _convert(SocketReading, record, scale, window_segments=window)

    return _read(path, reading, "a connection") if path.exists() else []


def read_events(path: Path, scale: Scale) -> list[JsonObject]:
    """Read the scenario's events in file order; `time_s` is in real seconds, or None if the event never took place."""

    def event(record: JsonObject) -> JsonObject:
        time_s = record["time_s"]
        return {**record, "time_s": None if time_s is None else scale.real_s(float(time_s))}

    return _read(path, event, "an event") if path.exists() else []


def _read(path: Path, make: Callable[[JsonObject], Record], what: str) -> list[Record]:
    found = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            if line.strip():
                found.append(make(json.loads(line)))
        except json.JSONDecodeError as error:
            raise BadResult(f"{path}:{number}: not JSON: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise BadResult(f"{path}:{number}: not {what}: {error!r}") from error
    return found


def read_json(path: Path) -> JsonObject:
    """Return the JSON object in a file, or raise BadResult."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise BadResult(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    if not isinstance(content, dict):
        raise BadResult(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def read_model(path: Path, model: type[Model], hint: str = "") -> Model:
    """Read a JSON file as a model, or raise BadResult with the first wrong field; `hint` is for missing files."""
    text = read_text(path, hint)
    try:
        return model.model_validate(json.loads(text))
    except ValidationError as error:
        found = error.errors()[0]
        field = ".".join(map(str, found["loc"]))
        got = "nothing" if found["type"] == "missing" else repr(found["input"])
        expected = f"what this version of testbed writes ({found['msg']})"
        raise BadResult(f"{path}: {field}: got {got}, expected {expected}") from None
    except ValueError as error:
        raise BadResult(f"{path}: expected JSON ({error})") from None


def read_text(path: Path, hint: str = "") -> str:
    """Return the text of a file, or raise BadResult."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadResult(f"{path}: {error.strerror}{hint}") from error
