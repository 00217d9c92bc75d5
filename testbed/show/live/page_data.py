"""The data of the live page in real units, and their readers for the run's files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from testbed.measure.results.records import LINKS, LinkKey, hosts_by_building
from testbed.spec.scale import Scale

Json = dict[str, Any]
Counted = tuple[float, int, float, int]
"""A link's emulated counters: bytes and drops since some origin, queue length in bytes, packets lost on the link."""
RUNNING, FINISHED, FAILED = "running", "finished", "failed"


@dataclass(frozen=True)
class Direction:
    """One direction of a WAN link; `rate_bps` is emulated."""

    key: LinkKey
    rate_bps: float


class Readings:
    """Link readings of a part of a run: columns with the length of `times_s`, with a row per link.

    Each time has the share of the rate used since the previous time, and the queue, drops and losses.
    """

    def __init__(self, directions: Sequence[Direction], scale: Scale) -> None:
        self.directions = directions
        self.scale = scale
        self.times_s: list[float] = []
        self.used: list[list[float]] = [[] for _ in directions]
        self.queue_bytes: list[list[float]] = [[] for _ in directions]
        self.drops: list[list[int]] = [[] for _ in directions]
        self.losses: list[list[int]] = [[] for _ in directions]
        self._first: list[Counted] = []
        self._previous: tuple[float, list[float]] | None = None

    def add(self, time_s: float, counted: Mapping[LinkKey, Counted]) -> None:
        """Add a reading of all links, at an emulated time."""
        rows = [counted.get(direction.key, (0.0, 0, 0.0, 0)) for direction in self.directions]
        sent = [row[0] for row in rows]
        previous, self._previous = self._previous, (time_s, sent)
        if previous is None or time_s <= previous[0]:
            self._first = self._first or rows
            return
        self.times_s.append(round(self.scale.real_s(time_s), 6))
        for at, (direction, row) in enumerate(zip(self.directions, rows, strict=True)):
            share = 8 * (row[0] - previous[1][at]) / (time_s - previous[0]) / direction.rate_bps
            self.used[at].append(round(max(share, 0.0), 5))
            self.drops[at].append(row[1] - self._first[at][1])
            self.losses[at].append(row[3] - self._first[at][3])
            self.queue_bytes[at].append(round(self.scale.real_bytes(row[2])))

    def since(self, place: int) -> Json:
        """Return the readings from an index of `times_s` onwards."""
        return {
            "times_s": self.times_s[place:],
            "used": [row[place:] for row in self.used],
            "queue_bytes": [row[place:] for row in self.queue_bytes],
            "drops": [row[place:] for row in self.drops],
            "losses": [row[place:] for row in self.losses],
        }


class StepSpan(NamedTuple):
    """A measured step over all ranks; `step` is its number in the part; times are real seconds, as in readings."""

    part: int
    variant: str
    trial: int
    step: int
    start_s: float
    end_s: float


@dataclass
class PageData:
    """The data that the page shows. Lists only grow, so a client that knows their lengths gets only the rest."""

    name: str
    folder: str
    clock: str
    state: str = RUNNING
    words: str = ""  # a sentence on the run's outcome
    head: Json = field(default_factory=dict)  # of a finished run: verdict, variants, answer
    network: Json | None = None
    parts: list[Json] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    done: int = 0
    total: int = 0
    progress: list[Json] = field(default_factory=list)
    steps: list[StepSpan] = field(default_factory=list)
    readings: list[Readings] = field(default_factory=list)  # by part
    events: list[Json] = field(default_factory=list)

    def since(self, known: Mapping[str, Any] | None = None) -> Json:
        """Return the data that are new for a client with the state `known`; all data if there is none."""
        known = known or {}
        seen = known.get("readings", [])
        places = [seen[part] if part < len(seen) else 0 for part in range(len(self.readings))]
        return {
            "state": self.state,
            "words": self.words,
            "done": self.done,
            "total": self.total,
            "progress": self.progress,
            "network": self.network,
            "phases": self.phases[known.get("phases", 0) :],
            "steps": [step._asdict() for step in self.steps[known.get("steps", 0) :]],
            "events": self.events[known.get("events", 0) :],
            "readings": [own.since(place) for own, place in zip(self.readings, places, strict=True)],
        }

    def known(self) -> Json:
        """Return the current length of every list, and the values that are always sent, to detect changes."""
        return {
            "phases": len(self.phases),
            "steps": len(self.steps),
            "events": len(self.events),
            "readings": [len(own.times_s) for own in self.readings],
            "besides": [self.state, self.done, self.total, self.progress, self.network is None],
        }

    def document(self) -> Json:
        """Return all data, including those that never change."""
        static = {"name": self.name, "folder": self.folder, "clock": self.clock, "parts": self.parts}
        return {**static, **self.head, **self.since()}


def network_of(fabric: Json, scale: Scale) -> tuple[Json, list[Direction]]:
    """Return the network for the page, in real units, and each direction of each link in the page's order."""
    links, directions = [], []
    for link in fabric["wan"]:
        for direction in ("a_to_b", "b_to_a"):
            key, figures = LinkKey.of({**link, "direction": direction}), link[direction]
            directions.append(Direction(key, figures["rate_bps"]))
            links.append(
                {
                    "source": key.source,
                    "target": key.target,
                    "plane": key.plane,
                    "rate_bps": scale.real_bps(figures["rate_bps"]),
                    "delay_s": scale.real_s(figures["delay_s"]),
                    "jitter_s": scale.real_s(figures["jitter_s"]),
                    "loss": figures["loss"],
                    "queue_bytes": scale.real_bytes(figures["queue_bytes"]),
                }
            )
    shown = [
        {"name": name, "hosts": [{"name": host["name"], "rank": host.get("rank")} for host in own]}
        for name, own in hosts_by_building(fabric).items()
    ]
    return {"buildings": shown, "links": links}, directions


def event_text(record: Json) -> str:
    """Describe an event of the scenario."""
    return f"{record['action']} {record['target']} {'begins' if record['begins'] else 'ends'}"


WHOLE_STEP = b'"operation": "step"'
"""Text that only the lines of ranks' whole steps contain."""


def link_moments(folder: Path) -> dict[float, dict[LinkKey, Counted]]:
    """Return each link's counters by time of the periodic readings, in order.

    Readings at step edges are omitted: they are too close to others to compute rates.
    """
    moments: dict[float, dict[LinkKey, Counted]] = defaultdict(dict)
    for line in records(folder / LINKS):
        if not line.get("edge"):
            lost = line["losses"] + line["cut_losses"]
            moments[line["time_s"]][LinkKey.of(line)] = (
                line["bytes"],
                line["drops"],
                line["queue_bytes"],
                lost,
            )
    return moments


def real_span(steps: Sequence[Record], zero_s: float, scale: Scale) -> tuple[float, float]:
    """Return when the first rank began a step and the last one ended it, in real seconds from `zero_s`."""
    start_s, end_s = min(one["start_s"] for one in steps), max(one["end_s"] for one in steps)
    return scale.real_s(start_s - zero_s), scale.real_s(end_s - zero_s)


Record = dict[str, Any]


class JsonlTail:
    """A reader that follows a JSON-lines file: it returns complete lines added since the last read, if any.

    `only` has bytes that a line must contain to be parsed.
    """

    def __init__(self, path: Path, only: bytes = b"") -> None:
        self.path = path
        self.only = only
        self._offset = 0

    def read_new(self) -> list[Record]:
        """Return the new records."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        lines, _, _ = content.rpartition(b"\n")
        if not lines:
            return []
        self._offset += len(lines) + 1
        # a rank may have been killed while writing
        whole = (line for line in lines.split(b"\n") if line.endswith(b"}") and self.only in line)
        return list(map(json.loads, whole))


def records(path: Path, only: bytes = b"") -> list[Record]:
    """Return all records of a file; none if it does not exist."""
    return JsonlTail(path, only).read_new()
