"""A job's trace as a folder of execution traces, which ASTRA-sim and other programs read and write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from testbed.workload.traces.chakra.files import EtFile, EtNode, read_file, write_file
from testbed.workload.traces.chakra.groups import read_groups, write_groups
from testbed.workload.traces.chakra.nodes import (
    OWN_ATTRIBUTE,
    USED_ATTRIBUTES,
    EstimateTime,
    Place,
    et_node,
    explicit_dependencies,
    job_node,
    own_fields,
    whole_us,
)
from testbed.workload.traces.chakra.schema import NodeType
from testbed.workload.traces.chakra.stream_order import Item, dependency_order, stream_orders
from testbed.workload.traces.trace import (
    Collective,
    JobTrace,
    Node,
    RankTrace,
    TraceError,
    all_dependencies,
    element_bytes,
    previous_of_stream,
)

_FILE = re.compile(r"(?P<stem>.*?)[._-]?(?P<rank>\d+)\.et(?:\.gz)?", re.ASCII)
_NO_EFFECT = (NodeType.INVALID_NODE, NodeType.METADATA_NODE)
"""Types of nodes without effect; their dependents inherit their dependencies."""


def read_job(folder: Path, estimate_s: EstimateTime | None = None) -> JobTrace:
    """Read a folder with one NAME.RANK.et per rank, or FOLDER/NAME, as ASTRA-sim names them.

    Args:
        folder: The folder, or FOLDER/NAME.
        estimate_s: Function that estimates the time of computations for which the trace has only operations and bytes.

    Raises:
        TraceError: If the trace has something unsupported; names file and node.
    """
    folder, stem, paths = _files(folder)
    files = [read_file(path) for path in paths]
    groups = read_groups(folder, stem, files)
    places = [
        Place(str(path), rank, len(files), groups.members, names, estimate_s)
        for rank, (path, names) in enumerate(zip(paths, groups.names, strict=True))
    ]
    circular: list[int] = []
    items = [_items(file, place, circular) for file, place in zip(files, places, strict=True)]
    if not all(_is_own(file, own) for file, own in zip(files, items, strict=True)):
        found = stream_orders(items, groups.members)
        items = _unify_collectives(
            [_reorder_items(own, order) for own, order in zip(items, found, strict=True)], groups.members
        )
    origin, accelerator = _read_metadata(files[0].attributes)
    made = JobTrace(
        tuple(_rank(own) for own in items),
        groups.members,
        origin if origin is not None else f"Chakra {files[0].version or 'of no version'}: {folder / stem}",
        accelerator,
        tuple(_unused(files, circular)),
    )
    made.check(str(folder / stem))
    return made


def _files(folder: Path) -> tuple[Path, str, list[Path]]:
    """Return folder, name and file of every rank.

    TraceError is raised for invalid names, two files of one rank, or a file of no rank.
    """
    wanted = None if folder.is_dir() else folder.name
    where = folder if folder.is_dir() else folder.parent
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(where.iterdir()) if where.is_dir() else []:
        if not path.name.endswith((".et", ".et.gz")):
            continue
        match = _FILE.fullmatch(path.name)
        if match is None and wanted is None:
            hint = f"For a job of one rank: {path.name.partition('.')[0]}.0.et"
            raise TraceError(where=str(path), got="a name without a rank", expected="NAME.RANK.et", hint=hint)
        if match is None or wanted not in (None, match["stem"]):
            continue
        by_rank, rank = found.setdefault(match["stem"], {}), int(match["rank"])
        if rank in by_rank:
            got = f"two traces of rank {rank}: {by_rank[rank].name} and {path.name}"
            raise TraceError(where=str(where), got=got, expected="one of each rank")
        by_rank[rank] = path
    if len(found) != 1:
        got = f"traces of {', '.join(found)}" if found else "none"
        expected = f"NAME.RANK.et of one job{'; name it as FOLDER/NAME' if found else ''}"
        raise TraceError(where=str(folder), got=got, expected=expected)
    ((stem, by_rank),) = found.items()
    missing = next((rank for rank in range(len(by_rank)) if rank not in by_rank), None)
    if missing is not None:
        got = f"no file of rank {missing}"
        raise TraceError(where=str(where / stem), got=got, expected=f"one of each rank up to {max(by_rank)}")
    return where, stem, [by_rank[rank] for rank in sorted(by_rank)]


def _unused(files: Sequence[EtFile], circular: Sequence[int]) -> Iterator[str]:
    """Yield descriptions of unused content of nodes; `circular` are the ranks whose ctrl_deps are ignored."""
    attributes: set[str] = set()
    absent = timeless = 0
    for file in files:
        ids = {node.id for node in file.nodes}
        for node in file.nodes:
            if node.type not in _NO_EFFECT:
                attributes |= node.attributes.keys() - USED_ATTRIBUTES
            absent += sum(before not in ids for before in node.ctrl_deps)
            cost_attributes = node.attributes.keys() & {OWN_ATTRIBUTE, "num_ops", "tensor_size"}
            timeless += node.type == NodeType.COMP_NODE and not (node.duration_us or cost_attributes)
    if unknown := sum(file.unknown for file in files):
        yield f"fields of {unknown} nodes that no known version has"
    if timeless:
        yield f"{timeless} COMP_NODEs without duration or operations, which take no time"
    if attributes:
        yield f"nodes' attributes {', '.join(sorted(attributes))}"
    if absent:
        yield f"{absent} ctrl_deps on nodes that are not there"
    if circular:
        yield f"ctrl_deps of {len(circular)} ranks, which form cycles; only data_deps are used"


def _items(file: EtFile, place: Place, circular: list[int]) -> list[Item]:
    """Return the nodes that have an effect, and their dependencies as indices into this list.

    A rank whose ctrl_deps form a cycle is added to `circular`.
    """
    effective = [node for node in file.nodes if node.type not in _NO_EFFECT]
    number = {node.id: place for place, node in enumerate(effective)}
    first: dict[int, EtNode] = {}
    for node in file.nodes:
        if (other := first.setdefault(node.id, node)) is not node:
            got = f"two nodes of id {node.id}: {other.name} and {node.name}"
            raise TraceError(where=str(file.path), got=got, expected="an id for each node")
    made = [job_node(node, place) for node in effective]

    def items(callers: bool) -> list[Item]:
        waits = _dependencies(file, number, callers)
        wheres = [f"{file.path}: node {node.id} ({node.name})" for node in effective]
        return [
            Item(one, where, waits[node.id], node.start_us)
            for one, where, node in zip(made, wheres, effective, strict=True)
        ]

    found = items(callers=True)
    try:
        dependency_order(found)
    except TraceError:
        # in PyTorch's traces, a caller ends after its callees, which are in its data_deps
        found = items(callers=False)
        dependency_order(found)
        circular.append(place.rank)
    return found


def _dependencies(file: EtFile, number: Mapping[int, int], callers: bool) -> dict[int, tuple[int, ...]]:
    """Return the indices of each node's dependencies, by node id; nodes without effect are bypassed.

    `callers` is true if ctrl_deps count, too.
    """
    nodes = {node.id: node for node in file.nodes}

    def named(node: EtNode) -> list[int]:
        for before in node.data_deps:
            if before not in nodes:
                where = f"{file.path}: node {node.id} ({node.name})"
                raise TraceError(where=where, got=f"data_deps on {before}", expected="a node of the file")
        # converters drop some callers that ctrl_deps still name
        others = [one for one in node.ctrl_deps if one in nodes] if callers else []
        return list(dict.fromkeys([*node.data_deps, *others]))

    found: dict[int, tuple[int, ...]] = {}
    for node in file.nodes:
        seen, open_, own = {node.id}, named(node)[::-1], []
        while open_:
            before = open_.pop()
            if before in number:
                own.append(number[before])
            elif before not in seen:
                seen.add(before)
                open_.extend(named(nodes[before])[::-1])
        found[node.id] = tuple(dict.fromkeys(own))
    return found


def _is_own(file: EtFile, items: Sequence[Item]) -> bool:
    """Return whether this module wrote all nodes, with each dependency still before its dependent."""
    return all(own_fields(node) is not None for node in file.nodes) and all(
        before < number for number, item in enumerate(items) for before in item.after
    )


def _unify_collectives(
    ranks: Sequence[Sequence[Item]], groups: Mapping[str, Sequence[int]]
) -> list[list[Item]]:
    """Check that all members of a collective agree; an all_to_all of several sizes becomes an all_to_all_v.

    TraceError is raised if they do not agree.
    """
    made = [list(items) for items in ranks]
    calls: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for rank, items in enumerate(made):
        counts: dict[str, int] = {}
        for number, item in enumerate(items):
            if isinstance(item.node, Collective):
                call = counts[item.node.group] = counts.get(item.node.group, 0) + 1
                calls.setdefault((item.node.group, call), []).append((rank, number))
    for (group, call), places in calls.items():
        nodes = [made[rank][number].node for rank, number in places]
        sizes = {
            (node.collective, node.numel * element_bytes(node.dtype))
            for node in nodes
            if isinstance(node, Collective)
        }
        if len(sizes) == 1:
            continue
        if {collective for collective, _ in sizes} != {"all_to_all"}:
            one, other = sorted(sizes)[:2]
            got = f"collective {call} of group {group}: {one[0]} of {one[1]} B and {other[0]} of {other[1]} B"
            raise TraceError(
                where=made[places[0][0]][places[0][1]].where, got=got, expected="the same in all members"
            )
        for rank, number in places:
            node = made[rank][number].node
            assert isinstance(node, Collective)
            part = node.numel // len(groups[group])
            uneven = replace(node, collective="all_to_all_v", splits=(part,) * len(groups[group]))
            made[rank][number] = replace(made[rank][number], node=uneven)
    return made


def _reorder_items(items: Sequence[Item], order: Sequence[int]) -> list[Item]:
    place = {number: new for new, number in enumerate(order)}
    return [replace(items[old], after=tuple(sorted(place[one] for one in items[old].after))) for old in order]


def _rank(items: Sequence[Item]) -> RankTrace:
    """Return the nodes with their dependencies in addition to the previous node of their stream."""
    found: list[Node] = []
    for item, before in zip(items, previous_of_stream(item.node for item in items), strict=True):
        written = item.node.after  # as this module wrote it, if it differs from the default
        exact = written and all_dependencies(written, before) == item.after
        after = written if exact else explicit_dependencies(item.after, before)
        found.append(replace(item.node, after=after))
    return tuple(found)


def _read_metadata(attributes: Mapping[str, object]) -> tuple[str | None, str]:
    try:
        own = json.loads(str(attributes[OWN_ATTRIBUTE]))
        return str(own["origin"]), str(own["accelerator"])
    except (KeyError, TypeError, ValueError):
        return None, ""


NAME = "job"
Times = Sequence[Sequence[tuple[float, float]]]
"""For each rank, the start time and the duration of its nodes, in seconds."""


def write_job(trace: JobTrace, folder: Path, name: str = NAME, times: Times | None = None) -> list[Path]:
    """Write one NAME.RANK.et per rank, and the groups; return all files.

    All dependencies, including the order of streams, are in data_deps, which every program uses.

    Args:
        trace: The trace.
        folder: The folder, which is created if it does not exist.
        name: Name of the files.
        times: Measured times, for users and programs that examine traces.

    Raises:
        TraceError: If the trace has something that Chakra cannot express.
    """
    trace.check(str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    names, groups_file = write_groups(folder, trace.groups)
    about = {"origin": trace.origin, "accelerator": trace.accelerator, "groups": names}
    attributes = {OWN_ATTRIBUTE: json.dumps(about, separators=(",", ":"))}
    written = []
    for rank, own in enumerate(trace.ranks):
        path = folder / f"{name}.{rank}.et"
        place = Place(str(path), rank, len(trace.ranks), trace.groups, names)
        try:
            nodes = _nodes(own, place, times[rank] if times else ())
            write_file(path, attributes, nodes)
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None
        written.append(path)
    return [*written, groups_file]


def _nodes(own: RankTrace, place: Place, times: Sequence[tuple[float, float]]) -> list[EtNode]:
    found = []
    for number, (node, before) in enumerate(zip(own, previous_of_stream(own), strict=True)):
        waits = all_dependencies(node.after, before)
        made = et_node(node, place)
        attributes = dict(made.attributes)
        if explicit_dependencies(waits, before) != node.after:
            attributes[OWN_ATTRIBUTE] = json.dumps(
                {**json.loads(attributes[OWN_ATTRIBUTE]), "after": list(node.after)}, separators=(",", ":")
            )
        made = replace(made, id=number, data_deps=waits, attributes=attributes)
        if times:
            begin_s, duration_s = times[number]
            made = replace(
                made, start_us=round(begin_s * 1e6), duration_us=made.duration_us or whole_us(duration_s)
            )
        found.append(made)
    return found
