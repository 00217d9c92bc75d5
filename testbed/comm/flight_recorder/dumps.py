"""What a dump of one rank's flight recorder says: the last operations of each communicator, finished or not.

After NCCLX's CollTrace (arXiv:2510.20171) and PyTorch's flight recorder: an operation is scheduled when the rank asks
for it, started once its control part (buffers registered, peers told) is over, completed when its result is there.
Times are seconds of the rank's own clock.
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
FLIGHT = "flight"  # the folder of a run in which dumps stand
# in it: who dumps on SIGUSR1 while the ranks are at work, and when it has done so last, by its clock
LAUNCHER_PID, DUMPED = "launcher.pid", "dumped"
STALLED = "stalled"  # beside the dumps of a run: those of a step that did not end, made while it went on
SCHEDULED, STARTED, COMPLETED, FAILED = "scheduled", "started", "completed", "failed"
STATES = (SCHEDULED, STARTED, COMPLETED, FAILED)


def dump_name(rank: int | str) -> str:
    """The name of the file that a rank's dump stands in; "*" for that of any."""
    return f"rank-{rank}.json"


DUMPS = dump_name("*")


class DumpError(BadInput):
    """A file that is not a dump of a flight recorder, or memory that is not one's."""


Made = TypeVar("Made")


def read_document(path: Path, make: Callable[[Mapping[str, Any]], Made]) -> Made:
    """What `make` makes of a file with one JSON object. DumpError, with the file's name; OSError."""
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
    """Make a dataclass of a file's document, with all that is in it and of the types that it says.

    Args:
        kind: The dataclass; the document has `schema` beside its fields, all of which must be there.
        what: The file, for people.
        document: As JSON has it.

    Raises:
        DumpError: With the place, for what is missing, unknown, or of another type.
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
"""Fields that there are not, in a file, are an error."""


@dataclass(frozen=True)
class GroupRecord:
    """A communicator: its number, its name, its ranks in order, by number on the transport.

    All its ranks know it by the same number; communicators without a rank in common may share one.
    """

    __pydantic_config__ = _FORBID_EXTRA

    id: int
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class PeerTraffic:
    """What one operation has exchanged with one peer, whole messages; times of the first and last of a kind, or None.

    sent: given to the transport. expected: receives that were posted. received: of these, those that have come.
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
        """How many messages are waited for."""
        return self.expected - self.received


@dataclass(frozen=True)
class Entry:
    """One operation of a rank.

    group: the communicator's number. sequence: of the communicator's collectives, from 1, the same on all ranks that go
    by the rules; of a point-to-point message 0. name: "all_reduce", ..., "isend", "irecv". size_bytes: of the rank's
    array. peer, tag: of a point-to-point message, the peer by its number on the transport. phase, round, rounds: how
    far it was, where its algorithm says. peers: by number on the transport. error: why it failed.
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
        """Whether it has ended, well or not."""
        return self.state in (COMPLETED, FAILED)

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Peers from which messages are missing, while it is not over."""
        return () if self.state == COMPLETED else tuple(p for p, own in self.peers.items() if own.missing > 0)


@dataclass(frozen=True)
class RankDump:
    """One rank's recorder, read at `time_s` of the rank's clock. ended: how the rank ended, "" while it goes on.

    entries: in the order in which they were scheduled.
    """

    __pydantic_config__ = _FORBID_EXTRA

    rank: int
    host: str
    time_s: float
    ended: str = ""
    groups: tuple[GroupRecord, ...] = ()
    entries: tuple[Entry, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Ready for JSON; of entries and peers what is not as its default."""
        document = asdict(self)
        for entry in document["entries"]:
            entry["peers"] = {
                str(peer): _drop_defaults(PeerTraffic, own) for peer, own in entry["peers"].items()
            }
        document["entries"] = [_drop_defaults(Entry, entry) for entry in document["entries"]]
        return {"schema": SCHEMA, **document}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RankDump:
        """The inverse of `to_document`, also after a round trip through JSON. DumpError."""
        if document.get("schema") != SCHEMA:
            raise DumpError(f"schema: got {document.get('schema')!r}, expected {SCHEMA}")
        found = validate_document(cls, "a dump of a flight recorder", document)
        for place, entry in enumerate(found.entries):
            if entry.state not in STATES:
                where = f"entries.{place}.state"
                raise DumpError(where=where, got=repr(entry.state), expected=f"one of {', '.join(STATES)}")
        return found

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(self.to_document()) + "\n")

    @classmethod
    def read(cls, path: Path) -> RankDump:
        """The inverse of `write`. DumpError, OSError."""
        return read_document(path, cls.from_document)


def _drop_defaults(kind: type[Entry] | type[PeerTraffic], own: dict[str, Any]) -> dict[str, Any]:
    """Without what is as if it were not said."""
    usual = {known.name: known.default for known in fields(kind)}
    return {key: value for key, value in own.items() if value != usual[key] and value != {}}


PATHS_SCHEMA = 1
PATHS_FILE = "paths.json"


@dataclass(frozen=True)
class PairPath:
    """One connection's way from a rank to another. components: in the order in which a message comes to them.

    rate_bps, delay_s: of the path while nothing else uses it; None where nobody knows.
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
    """hosts: of the ranks. rates_bps: of parts that several pairs share, where somebody knows.

    one_clock: whether all ranks read the same clock.
    """

    hosts: Mapping[int, str] = field(default_factory=dict)
    pairs: tuple[PairPath, ...] = ()
    rates_bps: Mapping[str, float] = field(default_factory=dict)
    one_clock: bool = False

    def to_document(self) -> dict[str, Any]:
        """Ready for JSON."""
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
        """The inverse of `to_document`, also after a round trip through JSON. DumpError."""
        if document.get("schema") != PATHS_SCHEMA:
            raise DumpError(f"schema: got {document.get('schema')!r}, expected {PATHS_SCHEMA}")
        values = {"rates_bps": {}, "one_clock": False, **document}
        if isinstance(values.get("pairs"), list):
            values["pairs"] = [_with_field_names(item) for item in values["pairs"]]
        return validate_document(cls, "a file of paths", values)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(self.to_document()) + "\n")

    @classmethod
    def read(cls, path: Path) -> NetworkPaths:
        """The inverse of `write`. DumpError, OSError."""
        return read_document(path, cls.from_document)


def _with_field_names(item: Any) -> Any:
    """Return a pair of a file with PairPath's names of its ends."""
    names = {"from": "source", "to": "target"}
    return {names.get(key, key): value for key, value in item.items()} if isinstance(item, dict) else item
