"""Dumps of flight recorders: the latest operations of each communicator of one rank, finished or not.

After NCCLX's CollTrace (arXiv:2510.20171) and PyTorch's flight recorder: an operation is scheduled when the rank
requests it, started once its control part (registering buffers, notifying peers) is over, and completed when its result
is available. Times are seconds of the rank's own clock.

`NetworkPaths` is another file of a run: it lists the components that the messages of each pair of ranks pass.
Components have names such as "nic a-0", "switch a-leaf", "link a-b-0" and "plane 0"; files from other tools may use
other names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from testbed.errors import BadInput

SCHEMA = 1
FLIGHT = "flight"  # a run's folder of dumps
# files in it: the process that dumps on SIGUSR1 while ranks run, and the time of its last dump on its clock
LAUNCHER_PID, DUMPED = "launcher.pid", "dumped"
STALLED = "stalled"  # a folder in it: dumps of a step that hung, made while the run continued
SCHEDULED, STARTED, COMPLETED, FAILED = "scheduled", "started", "completed", "failed"
STATES = (SCHEDULED, STARTED, COMPLETED, FAILED)


def dump_name(rank: int | str) -> str:
    """Return the file name of a rank's dump; for rank "*", the pattern of all names."""
    return f"rank-{rank}.json"


DUMPS = dump_name("*")


class DumpError(BadInput):
    """A file that is not a flight recorder's dump, or memory that is not its ring."""


Made = TypeVar("Made")


def read_document(path: Path, make: Callable[[Mapping[str, Any]], Made]) -> Made:
    """Read a file with one JSON object and convert it with `make`.

    Raises DumpError with the file's name, or OSError.
    """
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise DumpError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise DumpError(f"{path}: got {type(document).__name__}, expected an object")
    try:
        return make(document)
    except DumpError as error:
        raise DumpError(f"{path}: {error}") from error


def validate_document(kind: type[Made], what: str, document: Mapping[str, Any]) -> Made:
    """Convert a file's document to its dataclass, after checking that all fields are present and of the declared types.

    Args:
        kind: The dataclass. The document must have all of its fields, and `schema`.
        what: The name of the file format, for the error.
        document: The parsed JSON.

    Raises:
        DumpError: If a field is missing, unknown, or of another type; names its place.
    """
    from pydantic import ValidationError  # noqa: PLC0415 (no rank needs it, and it takes long to import)

    values = {key: value for key, value in document.items() if key != "schema"}
    try:
        if missing := [one.name for one in fields(kind) if one.name not in values]:  # type: ignore[arg-type]
            raise DumpError(where=f"not {what}", got="no " + ", ".join(missing), expected="all fields")
        made: Made = _adapter(kind).validate_python(values)  # type: ignore[arg-type]
        return made
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = f"not {what}: {'.'.join(map(str, first['loc']))}"
        raise DumpError(where=where, got=repr(first["input"])[:80], expected=first["msg"]) from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(kind)


_FORBID_EXTRA = {"extra": "forbid"}
"""Unknown fields in a file are an error."""


@dataclass(frozen=True)
class GroupRecord:
    """A communicator: its number, its name, and its ranks in order, by number on the transport.

    All its ranks use the same number. Communicators without a common rank may share one.
    """

    __pydantic_config__ = _FORBID_EXTRA

    id: int
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class PeerTraffic:
    """Messages of one operation with one peer. Times are of the first and last message, or None.

    `sent`: passed to the transport. `expected`: receives posted. `received`: receives completed.
    """

    __pydantic_config__ = _FORBID_EXTRA

    sent: int = 0
    sent_bytes: int = 0
    sent_first_s: float | None = None
    sent_last_s: float | None = None
    expected: int = 0
    expected_bytes: int = 0
    expected_first_s: float | None = None
    received: int = 0
    received_bytes: int = 0
    received_last_s: float | None = None

    @property
    def missing(self) -> int:
        """The number of missing messages."""
        return self.expected - self.received


@dataclass(frozen=True)
class Entry:
    """One operation of a rank.

    Attributes:
        group: The communicator's number.
        sequence: The number among the communicator's collectives, from 1, equal on all correct ranks; 0 for a
            point-to-point message.
        name: "all_reduce", ..., "isend", "irecv".
        size_bytes: The size of the rank's array.
        peer: The peer of a point-to-point message, by number on the transport.
        tag: The tag of a point-to-point message.
        phase: The algorithm's current phase, if it has phases.
        round: The current round of the phase.
        rounds: The number of rounds.
        peers: Messages with each peer, by number on the transport.
        error: The reason for a failure.
    """

    __pydantic_config__ = _FORBID_EXTRA

    group: int
    sequence: int
    name: str
    state: str
    scheduled_s: float
    algorithm: str = ""
    dtype: str = ""
    op: str = ""
    size_bytes: int = 0
    started_s: float | None = None
    ended_s: float | None = None
    peer: int | None = None
    tag: int | None = None
    phase: str = ""
    round: int = 0
    rounds: int = 0
    error: str = ""
    peers: Mapping[int, PeerTraffic] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the operation has completed or failed."""
        return self.state in (COMPLETED, FAILED)

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Peers whose messages are missing, while the operation is not over."""
        return (
            ()
            if self.state == COMPLETED
            else tuple(p for p, traffic in self.peers.items() if traffic.missing > 0)
        )


@dataclass(frozen=True)
class RankDump:
    """One rank's recorder, read at `time_s` of the rank's clock.

    `ended` says how the rank ended; it is "" while the rank runs. `entries` are in the order in which they were
    scheduled.
    """

    __pydantic_config__ = _FORBID_EXTRA

    rank: int
    host: str
    time_s: float
    ended: str = ""
    groups: tuple[GroupRecord, ...] = ()
    entries: tuple[Entry, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the dump, ready for JSON. Entries and peers omit fields at their defaults."""
        document = asdict(self)
        for entry in document["entries"]:
            entry["peers"] = {
                str(peer): _drop_defaults(PeerTraffic, traffic) for peer, traffic in entry["peers"].items()
            }
        document["entries"] = [_drop_defaults(Entry, entry) for entry in document["entries"]]
        return {"schema": SCHEMA, **document}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RankDump:
        """Return the inverse of `to_document`, also after a round trip through JSON. Raises DumpError."""
        if document.get("schema") != SCHEMA:
            raise DumpError(f"schema: got {document.get('schema')!r}, expected {SCHEMA}")
        dump = validate_document(cls, "a dump of a flight recorder", document)
        for place, entry in enumerate(dump.entries):
            if entry.state not in STATES:
                where = f"entries.{place}.state"
                raise DumpError(where=where, got=repr(entry.state), expected=f"one of {', '.join(STATES)}")
        return dump

    def write(self, path: Path) -> None:
        """Write the dump as JSON."""
        path.write_text(json.dumps(self.to_document()) + "\n")

    @classmethod
    def read(cls, path: Path) -> RankDump:
        """Read a dump that `write` wrote. Raises DumpError or OSError."""
        return read_document(path, cls.from_document)


def _drop_defaults(kind: type[Entry] | type[PeerTraffic], values: dict[str, Any]) -> dict[str, Any]:
    defaults = {each.name: each.default for each in fields(kind)}
    return {key: value for key, value in values.items() if value != defaults[key] and value != {}}


PATHS_SCHEMA = 1
PATHS_FILE = "paths.json"


@dataclass(frozen=True)
class PairPath:
    """The path of one connection from a rank to another.

    Attributes:
        source: The sending rank.
        target: The receiving rank.
        components: The components on the path, in order.
        dscp: The class of traffic.
        channel: The channel of the pair.
        rate_bps: Rate of the path if nothing else uses it; None if unknown.
        delay_s: Delay of the path if nothing else uses it; None if unknown.
    """

    source: int
    target: int
    components: tuple[str, ...]
    dscp: int = 0
    channel: int = 0
    rate_bps: float | None = None
    delay_s: float | None = None


@dataclass(frozen=True)
class NetworkPaths:
    """The paths of a run's messages.

    Attributes:
        hosts: The host of each rank.
        pairs: The paths.
        rates_bps: Rates of components that several pairs share, if known.
        one_clock: Whether all ranks read the same clock.
    """

    hosts: Mapping[int, str] = field(default_factory=dict)
    pairs: tuple[PairPath, ...] = ()
    rates_bps: Mapping[str, float] = field(default_factory=dict)
    one_clock: bool = False

    def to_document(self) -> dict[str, Any]:
        """Return the paths, ready for JSON."""
        pairs = []
        for pair in self.pairs:
            entry = asdict(pair)
            pairs.append({"from": entry.pop("source"), "to": entry.pop("target"), **entry})
        return {
            "schema": PATHS_SCHEMA,
            "hosts": {str(rank): host for rank, host in self.hosts.items()},
            "rates_bps": dict(self.rates_bps),
            "one_clock": self.one_clock,
            "pairs": pairs,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> NetworkPaths:
        """Return the inverse of `to_document`, also after a round trip through JSON. Raises DumpError."""
        if document.get("schema") != PATHS_SCHEMA:
            raise DumpError(f"schema: got {document.get('schema')!r}, expected {PATHS_SCHEMA}")
        values = {"rates_bps": {}, "one_clock": False, **document}
        if isinstance(values.get("pairs"), list):
            values["pairs"] = [_with_field_names(item) for item in values["pairs"]]
        return validate_document(cls, "a file of paths", values)

    def write(self, path: Path) -> None:
        """Write the paths as JSON."""
        path.write_text(json.dumps(self.to_document()) + "\n")

    @classmethod
    def read(cls, path: Path) -> NetworkPaths:
        """Read paths that `write` wrote. Raises DumpError or OSError."""
        return read_document(path, cls.from_document)


def _with_field_names(item: Any) -> Any:
    """Return a pair from a file with its ends renamed to PairPath's fields."""
    names = {"from": "source", "to": "target"}
    return {names.get(key, key): value for key, value in item.items()} if isinstance(item, dict) else item
