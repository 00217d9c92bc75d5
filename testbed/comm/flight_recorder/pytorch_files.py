"""Reading the files of PyTorch's flight recorder, and conclusions from all ranks' files together.

File names, formats and conventions follow PyTorch 2.5 to 2.14 (c10d's FlightRecorder with NCCL, XCCL and Gloo),
Ascend's HCCL and torchcomms, whose dumps have the same fields.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.comm.flight_recorder.dumps import COMPLETED, FAILED, DumpError, RankDump
from testbed.comm.flight_recorder.pytorch import PARSE_ERRORS, RETIRED, from_pytorch, group_ranks, is_message

USUAL_NAMES = ("comm_lib_trace_rank_*", "nccl_trace_rank_*", "trace_*")

# PREFIX and the rank: TORCH_FR_DUMP_TEMP_FILE is any prefix, and users add endings
_NAME = re.compile(
    r"(?:.*?(?:[._ ](?P<sign>-))?)??(?P<rank>\d+)(?:\.(?:json|pkl|pickle|bin|dump|txt))?", re.ASCII
)
_USUAL_NAME = re.compile(r"(?:\w+_)?(?:trace_(?:rank_)?|rank_)\d", re.ASCII)
_MARKERS = (b"pg_config", b"profiling_name", b"collective_seq_id")
_HEAD_BYTES = 1 << 16
_MAX_SHOWN = 8

_WORLD = ("0", "default_pg")
"""Name and description of the group of all ranks."""

_SYNCHRONISING = ("all_reduce", "allreduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Prefixes of collectives that complete on no rank before all ranks have joined."""

_COALESCED = "coalesced"
"""Name of the entry that ends a batch: with NCCL, members have no state of their own."""

_DUMP_FIELDS = {"version", "pg_config", "pg_status", "entries"}
_DUMP_ENDINGS = ("_comm_state", "_version")
"""Suffixes of fields whose names start with the library's, such as nccl_comm_state."""

_ENTRY_FIELDS = {
    "frames", "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name",
    "time_created_ns", "duration_ms", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "state",
    "time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms", "is_p2p", "thread_id",
    "thread_name",
}  # fmt: skip


def parse_rank(name: str) -> int | None:
    """Return the rank at the end of a dump's name, before an ending such as .pkl or .json; None if there is none.

    Raises DumpError for a negative rank, which recorders use before they know theirs.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    if match["sign"]:
        raise DumpError(where=name, got=f"rank -{match['rank']}", expected="a rank of 0 or more")
    return int(match["rank"])


def is_dump(path: Path) -> bool:
    """Return whether a file has the name or the content of a PyTorch dump. Raises OSError."""
    if _USUAL_NAME.match(path.name) and _NAME.fullmatch(path.name):
        return True
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return head.lstrip()[:1] in (b"\x80", b"{") and any(word in head for word in _MARKERS)


def duplicate_rank_error(rank: int, one: Path, other: Path) -> DumpError:
    """Return the error for two files of one rank."""
    return DumpError(
        where=str(one.parent),
        got=f"two dumps of rank {rank}: {one.name} and {other.name}",
        expected="one of each rank",
        hint="Keep the dumps of each moment, and of each job, in a folder of their own.",
    )


def read_dumps(paths: Iterable[Path]) -> tuple[tuple[RankDump, ...], tuple[str, ...]]:
    """Read one job's dumps, pickled or as JSON, whose names end with their ranks. Nothing in them is executed.

    Returns:
        The dumps, and notes on what is ignored or was concluded.

    Raises:
        DumpError: If a file is not a dump, has no rank in its name, or has the same rank as another one.
        OSError: If a file cannot be read.
    """
    files: dict[int, Path] = {}
    for path in paths:
        rank = parse_rank(path.name)
        if rank is None:
            hint = "PyTorch ends names with the rank. Rename the file; the rest of its name does not matter."
            raise DumpError(where=str(path), got="a name without a rank", expected="trace_rank_3", hint=hint)
        if rank in files:
            raise duplicate_rank_error(rank, files[rank], path)
        files[rank] = path
    documents = {rank: read_document(files[rank]) for rank in sorted(files)}
    notes = [*_list_unknown_fields(documents.values()), *_complete_groups(documents, files)]
    first = min((_collective_numbers(documents.values())), default=1)
    dumps = []
    for rank, document in documents.items():
        try:
            dumps.append(from_pytorch(document, rank, files[rank].stat().st_mtime, min(first, 1)))
        except DumpError as error:
            raise DumpError(f"{files[rank]}: {error}") from error
    complete, concluded = _conclude_states(dumps)
    return complete, (*notes, *concluded)


def read_document(path: Path) -> dict[str, Any]:
    """Return the content of a file, as plain data. Raises DumpError or OSError."""
    data = path.read_bytes()
    if not data:
        hint = "The rank that wrote it died, or its disk was full."
        raise DumpError(where=str(path), got="an empty file", expected="a dump", hint=hint)
    try:
        document = _PlainUnpickler(io.BytesIO(data)).load() if data[:1] == b"\x80" else json.loads(data)
    except (pickle.UnpicklingError, EOFError, *PARSE_ERRORS) as error:
        raise DumpError(f"{path}: not a dump of PyTorch's flight recorder: {error or repr(error)}") from error
    version = str(document.get("version", "")) if isinstance(document, dict) else ""
    if not isinstance(document, dict) or version.partition(".")[0] != "2":
        got = f"version {version}" if version else "no version"
        expected = "2.x, as PyTorch 2.4 and later have it"
        raise DumpError(where=f"{path}: not a dump of PyTorch's flight recorder", got=got, expected=expected)
    entries, groups = document.get("entries", []), document.get("pg_config")
    if not isinstance(groups, dict) or not isinstance(entries, list):
        got, expected = f"fields {', '.join(map(str, document))}", "pg_config and entries"
        raise DumpError(where=f"{path}: not a dump of PyTorch's flight recorder", got=got, expected=expected)
    return {**document, "entries": _merge_batches(entries)}


def _merge_batches(entries: Sequence[Any]) -> list[Any]:
    """Return entries in which members of a batch have the batch's state; the entry that ends the batch is dropped.

    NCCL's recorder leaves members of a batch (`batch_isend_irecv`, a coalescing manager) scheduled forever. They share
    the number of the `coalesced` entry that follows them. For a batch of collectives, the last one represents all.
    """
    batches: dict[tuple[Any, ...], dict[str, Any]] = {}
    last: dict[tuple[Any, ...], int] = {}
    keys = [_batch_key(item) for item in entries]
    for place, (key, item) in enumerate(zip(keys, entries, strict=True)):
        if key is None:
            continue
        if str(item.get("profiling_name", "")).endswith(f":{_COALESCED}"):
            batches[key] = {name: item[name] for name in _STATE_FIELDS if name in item}
        else:
            last[key] = place
    merged = []
    for place, (key, item) in enumerate(zip(keys, entries, strict=True)):
        if key not in batches or key not in last:
            merged.append(item)
        elif str(item.get("profiling_name", "")).endswith(f":{_COALESCED}"):
            continue
        elif is_message(item) or place == last[key]:
            merged.append({**item, **batches[key]})
    return merged


_STATE_FIELDS = (
    "state",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "retired",
    "duration_ms",
)


def _batch_key(item: Any) -> tuple[Any, ...] | None:
    """Return the key that members of one batch share; None if something is missing."""
    try:
        p2p = bool(item["is_p2p"])
        key = (str(item["process_group"]), p2p, item["p2p_seq_id" if p2p else "collective_seq_id"])
        hash(key)
    except PARSE_ERRORS:
        return None
    return key


class _PlainUnpickler(pickle.Unpickler):
    """Accepts plain data and TorchScript's wrappers of lists and dictionaries, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the substitute for one of TorchScript's wrappers."""
        if module == "torch.jit._pickle" and (name.startswith("build_") or name == "restore_type_tag"):
            return _first
        raise pickle.UnpicklingError(f"got {module}.{name}, expected plain data")


def _first(value: Any, *_: Any) -> Any:
    return value


def _collective_numbers(documents: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    """Yield numbers of collectives: from 1 with PyTorch, from 0 with torchcomms."""
    for item in _iterate_entries(documents):
        number = item.get("collective_seq_id")
        if isinstance(number, int) and not is_message(item):
            yield number


def _iterate_entries(documents: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (item for document in documents for item in document["entries"] if isinstance(item, dict))


def _list_unknown_fields(documents: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield notes on fields that no known version has."""
    documents = list(documents)
    of_dumps = {str(name) for document in documents for name in document} - _DUMP_FIELDS
    of_entries = {str(name) for item in _iterate_entries(documents) for name in item} - _ENTRY_FIELDS
    for where, found in (
        ("", [name for name in of_dumps if not name.endswith(_DUMP_ENDINGS)]),
        (" of entries", of_entries),
    ):
        if found:
            yield f"unknown fields{where}: {', '.join(sorted(found)[:_MAX_SHOWN])}"


def _complete_groups(documents: Mapping[int, dict[str, Any]], files: Mapping[int, Path]) -> Iterator[str]:
    """Give every group without ranks the ranks from another dump, or the ranks that used it. Yield notes on these."""
    groups_by_rank = {rank: _read_groups(document, rank, files[rank]) for rank, document in documents.items()}
    everybody = {
        one for group_users in groups_by_rank.values() for ranks in group_users.values() for one in ranks
    }.union(documents)
    users: dict[str, dict[int, str]] = defaultdict(dict)
    for rank, document in documents.items():
        for number, item in enumerate(document["entries"]):
            try:
                name, description = item["process_group"]
            except PARSE_ERRORS as error:
                where = f"{files[rank]}: entry {number}: process_group"
                raise DumpError(f"{where}: {error or repr(error)}") from error
            if name not in groups_by_rank[rank]:
                users[name][rank] = str(description)
    for name, group_users in users.items():
        for rank, description in group_users.items():
            others = {groups[name] for groups in groups_by_rank.values() if rank in groups.get(name, ())}
            if len(others) == 1:
                (ranks,) = others
            elif name == _WORLD[0] or description == _WORLD[1]:
                ranks = tuple(sorted(everybody))
            else:
                ranks = tuple(sorted(group_users))
            group = {"name": name, "desc": description, "ranks": ranks}
            documents[rank]["pg_config"] = {**documents[rank]["pg_config"], name: group}
    if users:
        shown = ", ".join(sorted(map(str, users))[:_MAX_SHOWN])
        yield f"ranks of group{'s' * (len(users) > 1)} {shown} are not in the dumps: assuming the ranks that used it"


def _read_groups(document: Mapping[str, Any], rank: int, file: Path) -> dict[Any, tuple[int, ...]]:
    """Return the ranks of groups that a dump describes. Raises DumpError, also if its own rank is not in the job."""
    try:
        groups = {
            name: ranks for name, group in document["pg_config"].items() if (ranks := group_ranks(group))
        }
    except PARSE_ERRORS as error:
        raise DumpError(f"{file}: pg_config: {error or repr(error)}") from error
    world = groups.get(_WORLD[0])
    if world and rank not in world:
        expected = f"one of the job's, {min(world)} to {max(world)}"
        raise DumpError(where=f"{file}: rank", got=f"{rank}, as its name says", expected=expected)
    return groups


def _conclude_states(dumps: Sequence[RankDump]) -> tuple[tuple[RankDump, ...], list[str]]:
    """Give retired operations without a recorded end a state, as with Gloo: failed if a member did not reach them."""
    reached: dict[tuple[int, int], int] = {}
    twice = 0
    for dump in dumps:
        seen = Counter((entry.group, entry.sequence) for entry in dump.entries if entry.sequence)
        twice += sum(count - 1 for count in seen.values())
        for group, sequence in seen:
            reached[group, dump.rank] = max(reached.get((group, dump.rank), 0), sequence)
    ranks = {dump.rank for dump in dumps}
    members = {group.id: ranks.intersection(group.ranks) for dump in dumps for group in dump.groups}
    count = failed = 0
    concluded = []
    for dump in dumps:
        entries = []
        for entry in dump.entries:
            if entry.state != RETIRED:
                entries.append(entry)
                continue
            count += 1
            all_reached = all(
                reached.get((entry.group, rank), 0) >= entry.sequence for rank in members[entry.group]
            )
            is_failed = not all_reached and entry.name.startswith(_SYNCHRONISING)
            failed += is_failed
            entries.append(replace(entry, state=FAILED if is_failed else COMPLETED))
        concluded.append(replace(dump, entries=tuple(entries)))
    notes = []
    if count:
        notes.append(
            f"{count} operations ended without a result, as with Gloo: "
            f"{failed} that a rank has not reached count as failed, the others as completed"
        )
    if twice:
        notes.append(
            f"{twice} operations share their number with another one of their rank and group: the last one counts"
        )
    return tuple(concluded), notes
