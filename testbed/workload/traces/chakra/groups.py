"""Groups of ranks for collectives, from ASTRA-sim's file of groups or from PyTorch's entries in traces."""

from __future__ import annotations

import ast
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.workload.traces.chakra.files import EtFile, EtNode
from testbed.workload.traces.chakra.nodes import OWN_ATTRIBUTE, group_key
from testbed.workload.traces.chakra.schema import NodeType
from testbed.workload.traces.trace import TraceError

GROUPS_FILE = "comm_group.json"
NETWORK_FILE = "network.yml"
EVERYBODY = "all"
_WORLD_NAMES = ("", "0")
"""Names of the group of all ranks, unless a file defines them otherwise."""


@dataclass(frozen=True)
class Groups:
    """Groups of a job.

    Attributes:
        members: Members by group name.
        names: Group names by `pg_name`, for each rank.
    """

    members: Mapping[str, tuple[int, ...]]
    names: Sequence[Mapping[str, str]]


def read_groups(folder: Path, stem: str, files: Sequence[EtFile]) -> Groups:
    """Return all groups that nodes refer to; raise TraceError if a group's members are unknown."""
    world = tuple(range(len(files)))
    given = _groups_of_file(folder, stem, world)
    own = _own_names(files[0].attributes)
    members: dict[str, tuple[int, ...]] = {
        own.get(key, key): ranks for key, ranks in given.items() if own or key not in _WORLD_NAMES
    }
    names: list[dict[str, str]] = []
    for rank, file in enumerate(files):
        said = _pytorch_groups(file, world)
        found: dict[str, str] = {}
        for node in file.nodes:
            if node.type != NodeType.COMM_COLL_NODE or (key := group_key(node)) in found:
                continue
            if key in said and key in given and set(said[key]) != set(given[key]):
                where = f"{file.path}: group {key}"
                got = f"ranks {list(said[key])} in the trace, and {list(given[key])} in the file beside it"
                raise TraceError(where=where, got=got, expected="the same in both")
            ranks = said.get(key) or given.get(key) or _default_group(folder, file, node, key, rank, world)
            found[key] = own[key] if key in own else _name(key, ranks, world, members)
            members.setdefault(found[key], ranks)
            if rank not in ranks:
                where = f"{file.path}: node {node.id} ({node.name})"
                raise TraceError(
                    where=where, got=f"group {key or EVERYBODY} of ranks {list(ranks)}", expected=f"{rank}"
                )
        names.append(found)
    return Groups(members, names)


def write_groups(folder: Path, groups: Mapping[str, Sequence[int]]) -> tuple[dict[str, str], Path]:
    """Write groups in ASTRA-sim's format, numbered from 1; return the groups' names by number, and the file."""
    names = {str(number): name for number, name in enumerate(groups, 1)}
    path = folder / GROUPS_FILE
    path.write_text(
        json.dumps({number: list(groups[name]) for number, name in names.items()}, indent=1) + "\n"
    )
    return names, path


def _groups_of_file(folder: Path, stem: str, world: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the groups of the file next to the traces; raise TraceError if it is invalid or two files differ."""
    found: dict[Path, dict[str, tuple[int, ...]]] = {}
    for path in (folder / GROUPS_FILE, folder / f"{stem}.json"):
        if path.is_file():
            try:
                found[path] = _read_groups_file(path, world)
            except TraceError:
                if not found:  # a second file with the traces' name may have other content
                    raise
    if len({json.dumps(sorted(own.items())) for own in found.values()}) > 1:
        one, other = (path.name for path in found)
        got = f"different groups in {one} and in {other}"
        raise TraceError(where=str(folder), got=got, expected="one of them, or the same in both")
    return next(iter(found.values()), {})


def _read_groups_file(path: Path, world: Sequence[int]) -> dict[str, tuple[int, ...]]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if twice := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
            raise ValueError(f"group {twice[0]} twice")
        return dict(pairs)

    try:
        document = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=once)
        found = {str(key): tuple(map(int, ranks)) for key, ranks in document.items()}
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise TraceError(where=str(path), got=str(error), expected='groups as {"1": [0, 1]}') from None
    for key, ranks in found.items():
        if len(set(ranks)) != len(ranks) or not set(ranks) <= set(world):
            expected = f"different ranks of those with a file, 0 to {len(world) - 1}"
            raise TraceError(where=f"{path}: group {key}", got=str(list(ranks)), expected=expected)
    return found


def _pytorch_groups(file: EtFile, world: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the process groups that PyTorch lists in nodes, by name; an entry without ranks has all ranks."""
    found: dict[str, tuple[int, ...]] = {}
    for node in file.nodes:
        if node.type == NodeType.METADATA_NODE and "pg_name" in node.values:
            for entry in _entries(node.values):
                ranks = tuple(map(int, entry.get("ranks") or world))
                where = f"{file.path}: node {node.id} ({node.name}): group {entry['pg_name']}"
                if not set(ranks) <= set(world):
                    expected = f"ranks with a file, 0 to {len(world) - 1}"
                    raise TraceError(where=where, got=f"ranks {list(ranks)}", expected=expected)
                before = found.setdefault(str(entry["pg_name"]), ranks)
                if set(before) != set(ranks):
                    got = f"ranks {list(ranks)}, and {list(before)} before"
                    raise TraceError(where=where, got=got, expected="the same each time")
    return found


def _entries(text: str) -> Iterable[Mapping[str, Any]]:
    """Return the process groups from the repr of a list that has JSON text."""
    try:
        outer = ast.literal_eval(text)
        inner = outer[0] if isinstance(outer, list) and outer else text
        entries = json.loads(inner) if isinstance(inner, str) else inner
        return [entry for entry in entries if isinstance(entry, dict) and "pg_name" in entry]
    except (SyntaxError, TypeError, ValueError):
        return []


def _own_names(attributes: Mapping[str, Any]) -> dict[str, str]:
    try:
        return dict(json.loads(attributes[OWN_ATTRIBUTE])["groups"])
    except (KeyError, TypeError, ValueError):
        return {}


def _default_group(
    folder: Path, file: EtFile, node: EtNode, key: str, rank: int, world: tuple[int, ...]
) -> tuple[int, ...]:
    if key in _WORLD_NAMES:
        return world
    where = f"{file.path}: node {node.id} ({node.name})"
    dims = node.attributes.get("involved_dim")
    if isinstance(dims, tuple) and key.startswith("involved_dim"):
        return _dimension_group(folder, where, dims, rank, world)
    raise TraceError(where=where, got=f"group {key}", expected=f"its ranks in {folder / GROUPS_FILE}")


def _dimension_group(
    folder: Path, where: str, dims: Sequence[bool], rank: int, world: Sequence[int]
) -> tuple[int, ...]:
    """Return the ranks that differ from this one only in involved dimensions; the first dimension varies fastest."""
    path = folder / NETWORK_FILE
    got = f"involved_dim {list(dims)}"
    try:
        sizes = [int(size) for size in yaml.safe_load(path.read_text())["npus_count"]]
    except (KeyError, OSError, TypeError, ValueError, yaml.YAMLError):
        raise TraceError(where=where, got=got, expected=f"npus_count of the network in {path}") from None
    if len(dims) < len(sizes) or math.prod(sizes) != len(world):
        expected = f"as many dimensions as {path}'s npus_count {sizes}, which make up {len(world)} ranks"
        raise TraceError(where=where, got=got, expected=expected)

    def fixed(one: int) -> list[int]:
        found = []
        for size, involved in zip(sizes, dims, strict=False):
            if not involved:
                found.append(one % size)
            one //= size
        return found

    return tuple(one for one in world if fixed(one) == fixed(rank))


def _name(
    key: str, ranks: tuple[int, ...], world: tuple[int, ...], taken: Mapping[str, tuple[int, ...]]
) -> str:
    """Return the group's own name, made unique if other ranks have a group with that name."""
    if key.startswith("involved_dim"):
        key = "dimensions " + " ".join(str(n) for n, part in enumerate(key[13:].split(",")) if "True" in part)
    name = EVERYBODY if key in _WORLD_NAMES and ranks == world else key
    return name if taken.get(name, ranks) == ranks else f"{name} of {ranks[0]}"
