"""Conversion between job traces, which have real figures, and plans, which have figures of a scale."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from testbed.comm.collectives import AUTO, collective_of
from testbed.comm.collectives.registry import ALL_TO_ALL_V
from testbed.spec.scale import UNSCALED, Scale
from testbed.workload.plan import (
    COMPUTING,
    EVERYBODY,
    Computing,
    GroupCollective,
    JobPlan,
    Message,
    Operation,
    Pause,
)
from testbed.workload.plans.builder import WorkloadRequest
from testbed.workload.traces.consistency import check_matching
from testbed.workload.traces.trace import (
    ROOTED,
    Collective,
    Compute,
    JobTrace,
    Node,
    PointToPoint,
    TraceError,
    element_bytes,
)

ALL_REDUCE, BARRIER = "all_reduce", "barrier"
COLLECTIVES = (ALL_REDUCE, BARRIER, "all_gather", "reduce_scatter", "all_to_all", ALL_TO_ALL_V.name, *ROOTED)
Table = tuple[tuple[int, ...], ...]


def plan_trace(trace: JobTrace, request: WorkloadRequest) -> JobPlan:
    """Return every rank's plan; trace and request must have the same number of ranks.

    An all-reduce without an algorithm uses the variant's, and other collectives use `auto`. Collectives of a group of
    one rank take no time. TraceError is raised if the trace is inconsistent.
    """
    check_matching(trace)
    maker = _Maker(trace, request)
    plans = tuple(maker.rank(rank) for rank in range(len(trace.ranks)))
    return JobPlan(plans, maker.groups(), seed=request.seed)


class _Maker:
    """A converter of nodes to operations; equal nodes give the same object, since ranks of a large job mostly match."""

    def __init__(self, trace: JobTrace, request: WorkloadRequest) -> None:
        self.trace, self.request = trace, request
        self._numbers: dict[tuple[str, int], int] = {}
        self._tables: dict[tuple[str, int], Table] = {}
        self._made: dict[tuple[Node, Table], Operation] = {}
        self._all: dict[tuple[Operation, ...], tuple[Operation, ...]] = {}
        self._gather_tables()

    def rank(self, rank: int) -> tuple[Operation, ...]:
        """Return a rank's plan; operations have the indices of their nodes."""
        counts: Counter[str] = Counter()
        plan = []
        for node in self.trace.ranks[rank]:
            table: Table = ()
            if isinstance(node, Collective):
                table = self._tables.get((node.group, counts[node.group]), ())
                counts[node.group] += 1
            if (node, table) not in self._made:
                self._made[node, table] = self._operation(rank, node, table)
            plan.append(self._made[node, table])
        return self._all.setdefault(tuple(plan), tuple(plan))

    def groups(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return the groups with operations, in the order of their numbers; a rank is in only one group of each name.

        Disjoint groups share a name, since all ranks have to agree once per name.
        """
        named: list[tuple[str, set[int]]] = []
        found: list[tuple[str, tuple[int, ...]]] = []
        everybody = set(range(len(self.trace.ranks)))
        for name, root in self._numbers:
            members = self._members(name, root)
            if (
                set(members) == everybody
                and members == tuple(sorted(members))
                and EVERYBODY not in dict(found)
            ):
                found.append((EVERYBODY, members))
                continue
            fitting = (own for own in named if not own[1] & set(members))
            shared = next(fitting, None)
            if shared is None:
                taken = {EVERYBODY, *(own for own, _ in named)}
                unique_name = name if name not in taken else f"{name} #{len(named)}"
                named.append(shared := (unique_name, set()))
            shared[1].update(members)
            found.append((shared[0], members))
        return tuple(found)

    def _members(self, name: str, root: int) -> tuple[int, ...]:
        """Return the members of a group with the root first, as plans require."""
        members = self.trace.groups[name]
        return members[root:] + members[:root]

    def _operation(self, rank: int, node: Node, table: Table) -> Operation:
        if isinstance(node, Compute):
            kind = node.kind if node.kind in COMPUTING else COMPUTING[0]
            seconds = self.request.seconds(node.duration_s)
            return Computing(node.name, node.stream, kind, node.after, seconds)
        if isinstance(node, PointToPoint):
            numel = self._elements(node.numel, node.dtype)
            return Message(
                node.name, node.stream, node.kind, node.after, node.peer, numel, node.tag, node.sends
            )
        if isinstance(node, Collective):
            return self._collective(rank, node, table)
        raise TraceError(
            f"rank {rank}: {node.name}: got a node that is neither computation nor communication"
        )

    def _collective(self, rank: int, node: Collective, table: Table) -> Operation:
        members = self.trace.groups[node.group]
        if node.collective not in COLLECTIVES:
            expected = f"one of {', '.join(COLLECTIVES)}"
            raise TraceError(
                f"rank {rank}: {node.name}: collective: got {node.collective}, expected {expected}"
            )
        if len(members) == 1:
            return Pause(node.name, node.stream, node.kind, node.after)
        root = members.index(node.root) if node.collective in ROOTED else 0
        number = self._numbers.setdefault((node.group, root), len(self._numbers))
        collective, numel = node.collective, node.numel
        if collective == BARRIER:
            collective, numel = ALL_REDUCE, 1
        known = collective_of(collective)
        if table:
            algorithm, elements = known.automatic(0, ()), len(members) * max(*map(max, table), 1)
        else:
            algorithm = AUTO if node.collective != ALL_REDUCE else ""
            elements = self._elements(numel, node.dtype, known.parts(len(members)))
        return GroupCollective(
            node.name,
            node.stream,
            node.kind,
            node.after,
            number,
            collective,
            elements,
            node.algorithm or algorithm,
            table=table,
        )

    def _elements(self, numel: int, dtype: str, parts: int = 1) -> int:
        return self.request.elements(float(numel * element_bytes(dtype)), parts)

    def _gather_tables(self) -> None:
        """Collect the rows of every all_to_all_v, by group and number among the group's collectives."""
        rows: dict[tuple[str, int], list[Sequence[int]]] = defaultdict(list)
        for name, members in self.trace.groups.items():
            for rank in members:
                own = (node for node in self.trace.ranks[rank] if isinstance(node, Collective))
                for number, node in enumerate(one for one in own if one.group == name):
                    if node.collective == ALL_TO_ALL_V.name:
                        rows[name, number].append(self._row(node, len(members)))
        self._tables = {key: tuple(map(tuple, found)) for key, found in rows.items()}

    def _row(self, node: Collective, size: int) -> list[int]:
        """Return emulated element counts for each member; 0 stays 0."""
        splits = node.splits or (node.numel // size,) * size
        return [self._elements(count, node.dtype) if count else 0 for count in splits]


PAUSE = "pause"
"""Kind of a computation that represents idle time of a stream."""

Durations = Mapping[tuple[int, int], float]
"""Real seconds of computations, by rank and index in its plan."""


class TraceInfo(NamedTuple):
    """The metadata of a trace; `dtype` is the element type of the plan's arrays."""

    dtype: str
    origin: str = ""
    accelerator: str = ""


def trace_of(
    plan: JobPlan, about: TraceInfo, scale: Scale = UNSCALED, measured_s: Durations | None = None
) -> JobTrace:
    """Return the trace of a plan, in real figures, with a node for each operation at the same index.

    A trace cannot express traffic classes, memory of activations, jitter, and receivers that hold senders back.

    Args:
        plan: The plan, in figures of `scale`.
        about: Metadata of the trace.
        scale: Scale of the plan.
        measured_s: Measured real seconds of computations; those of the plan by default.
    """
    names = _names(plan)
    positions = [{member: place for place, member in enumerate(members)} for _, members in plan.groups]
    nodes: dict[tuple[Operation, int], Node] = {}

    def node(rank: int, number: int, operation: Operation) -> Node:
        duration_s = (measured_s or {}).get((rank, number))
        own = (
            positions[operation.group][rank]
            if isinstance(operation, GroupCollective) and operation.uneven
            else 0
        )
        if duration_s is not None or (operation, own) not in nodes:
            nodes[operation, own] = _node(operation, plan, names, own, about.dtype, scale, duration_s)
        return nodes[operation, own]

    ranks = tuple(
        tuple(node(rank, number, operation) for number, operation in enumerate(own))
        for rank, own in enumerate(plan.ranks)
    )
    groups = {name: members for name, (_, members) in zip(names, plan.groups, strict=True)}
    return JobTrace(ranks, groups, about.origin, about.accelerator)


def _names(plan: JobPlan) -> list[str]:
    """Return a unique name for each group."""
    count = Counter(name for name, _ in plan.groups)
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name, _ in plan.groups:
        own = name if count[name] == 1 else f"{name} {seen[name]}"
        seen[name] += 1
        found.append(own if own not in found else f"{own} #{len(found)}")
    return found


def _node(
    operation: Operation,
    plan: JobPlan,
    names: Sequence[str],
    own: int,
    dtype: str,
    scale: Scale,
    measured_s: float | None,
) -> Node:
    common = (operation.name, operation.stream, operation.after)
    if isinstance(operation, Computing | Pause):
        duration_s = scale.real_s(operation.duration_s) if measured_s is None else measured_s
        kind = operation.kind if isinstance(operation, Computing) else PAUSE
        return Compute(*common, duration_s=duration_s, kind=kind)
    if isinstance(operation, Message):
        numel = _real_elements(operation.numel, scale)
        return PointToPoint(
            *common,
            peer=operation.peer,
            numel=numel,
            dtype=dtype,
            tag=operation.tag,
            sends=operation.sends,
            kind=operation.kind,
        )
    assert isinstance(operation, GroupCollective)
    splits: tuple[int, ...] = ()
    if operation.uneven:
        splits = tuple(_real_elements(count, scale) for count in operation.rows()[own])
    return Collective(
        *common,
        group=names[operation.group],
        collective=operation.collective,
        numel=_real_elements(operation.numel, scale),
        dtype=dtype,
        splits=splits,
        root=plan.groups[operation.group][1][0],
        kind=operation.kind,
        algorithm=operation.algorithm,
    )


def _real_elements(numel: int, scale: Scale) -> int:
    return round(scale.real_bytes(numel))
