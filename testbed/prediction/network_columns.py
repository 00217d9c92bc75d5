"""Networks and collectives as columns for the compiled simulation: lanes, transfers, connections, messages.

A lane is a pair of ranks in one direction and traffic class. A member's part in a collective does not depend on the
network, but the transfers of its messages do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.caches import IdentityCache
from testbed.net.paths.network import Ends, LossDelay, Network, PartShares
from testbed.plugins import is_file_name
from testbed.prediction.channels import split_by_hop
from testbed.prediction.collective_flow import isolated_key, software_part
from testbed.prediction.collective_messages import SizedStage, list_messages
from testbed.prediction.compiled.library import COLUMN_TYPES, as_columns
from testbed.prediction.fluid import held_bytes
from testbed.workload.plan import GroupCollective, JobPlan
from testbed.workload.plan_columns import row_offsets
from testbed.workload.plan_volume import resolve_algorithm

MEAN = LossDelay()


def is_plain(network: Network) -> bool:
    """Return whether messages are only bytes on lossless paths, without striping, classes, pacing or requests."""
    several = (path for paths in network.parallel.values() for path in paths)
    beside = (
        network.packets,
        network.needs_grants,
        network.stripe_settings,
        network.classes,
        network.first_pace,
    )
    written = any(size_bytes < math.inf for size_bytes in network.write_threshold_bytes.values())
    return not (any(beside) or written) and all(path.lossy is None for path in several)


class Called(NamedTuple):
    """A collective on a network; `transfer` has the transfer number of each send."""

    call: Call
    transfer: NDArray[np.int32]


class Connection(NamedTuple):
    """A connection; `paths` has the parts and loads of each path."""

    paths: tuple[dict[int, float], ...]
    queue_bytes: float
    burst_bytes: float


class NetworkColumns:
    """The columns of one network, extended on demand."""

    def __init__(self, network: Network, ranks: int, itemsize: int) -> None:
        self.network, self.itemsize = network, itemsize
        names = [*network.capacities, *map(software_part, range(ranks))]
        self.part = {name: number for number, name in enumerate(names)}
        self._rates = [*network.capacities.values(), *[1.0] * ranks]
        self._queues = [network.queues.get(name, 0.0) for name in names]
        self.capacity, self.queue = np.array(self._rates, dtype=float), np.array(self._queues, dtype=float)
        self.connections: list[Connection] = []
        self._lanes: dict[tuple[Ends, int], int] = {}
        self._transfers: dict[tuple[Ends, int, int], int] = {}
        self._called: dict[object, Called] = {}
        kinds = ("lane_", "leg_", "transfer_")
        self._rows: dict[str, list[Any]] = {name: [] for name in COLUMN_TYPES if name.startswith(kinds)}
        self._legs: list[int] = []
        self._columns: dict[str, NDArray[Any]] = {}
        self._known = (-1, -1)

    def lane(self, ends: Ends, dscp: int) -> int:
        """Return the number of a lane."""
        if (ends, dscp) in self._lanes:
            return self._lanes[ends, dscp]
        network = self.network
        paths = network.paths_of(ends, dscp)
        self._add("lane_source", ends[0])
        self._add("lane_target", ends[1])
        self._add("lane_connection", self.connect([path.shares for path in paths]))
        hops = len(paths) == 1 and network.routed
        self._add("lane_hops", int(hops))
        self._add("lane_packet_bytes", paths[0].serialisation.packet_bytes)
        legs = split_by_hop(None, paths[0], network.capacities) if hops else ()
        for leg in legs:
            self._add("leg_connection", self.connect([leg.shares]))
            self._add("leg_packet_s", leg.packet_s)
            self._add("leg_delay_s", leg.delay_s)
        self._legs.append(len(legs))
        self._lanes[ends, dscp] = len(self._lanes)
        return self._lanes[ends, dscp]

    def _add(self, name: str, value: float) -> None:
        self._rows[name].append(value)

    def connect(self, paths: Sequence[PartShares]) -> int:
        """Add a connection and return its number."""
        self.connections.append(self.connection(paths))
        return len(self.connections) - 1

    def connection(self, paths: Sequence[PartShares], burst_bytes: float = np.inf) -> Connection:
        """Build a connection over parallel paths."""
        numbered = tuple({self.part[name]: load for name, load in path.items()} for path in paths)
        queue_bytes = held_bytes(self._rates, self._queues, chain.from_iterable(numbered))
        return Connection(numbered, queue_bytes, burst_bytes)

    def transfer(self, ends: Ends, size_bytes: int, dscp: int) -> int:
        """Return the number of a transfer of this many bytes over a lane."""
        key = ends, size_bytes, dscp
        if (known := self._transfers.get(key)) is not None:
            return known
        network = self.network
        whole_bytes = network.whole_bytes(ends, size_bytes)
        self._add("transfer_lane", self.lane(ends, dscp))
        self._add("transfer_bytes", size_bytes)
        self._add("transfer_whole_bytes", whole_bytes)
        self._add("transfer_latency_s", MEAN.arrival_s(network.paths_of(ends, dscp), whole_bytes))
        self._transfers[key] = len(self._transfers)
        return self._transfers[key]

    def called(self, plan: JobPlan, operation: GroupCollective) -> Called:
        """Return the columns of a collective of one of the plan's groups."""
        _, members = plan.groups[operation.group]
        dscp = plan.dscp(operation)
        key = isolated_key(plan, operation, members, dscp)
        if key not in self._called:
            call = call_of(plan, operation, self.itemsize)
            transfers = [self.transfer(ends, size_bytes, dscp) for ends, size_bytes in call.kinds]
            self._called[key] = Called(call, np.array(transfers, dtype=np.int32)[call.kind])
        return self._called[key]

    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Return the columns of all lanes, hops, transfers and connections, as named in `engine.h`."""
        now = len(self._lanes), len(self._transfers)
        if self._known != now:
            self._known = now
            self._columns = as_columns({**self._rows, "leg_first": row_offsets(self._legs)})
            self._columns |= connection_columns(self.connections)
        return self._columns


def connection_columns(connections: Sequence[Connection]) -> dict[str, NDArray[Any]]:
    """Return the columns of connections, as named in `engine.h`."""
    paths = [path for own in connections for path in own.paths]
    return as_columns(
        {
            "path_first": row_offsets([len(own.paths) for own in connections]),
            "step_first": row_offsets([len(path) for path in paths]),
            "step_part": [part for path in paths for part in path],
            "step_load": [load for path in paths for load in path.values()],
            "queue_bytes": [own.queue_bytes for own in connections],
            "burst_bytes": [own.burst_bytes for own in connections],
        }
    )


PARTS = ("channel", "stage", "strand", "round", "send", "receive")
BOXES = ("send_box", "receive_box")


class Call(NamedTuple):
    """The messages of a collective on any network.

    Attributes:
        members: Number of members.
        boxes: Number of mailboxes that their messages use.
        rows: `PARTS`: the number of channels per member, of stages per channel, and so on; the last two are per round.
            `BOXES`: the mailbox of each send and of each receive.
        kinds: Distinct sends: source, target, bytes.
        kind: Index in `kinds` of each send.
    """

    members: int
    boxes: int
    rows: dict[str, NDArray[np.int32]]
    kinds: tuple[tuple[Ends, int], ...]
    kind: NDArray[np.int32]


_known: IdentityCache[Call] = IdentityCache(1024)  # searches use the same collectives on many networks


def call_of(plan: JobPlan, operation: GroupCollective, itemsize: int) -> Call:
    """Return the messages of a collective of one of the plan's groups."""
    algorithm = resolve_algorithm(operation, plan.locality_of(operation.group), itemsize, plan.tuning)
    if is_file_name(operation.collective) or is_file_name(algorithm):  # the file may have changed
        return _made(plan, operation, itemsize)
    _, members = plan.groups[operation.group]
    key = isolated_key(plan, operation, members, dscp=0), itemsize
    return _known.of((), lambda: _made(plan, operation, itemsize), key)


def _made(plan: JobPlan, operation: GroupCollective, itemsize: int) -> Call:
    _, members = plan.groups[operation.group]
    found = _Found()
    for own in range(len(members)):
        found.add(list_messages(plan, operation, own, itemsize))
    rows = {name: np.array(row, dtype=np.int32) for name, row in found.rows.items()}
    kind = np.array(found.kind, dtype=np.int32)
    return Call(len(members), len(found.boxes), rows, tuple(found.kinds), kind)


class _Found:
    """A collector of members' messages, one member at a time."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {name: [] for name in (*PARTS, *BOXES)}
        self.boxes: dict[object, int] = {}
        self.kinds: dict[tuple[Ends, int], int] = {}
        self.kind: list[int] = []

    def add(self, channels: tuple[tuple[SizedStage, ...], ...]) -> None:
        """Add the next member's messages."""
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
