"""What the network's paths were: which parts the messages of each pair of ranks went through, as a file of a run.

Parts are words: "nic a-0", "switch a-leaf", "link a-b-0", "plane 0". A file from elsewhere may have others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testbed.comm.flight_recorder.records import DumpError, read_document, validated

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
        return validated(cls, "a file of paths", values)

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
