"""What members of a collective do, as columns; whatever network carries it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.caches import IdentityCache
from testbed.net.paths.network import Ends
from testbed.plugins import is_file_name
from testbed.prediction.message_list import SizedStage, sized
from testbed.prediction.symmetry import alone_key
from testbed.workload.plan import GroupCollective, JobPlan
from testbed.workload.plan_volume import algorithm_taken

PARTS = ("channel", "stage", "strand", "round", "send", "receive")
BOXES = ("send_box", "receive_box")


class Call(NamedTuple):
    """Of how many members, and how many boxes their messages go through.

    rows: of each member how many channels it has, of each of those how many stages, and so on: `PARTS`, of which the
    last two are of rounds; of each send and of each receive its box: `BOXES`. kinds: sends that differ, by source,
    target and bytes; kind: which of those each send is.
    """

    members: int
    boxes: int
    rows: dict[str, NDArray[np.int32]]
    kinds: tuple[tuple[Ends, int], ...]
    kind: NDArray[np.int32]


_known: IdentityCache[Call] = IdentityCache(1024)  # searches have the same ones on many networks


def call_of(plan: JobPlan, operation: GroupCollective, itemsize: int) -> Call:
    """A collective of one of the plan's groups."""
    algorithm = algorithm_taken(operation, plan.near_of(operation.group), itemsize, plan.tuning)
    if is_file_name(operation.collective) or is_file_name(algorithm):  # which may be another by now
        return _made(plan, operation, itemsize)
    _, members = plan.groups[operation.group]
    key = alone_key(plan, operation, members, dscp=0), itemsize
    return _known.of((), lambda: _made(plan, operation, itemsize), key)


def _made(plan: JobPlan, operation: GroupCollective, itemsize: int) -> Call:
    _, members = plan.groups[operation.group]
    found = _Found()
    for own in range(len(members)):
        found.add(sized(plan, operation, own, itemsize))
    rows = {name: np.array(row, dtype=np.int32) for name, row in found.rows.items()}
    kind = np.array(found.kind, dtype=np.int32)
    return Call(len(members), len(found.boxes), rows, tuple(found.kinds), kind)


class _Found:
    """Of the members so far."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {name: [] for name in (*PARTS, *BOXES)}
        self.boxes: dict[object, int] = {}
        self.kinds: dict[tuple[Ends, int], int] = {}
        self.kind: list[int] = []

    def add(self, channels: tuple[tuple[SizedStage, ...], ...]) -> None:
        """The next one's."""
        rows, boxes, kinds = self.rows, self.boxes, self.kinds
        rows["channel"].append(len(channels))
        for channel, stages in enumerate(channels):
            rows["stage"].append(len(stages))
            for number, stage in enumerate(stages):
                rows["strand"].append(len(stage))
                for index, strand in enumerate(stage):
                    rows["round"].append(len(strand))
                    where = channel, number, index
                    for one in strand:
                        rows["send"].append(len(one.sends))
                        rows["receive"].append(len(one.receives))
                        for sent in one.sends:
                            rows["send_box"].append(boxes.setdefault((where, sent[0]), len(boxes)))
                            self.kind.append(kinds.setdefault(sent, len(kinds)))
                        for ends, _ in one.receives:
                            rows["receive_box"].append(boxes.setdefault((where, ends), len(boxes)))
