"""Conversion to and from the format of PyTorch's flight recorder, which its analyser `torchfrtrace` reads.

Fields as in torch/csrc/distributed/c10d/FlightRecorderDetail.hpp and torch/distributed/flight_recorder (PyTorch 2.9).
The format has no counts per peer and no failures: an operation that is not completed is started or scheduled.
"""

from __future__ import annotations

import ast
import math
import pickle
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.comm.flight_recorder.dumps import (
    COMPLETED,
    FAILED,
    SCHEDULED,
    STARTED,
    DumpError,
    Entry,
    GroupRecord,
    RankDump,
)

VERSION = "2.9"
PREFIX = "trace_rank_"

# our names of operations, and those of PyTorch's process groups
_TO_PYTORCH = {
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_dynamic": "all_to_all_v_single",
    "barrier": "all_reduce_barrier",
    "isend": "send",
    "irecv": "recv",
}
_FROM_PYTORCH = {theirs: ours for ours, theirs in _TO_PYTORCH.items()}
# names by c10::toString, and sizes in bytes
_DTYPES = {
    "float64": ("Double", 8),
    "float32": ("Float", 4),
    "float16": ("Half", 2),
    "bfloat16": ("BFloat16", 2),
    "int64": ("Long", 8),
    "int32": ("Int", 4),
    "uint8": ("Byte", 1),
    "int8": ("Char", 1),
}
_DTYPES_FROM_PYTORCH = {theirs: (ours, size) for ours, (theirs, size) in _DTYPES.items()}
_EVENT_BACKENDS_SUFFIX = "ccl"
"""The suffix of libraries whose recorders check an accelerator's events: NCCL, RCCL, XCCL, HCCL."""

RETIRED = "retired"
"""State of an operation that its recorder retired without recording a result."""

PARSE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Exceptions that unexpected content may raise."""

_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")


def to_pytorch(dump: RankDump) -> dict[str, Any]:
    """Return one rank's dump in PyTorch's format."""
    groups = {group.id: group for group in dump.groups}
    numbers: dict[int, dict[str, int]] = {}
    entries = []
    for place, entry in enumerate(dump.entries):
        count = numbers.setdefault(entry.group, {"collective": 0, "message": 0})
        count["collective"] = max(count["collective"], entry.sequence)
        count["message"] += not entry.sequence
        group = groups.get(entry.group, GroupRecord(entry.group, "undefined", ()))
        entries.append(
            {
                "frames": [],
                "record_id": place,
                "pg_id": entry.group,
                "process_group": (str(entry.group), group.name),
                "collective_seq_id": count["collective"],
                "p2p_seq_id": count["message"],
                "op_id": place + 1,
                "profiling_name": f"nccl:{_pytorch_name(entry, group, dump.rank)}",
                "time_created_ns": _ns(entry.scheduled_s),
                **_sizes(entry, max(1, len(group.ranks))),
                "state": entry.state
                if entry.state in (SCHEDULED, STARTED, COMPLETED)
                else _open_state(entry),
                "time_discovered_started_ns": _ns(entry.started_s),
                "time_discovered_completed_ns": _ns(entry.ended_s) if entry.state == COMPLETED else None,
                "retired": entry.over,
                "timeout_ms": 0,
                "is_p2p": not entry.sequence,
            }
        )
        if entry.state == COMPLETED and entry.ended_s is not None and entry.started_s is not None:
            entries[-1]["duration_ms"] = 1e3 * (entry.ended_s - entry.started_s)
    return {
        "version": VERSION,
        "pg_config": {
            str(group.id): {
                "name": str(group.id),
                "desc": group.name,
                "ranks": str(sorted(group.ranks)),
            }
            for group in dump.groups
        },
        "pg_status": {str(group.id): _status(dump, group.id) for group in dump.groups},
        "entries": entries,
    }


def write_pytorch(dump: RankDump, folder: Path) -> Path:
    """Write the dump, pickled, as `trace_rank_N`, which `torchfrtrace` reads; return the file."""
    path = folder / f"{PREFIX}{dump.rank}"
    path.write_bytes(pickle.dumps(to_pytorch(dump), protocol=2))
    return path


def from_pytorch(document: Mapping[str, Any], rank: int, written_s: float, first: int = 1) -> RankDump:
    """Return one rank's dump from PyTorch's format, with the fields that it has.

    Args:
        document: The content of a file.
        rank: The rank that wrote it.
        written_s: When the file was written, on the rank's clock, or 0.
        first: The number of a group's first collective.

    Raises:
        DumpError: If an entry cannot be read; names its place.
    """
    place = "pg_config"
    try:
        groups = {}
        for name, group in document["pg_config"].items():
            if ranks := group_ranks(group):
                groups[name] = GroupRecord(_group_number(name, ranks), group.get("desc") or name, ranks)
        entries = []
        for number, item in enumerate(document["entries"]):
            place = f"entry {number}"
            name, description = item["process_group"]
            if name not in groups:
                groups[name] = GroupRecord(_group_number(name, ()), description or name, ())
            entries.append(_entry(item, groups[name], first))
    except PARSE_ERRORS as error:
        reason = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error) or repr(error)
        raise DumpError(f"not a dump of PyTorch's flight recorder: {place}: {reason}") from error
    times = [
        time for one in entries for time in (one.scheduled_s, one.started_s, one.ended_s) if time is not None
    ]
    return RankDump(rank, "", max([*times, written_s]), "", tuple(groups.values()), tuple(entries))


def group_ranks(group: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ranks of a group in pg_config, a list or its text. Raises ValueError, or others of PARSE_ERRORS."""
    ranks = group["ranks"]
    numbers = tuple(ast.literal_eval(ranks) if isinstance(ranks, str) else ranks)
    if not all(isinstance(one, int) and one >= 0 for one in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError(f"got ranks {list(numbers)}, expected distinct ranks of 0 or more")
    return numbers


def is_message(item: Mapping[str, Any]) -> bool:
    """Return whether an entry is a point-to-point message; torchcomms does not have the flag."""
    name = str(item.get("profiling_name", "")).split(":", 1)[-1]
    return bool(item.get("is_p2p")) or name.split(" ", 1)[0] in ("send", "recv")


def _group_number(name: str, ranks: tuple[int, ...]) -> int:
    """Return a number that is the same on all ranks. Split groups have one name for several sets of ranks."""
    return zlib.crc32(f"{name} {sorted(ranks)}".encode())


def _entry(item: Mapping[str, Any], group: GroupRecord, first: int) -> Entry:
    backend, _, name = item["profiling_name"].rpartition(":")
    message = _MESSAGE.fullmatch(name)
    ranks = sorted(group.ranks)
    sizes, dtypes = item.get("input_sizes") or [], item.get("input_dtypes") or []
    if message and message[1] == "recv":
        sizes, dtypes = item.get("output_sizes") or [], item.get("output_dtypes") or []
    dtype, size = _DTYPES_FROM_PYTORCH.get(dtypes[0], (dtypes[0].lower(), 1)) if dtypes else ("", 1)
    # JSON has 0 for a missing time
    started_ns = item.get("time_discovered_started_ns") or None
    ended_ns = item.get("time_discovered_completed_ns") or None
    state = item["state"]
    if state not in (SCHEDULED, STARTED, COMPLETED):
        raise ValueError(f"got state {state!r}, expected {SCHEDULED}, {STARTED} or {COMPLETED}")
    if state != COMPLETED and item.get("retired"):
        # a backend with events sees every operation end, so this one has failed
        state = FAILED if backend.endswith(_EVENT_BACKENDS_SUFFIX) else RETIRED
    operation = message[1] if message else name.split(" ", 1)[0]
    return Entry(
        group.id,
        0 if is_message(item) else item["collective_seq_id"] - first + 1,
        _FROM_PYTORCH.get(operation, operation),
        state=state,
        dtype=dtype,
        size_bytes=sum(math.prod(dims) for dims in sizes) * size,
        scheduled_s=item["time_created_ns"] / 1e9,
        started_s=None if started_ns is None else started_ns / 1e9,
        ended_s=None if ended_ns is None else ended_ns / 1e9,
        # in both forms, "0->1" and "1<-0", the second is the peer
        peer=ranks[int(message[3])] if message and ranks else None,
        tag=0 if message else None,
    )


def _pytorch_name(entry: Entry, group: GroupRecord, rank: int) -> str:
    name = _TO_PYTORCH.get(entry.name, entry.name)
    if entry.sequence or entry.peer is None:
        return name
    ranks = sorted({*group.ranks, rank, entry.peer})
    mine, other = ranks.index(rank), ranks.index(entry.peer)
    return f"{name} {mine}{'->' if name == 'send' else '<-'}{other}"


def _sizes(entry: Entry, members: int) -> dict[str, Any]:
    """Return sizes in elements. A gather outputs all members' parts, a scatter outputs one of them."""
    dtype, size = _DTYPES.get(entry.dtype, (entry.dtype or "Byte", 1))
    numel = entry.size_bytes // size  # size of the input
    output = numel
    if entry.name.startswith("all_gather"):
        output = numel * members
    elif entry.name.startswith("reduce_scatter"):
        output = numel // members
    return {
        "input_sizes": [[numel]],
        "input_dtypes": [dtype],
        "output_sizes": [[output]],
        "output_dtypes": [dtype],
    }


def _open_state(entry: Entry) -> str:
    return SCHEDULED if entry.started_s is None else STARTED


def _status(dump: RankDump, group: int) -> dict[str, str]:
    collectives = [entry for entry in dump.entries if entry.group == group and entry.sequence]

    def last(entries: list[Entry]) -> str:
        return str(max((entry.sequence for entry in entries), default=-1))

    return {
        "last_enqueued_collective": last(collectives),
        "last_started_collective": last([entry for entry in collectives if entry.started_s is not None]),
        "last_completed_collective": last([entry for entry in collectives if entry.state == COMPLETED]),
    }


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
