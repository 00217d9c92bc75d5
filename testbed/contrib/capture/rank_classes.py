"""Classes of ranks that execute the same work in a script, so that one recording per class suffices.

Classes follow from groups and messages. Ranks that execute collectives together and send each other no messages are
assumed to do the same, as in data, tensor and expert parallelism. Stages of a pipeline differ. One more rank of each
class is run to verify this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""One rank's recording: nodes, groups (members by name), and families (by name of a group)."""


@dataclass(frozen=True)
class RankClass:
    """A class of ranks that execute the same work.

    leader: the rank that was recorded.
    pipelines: the groups within which it sends messages.
    """

    leader: int
    members: tuple[int, ...]
    pipelines: tuple[tuple[int, ...], ...] = ()


def peers_of(record: Record) -> set[int]:
    """Return the ranks with which this one exchanges messages."""
    return {node["peer"] for node in record["nodes"] if node["type"] == "message"}


def pipelines_of(record: Record, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return the pipeline groups: the family of the smallest group that has this rank and all its peers, or none."""
    wanted = {rank, *peers_of(record)}
    if len(wanted) == 1:
        return ()
    size = max((len(members) for members in record["groups"].values()), default=0)
    fitting = [
        (len(members), name)
        for name, members in record["groups"].items()
        if wanted <= set(members) and (len(members) < size or len(wanted) == size)
    ]
    return family_of(record, min(fitting)[1]) if fitting else ()


def family_of(record: Record, name: str) -> tuple[tuple[int, ...], ...]:
    """Return all groups of this one's purpose and size if they are disjoint; otherwise only this group."""
    own = tuple(record["groups"][name])
    found = [
        tuple(members)
        for other, members in record["groups"].items()
        if record["families"][other] == record["families"][name] and len(members) == len(own)
    ]
    found = list(dict.fromkeys(found))
    ranks = [rank for members in found for rank in members]
    return tuple(found) if len(set(ranks)) == len(ranks) else (own,)


def class_of(record: Record, rank: int) -> RankClass:
    """Return the class of all ranks that are assumed to do the same as this one."""
    pipelines = pipelines_of(record, rank)
    # stages of the same pipeline differ
    different = next((set(members) for members in pipelines if rank in members), peers_of(record)) - {rank}
    used = {node["group"] for node in record["nodes"] if node["type"] == "collective"}
    families = [
        family_of(record, name) for name in sorted(used) if not different & set(record["groups"][name])
    ]
    found, queue = {rank}, [rank]
    while queue:
        one = queue.pop()
        for family in families:
            for members in family:
                if one in members:
                    queue += [other for other in members if other not in found]
                    found |= set(members)
    return RankClass(rank, tuple(sorted(found)), pipelines)


def next_leaders(classes: Iterable[RankClass], size: int) -> list[int]:
    """Return the next ranks to record, which are in no class yet: all of a leader's pipeline, or the lowest rank."""
    classes = list(classes)
    known = {rank for one in classes for rank in one.members}
    pipelines = (members for one in classes for members in one.pipelines if one.leader in members)
    found = sorted({rank for members in pipelines for rank in members} - known)
    return found or [rank for rank in range(size) if rank not in known][:1]


def translate_nodes(record: Record, own: RankClass, rank: int) -> list[dict[str, Any]] | None:
    """Return the nodes of another rank of a class, derived from its leader's; None if groups or peers are ambiguous."""
    if rank == own.leader:
        return [dict(node) for node in record["nodes"]]
    groups: dict[str, str | None] = {}
    found = []
    for node in record["nodes"]:
        made = dict(node)
        if node["type"] == "collective":
            name = node["group"]
            if name not in groups:
                groups[name] = _counterpart(record, name, rank)
            if (there := groups[name]) is None:
                return None
            made |= {"group": there, "stream": f"group {there}"}
            if "root" in node:
                position = list(record["groups"][name]).index(node["root"])
                made["root"] = record["groups"][there][position]
        elif node["type"] == "message":
            peer = peer_of(own, node["peer"], rank)
            if peer is None:
                return None
            what = "send" if node["sends"] else "recv"
            made |= {"peer": peer, "stream": f"{what} {peer}", "name": f"{what} {peer}"}
        found.append(made)
    return found


def _counterpart(record: Record, name: str, rank: int) -> str | None:
    """Return the group of another rank that corresponds to this group of the leader."""
    if rank in record["groups"][name]:
        return name
    family = family_of(record, name)
    return next(
        (
            other
            for other, members in record["groups"].items()
            if rank in members
            and tuple(members) in family
            and record["families"][other] == record["families"][name]
        ),
        None,
    )


def peer_of(own: RankClass, peer: int, rank: int) -> int | None:
    """Return the rank's counterpart of the leader's `peer`; None if it is ambiguous."""
    leaders = next((members for members in own.pipelines if own.leader in members), None)
    mine = next((members for members in own.pipelines if rank in members), None)
    if leaders is None or mine is None:
        return None
    return mine[leaders.index(peer)] if peer in leaders else None


_COMPARED = (
    "type",
    "collective",
    "group",
    "numel",
    "dtype",
    "root",
    "peer",
    "tag",
    "sends",
    "splits",
    "stream",
)


def find_difference(
    expected: Sequence[Mapping[str, Any]] | None, found: Sequence[Mapping[str, Any]]
) -> str | None:
    """Describe the first deviation of a rank from what was expected, ignoring compute nodes; None if there is none."""
    if expected is None:
        return "its groups differ"
    there = [node for node in expected if node["type"] != "compute"]
    here = [node for node in found if node["type"] != "compute"]
    for number, (one, other) in enumerate(zip(there, here, strict=False)):
        for key in _COMPARED:
            if one.get(key) != other.get(key):
                where = f"communication {number} ({other['name']} at {other['site']})"
                return f"{where}: {key} {other.get(key)}, not {one.get(key)}"
    if len(there) != len(here):
        return f"{len(here)} communications, not {len(there)}"
    return None
