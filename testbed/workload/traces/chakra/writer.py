"""Writes a job's trace as a folder of execution traces, as ASTRA-sim and other programs read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.workload.traces.chakra.files import EtNode, write_file
from testbed.workload.traces.chakra.groups import write_groups
from testbed.workload.traces.chakra.nodes import (
    OWN_ATTRIBUTE,
    Place,
    all_dependencies,
    et_node,
    explicit_dependencies,
    whole_us,
)
from testbed.workload.traces.trace import JobTrace, RankTrace, TraceError

NAME = "job"
Times = Sequence[Sequence[tuple[float, float]]]
"""Of every rank's nodes: when each began, and how long it took, in seconds."""


def write_job(trace: JobTrace, folder: Path, name: str = NAME, times: Times | None = None) -> list[Path]:
    """Write one NAME.RANK.et per rank, and the groups; return all files.

    All dependencies, including a stream's order, are in data_deps, which every program uses.

    Args:
        trace: The trace.
        folder: The folder; made where it does not exist.
        name: Name of the files.
        times: Measured times, for people and programs that look at traces.

    Raises:
        TraceError: The trace has something that Chakra cannot express.
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
    last: dict[str, int] = {}
    found = []
    for number, node in enumerate(own):
        before = last.get(node.stream)
        last[node.stream] = number
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
