"""Simulation of a step by the compiled library, with results cached per network."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.caches import IdentityCache
from testbed.comm.collectives.plan_executor import AHEAD
from testbed.comm.transport import PROTOCOLS, Software
from testbed.net.paths.network import Members, Network
from testbed.prediction.collective_flow import (
    CollectiveFlow,
    FlowBuilder,
    Isolated,
    isolated_key,
    isolated_plan,
    isolated_software,
)
from testbed.prediction.compiled.library import Step, as_columns, load_library
from testbed.prediction.network_columns import BOXES, PARTS, NetworkColumns, connection_columns, is_plain
from testbed.workload.plan import GroupCollective, JobPlan
from testbed.workload.plan_columns import Figures, PatternColumns, PlanColumns, columns_of, row_offsets

PLAYED = 0


class Outcome(NamedTuple):
    """The start and end of operations, for all ranks one after another.

    `worked_s` is the software time of each rank. `burst_bytes` is the most that any pair has to send at once.
    """

    columns: PlanColumns
    begun_s: Figures
    ended_s: Figures
    worked_s: Figures
    burst_bytes: float

    @property
    def step_time_s(self) -> float:
        """Time until the last rank is done, in seconds."""
        return float(self.ended_s.max(initial=0.0))

    @property
    def alive(self) -> tuple[float, ...]:
        """Return each rank's peak activation bytes, as `timeline.peak_activation_bytes` computes them."""
        return tuple(map(self._alive, range(len(self.columns.rank_pattern))))

    def _alive(self, rank: int) -> float:
        own = self.columns.patterns[self.columns.rank_pattern[rank]]
        places = self.columns.rank_first[rank] + own.memory_operations
        moments = np.concatenate([self.ended_s[places], self.begun_s[places]])
        order = np.lexsort((own.memory_changes, moments))
        return float(np.cumsum(own.memory_changes[order]).max(initial=0.0))


Fold = Callable[[GroupCollective], CollectiveFlow | None]


def play(
    plan: JobPlan, network_columns: NetworkColumns, software: Software, fold: Fold | None = None
) -> Outcome | None:
    """Simulate a plan; return None if only `simulate` can do so (it also reports errors in the plan).

    `fold` returns a collective as one flow; None to send its messages.
    """
    protocol = PROTOCOLS.find(software.protocol)
    handled = software.launch_s or software.completion_s or software.computing_share
    if handled or protocol.registers or protocol.copies or not is_plain(network_columns.network):
        return None
    columns = columns_of(plan)
    if columns is None:
        return None
    flows = None if fold is None else [fold(kind) for kind in columns.kinds]
    arrays = _arrays(plan, network_columns, columns, flows)
    many = int(columns.rank_first[-1])
    step = Step(
        ranks=len(plan.ranks),
        groups=max(1, len(plan.groups)),
        parts=len(network_columns.capacity),
        connections=len(arrays["queue_bytes"]),
        lanes=len(arrays["lane_source"]),
        boxes=int(columns.messages.box.max(initial=-1)) + 1,
        instances=max(1, int(arrays["instance_first"][-1])),
        ahead=AHEAD,
        holds=plan.holds_receivers,
        at_once=network_columns.network.sends_at_once,
        folded=fold is not None,
        message_s=software.message_s,
        byte_s=software.byte_s,
        handover_s=software.handover_s,
        buffer_bytes=network_columns.network.send_buffer_bytes,
        **{name: array.ctypes.data for name, array in arrays.items()},
    )
    begun_s, ended_s, worked_s = np.zeros(many), np.zeros(many), np.zeros(len(plan.ranks))
    burst_bytes = np.zeros(1)
    most_steps = (own.ctypes.data for own in (begun_s, ended_s, worked_s, burst_bytes))
    if load_library().play(ctypes.byref(step), *most_steps) != PLAYED:
        return None
    return Outcome(columns, begun_s, ended_s, worked_s, float(burst_bytes[0]))


def _arrays(
    plan: JobPlan,
    network_columns: NetworkColumns,
    columns: PlanColumns,
    flows: Sequence[CollectiveFlow | None] | None,
) -> dict[str, NDArray[Any]]:
    """Return the arrays of `Step` by name; `flows` has the flows of folded collectives by kind, or is None."""
    what = np.zeros(int(columns.rank_first[-1]), dtype=np.int32)
    messages, sends = columns.messages, columns.messages.sends
    what[messages.place] = messages.box
    what[messages.place[sends]] = np.arange(len(messages.kind))
    transfers = [
        network_columns.transfer((source, target), numel * network_columns.itemsize, dscp)
        for source, target, dscp, numel in messages.kinds.tolist()
    ]
    if flows is None:
        of_collectives = _called(plan, columns, network_columns, what)
    else:
        what[columns.collectives.place] = columns.collectives.alike
        of_collectives = _flowing(plan, columns, flows, len(network_columns.connections))
    folded = [
        network_columns.connection([flow.shares], flow.burst_bytes)
        for flow in flows or ()
        if flow is not None
    ]
    # possible only after the last transfer is known
    network = dict(network_columns.columns())
    if folded:
        network |= connection_columns([*network_columns.connections, *folded])
    return {
        **_of_patterns(columns.patterns),
        "rank_kind": columns.rank_pattern,
        "rank_first": columns.rank_first,
        "what": what,
        "message_box": messages.box[sends],
        "message_transfer": np.array(transfers, dtype=np.int32)[messages.kind],
        "instance_first": row_offsets(columns.group_calls),
        "capacity": network_columns.capacity,
        "queue": network_columns.queue,
        **network,
        **of_collectives,
    }


def _of_patterns(patterns: Sequence[PatternColumns]) -> dict[str, NDArray[Any]]:
    names = ("operation", "duration_s", "missing", "following", "next")
    found = {name: np.concatenate([getattr(own, name) for own in patterns]) for name in names}
    found["kind_first"] = row_offsets([len(own.operation) for own in patterns])
    found["next_first"] = row_offsets(np.concatenate([own.next_many for own in patterns]))
    return found


def _called(
    plan: JobPlan, columns: PlanColumns, network_columns: NetworkColumns, what: NDArray[np.int32]
) -> dict[str, NDArray[Any]]:
    """Return the arrays of collectives that send messages."""
    called = [network_columns.called(plan, kind) for kind in columns.kinds]
    members = [own.call.members for own in called]
    own = columns.collectives
    what[own.place] = row_offsets(members)[own.alike] + own.own
    joined = {name: _joined([one.call.rows[name] for one in called]) for name in (*PARTS, *BOXES)}
    return as_columns(
        {
            "class_group": [kind.group for kind in columns.kinds],
            "class_members": members,
            "class_boxes": [one.call.boxes for one in called],
            "part_class": np.repeat(np.arange(len(called)), members),
            **{f"{name}_first": row_offsets(joined[name]) for name in PARTS},
            **{name: joined[name] for name in BOXES},
            "send_transfer": _joined([one.transfer for one in called]),
        }
    )


def _joined(rows: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)


def _flowing(
    plan: JobPlan, columns: PlanColumns, flows: Sequence[CollectiveFlow | None], first: int
) -> dict[str, NDArray[Any]]:
    """Return the arrays of folded collectives; `first` is the number of their first connection."""
    groups = [kind.group for kind in columns.kinds]
    flowing = np.array([flow is not None for flow in flows], dtype=bool)
    return as_columns(
        {
            "class_group": groups,
            "class_members": [len(plan.groups[group][1]) for group in groups],
            "class_connection": np.where(flowing, first + np.cumsum(flowing) - 1, -1),
            "class_bytes": [flow.size_bytes if flow else 0.0 for flow in flows],
            "class_rest_s": [flow.rest_s if flow else 0.0 for flow in flows],
            "part_class": np.arange(len(flows)),
        }
    )


_isolated_plans: IdentityCache[JobPlan] = IdentityCache(
    256
)  # single collectives, which searches use on many networks


class _NotPlain(Exception):
    """The exception raised if an isolated collective needs `simulate`."""


class NetworkSimulator:
    """A simulator of plans on one network; `isolated` caches isolated collective times, shared with `simulate`."""

    def __init__(self, network: Network, ranks: int, itemsize: int, software: Software) -> None:
        self.network, self.itemsize, self.software = network, itemsize, software
        self.columns = NetworkColumns(network, ranks, itemsize)
        self.isolated: dict[Hashable, Isolated] = {}
        self._flows: dict[Hashable, CollectiveFlow | None] = {}

    def play(self, plan: JobPlan, *, folded: bool) -> Outcome | None:
        """Simulate a plan, see `simulate`; return None if only that function can."""
        try:
            return play(plan, self.columns, self.software, self._fold(plan) if folded else None)
        except _NotPlain:
            return None

    def _fold(self, plan: JobPlan) -> Fold:
        folder = FlowBuilder(self.network, self.itemsize, partial(self._isolated, plan))

        def fold(operation: GroupCollective) -> CollectiveFlow | None:
            _, members = plan.groups[operation.group]
            key = isolated_key(plan, operation, members, plan.dscp(operation))
            if key not in self._flows:
                self._flows[key] = folder.flow(operation, plan)
            return self._flows[key]

        return fold

    def _isolated(self, plan: JobPlan, operation: GroupCollective, members: Members, dscp: int) -> Isolated:
        key = isolated_key(plan, operation, members, dscp)
        if key not in self.isolated:
            alone = _isolated_plans.of(
                (),
                lambda: isolated_plan(plan, operation, members, dscp),
                (key, operation.kind, len(plan.ranks)),
            )
            found = play(alone, self.columns, isolated_software(self.software))
            if found is None:
                raise _NotPlain
            self.isolated[key] = Isolated(found.step_time_s, found.worked_s.tolist(), found.burst_bytes)
        return self.isolated[key]
