"""The records along a run, from its files, in real units: ranks' operations, links' counters, events.

A run is measured on a scale model (see `Scale`): the files hold emulated figures, a reader wants the real ones. The
translation happens here, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from testbed.measure.results.base_model import ResultModel
from testbed.measure.results.run_directory import BadResult
from testbed.spec.scale import Scale

JsonObject = dict[str, Any]
Record = TypeVar("Record")
Model = TypeVar("Model", bound=ResultModel)
SAMPLES, LINKS, EVENTS = "samples.jsonl", "links.jsonl", "events.jsonl"
COUNTERS = ("bytes", "packets", "drops", "losses", "cut_losses", "marks")
"""What each line of `links.jsonl` counts from the run's begin on."""


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
    def of(cls, record: Mapping[str, Any]) -> LinkKey:
        """The key of a record that has `a`, `b`, `plane` and `direction`."""
        return cls(str(record["a"]), str(record["b"]), int(record["plane"]), str(record["direction"]))


def hosts_by_building(fabric: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the hosts of each building, in the topology's order; a transit site has none.

    fabric: as a manifest has it; older ones list hosts alone, and have no transit sites.
    """
    found: dict[str, list[JsonObject]] = {name: [] for name in fabric.get("buildings", ())}
    for host in fabric["hosts"]:
        found.setdefault(host["building"], []).append(host)
    return found


class LinkReading(NamedTuple):
    """What one direction of a WAN link had carried by a time, and what waited there, as `links.jsonl` has it.

    time_s: seconds since the run's origin. bytes, as on the wire, and packets count from the run's begin: those past
    the queue, and those that it dropped, that the fibre lost at random, that a cut of the link lost, that were marked.
    queue_bytes: the queue as it was then. edge: "start" or "end" where it was read at a measured step's, else empty.
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
    """What TCP had for one connection of a rank at a time, as `sockets.jsonl` has it.

    time_s: real seconds since the run's origin. window_segments: the congestion window, of the scale model's segments;
    retransmits: segments, in all of the variant's trials until then.
    """

    time_s: float
    rank: int
    peer: int
    dscp: int
    channel: int
    window_segments: int
    retransmits: int


def sample_of(record: JsonObject, scale: Scale) -> Sample:
    """A line of `samples.jsonl`, or of a rank's own file, in real units."""
    return Sample(
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


def read_samples(path: Path, scale: Scale) -> list[Sample]:
    """The samples of `samples.jsonl`, times and sizes in real units, in the file's order. BadResult."""
    return _read(path, lambda record: sample_of(record, scale), "a sample")


def read_links(path: Path, scale: Scale) -> list[LinkReading]:
    """The readings of `links.jsonl`, times and sizes in real units, in the file's order. BadResult."""

    def reading(record: JsonObject) -> LinkReading:
        return LinkReading(
            time_s=scale.real_s(float(record["time_s"])),
            link=LinkKey.of(record),
            bytes=scale.real_bytes(float(record["bytes"])),
            packets=int(record["packets"]),
            drops=int(record["drops"]),
            losses=int(record["losses"]),
            cut_losses=int(record["cut_losses"]),
            marks=int(record["marks"]),
            queue_bytes=scale.real_bytes(float(record["queue_bytes"])),
            edge=str(record.get("edge", "")),
        )

    return _read(path, reading, "a link counter")


def read_sockets(path: Path, scale: Scale) -> list[SocketReading]:
    """The readings of `sockets.jsonl`, times in real seconds, in the file's order; none without the file. BadResult."""

    def reading(record: JsonObject) -> SocketReading:
        return SocketReading(
            time_s=scale.real_s(float(record["time_s"])),
            rank=int(record["rank"]),
            peer=int(record["peer"]),
            dscp=int(record["dscp"]),
            channel=int(record["channel"]),
            window_segments=int(record["congestion_window_segments"]),
            retransmits=int(record["retransmits"]),
        )

    return _read(path, reading, "a connection") if path.exists() else []


def read_events(path: Path, scale: Scale) -> list[JsonObject]:
    """The scenario's events as they came, in their order; `time_s` in real seconds of the run, None if never."""

    def event(record: JsonObject) -> JsonObject:
        time_s = record["time_s"]
        return {**record, "time_s": None if time_s is None else scale.real_s(float(time_s))}

    return _read(path, event, "an event") if path.exists() else []


def _read(path: Path, make: Callable[[JsonObject], Record], what: str) -> list[Record]:
    """One of each line of a file."""
    found = []
    for number, record in _read_lines(path):
        try:
            found.append(make(record))
        except (KeyError, TypeError, ValueError) as error:
            raise BadResult(f"{path}:{number}: not {what}: {error!r}") from error
    return found


def _read_lines(path: Path) -> Iterator[tuple[int, JsonObject]]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise BadResult(f"{path}:{number}: not JSON: {error}") from error


def read_json(path: Path) -> JsonObject:
    """The object that a file holds. BadResult."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise BadResult(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    if not isinstance(content, dict):
        raise BadResult(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def read_model(path: Path, model: type[Model]) -> Model:
    """What a file of one thing holds. BadResult, which names the first field that is wrong."""
    text = read_text(path)
    try:
        return model.model_validate(json.loads(text))
    except ValidationError as error:
        found = error.errors()[0]
        raise BadResult(f"{path}: {'.'.join(map(str, found['loc']))}: {found['msg']}") from None
    except ValueError as error:
        raise BadResult(f"{path}: expected JSON ({error})") from None


def read_text(path: Path) -> str:
    """What a file holds. BadResult."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadResult(f"{path}: {error.strerror}") from error
