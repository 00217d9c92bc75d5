"""Operations of a rank's plan: computation, pauses, messages and collectives, with their dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from testbed.comm.collectives.algorithms.all_to_all_v import sent_rows

COMPUTE = "compute"
COMPUTING = (COMPUTE, "forward", "backward", "full_backward", "backward_input", "backward_weight")
"""Kinds of `Computing` that count as compute time in results and figures."""

QUEUE = "queue"
"""Prefix of the names of queues: streams whose operations run one at a time, in the order in which they get ready."""

EVERYBODY = "all"  # name of the groups of all ranks, one per traffic class, which need not be set up


@dataclass(frozen=True)
class Operation:
    """One operation of a rank.

    Attributes:
        name: Label for records.
        stream: Stream of the rank that runs it.
        kind: Category under which waiting time is accounted.
        after: Indices in the rank's plan of dependencies in addition to the previous operation of its stream.
    """

    name: str
    stream: str
    kind: str
    after: tuple[int, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the operation as data for JSON."""
        return {"type": _NAMES[type(self)], **{one.name: getattr(self, one.name) for one in fields(self)}}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Operation:
        """Rebuild an operation from `to_document`, after a round trip through JSON."""
        values = {name: _tuples(value) for name, value in document.items() if name != "type"}
        return _TYPES[document["type"]](**values)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Computing(Operation):
    """Computation on the rank's accelerator.

    Attributes:
        duration_s: Emulated seconds.
        holds: Real bytes of activations that are allocated when it starts.
        gives: Real bytes of activations that are freed when it ends.
    """

    duration_s: float = 0.0
    holds: float = 0.0
    gives: float = 0.0


@dataclass(frozen=True)
class Pause(Operation):
    """Time that passes on a stream without occupying the rank; `duration_s` is emulated."""

    duration_s: float = 0.0


@dataclass(frozen=True)
class IntraRankTransfer(Pause):
    """Traffic between a rank's own accelerators, which the emulated network does not carry."""


@dataclass(frozen=True)
class Message(Operation):
    """One end of a message.

    Attributes:
        peer: Rank at the other end.
        numel: Number of elements.
        tag: Tag that distinguishes messages of a pair of ranks.
        sends: Whether this is the sending end.
    """

    peer: int = 0
    numel: int = 0
    tag: int = 0
    sends: bool = False


GATHERED, REDUCED = "gathered", "reduced"


@dataclass(frozen=True)
class Block(Message):
    """One end of a one-sided put of a block into a window of a group member; the sender writes and signals.

    Attributes:
        numel: Elements of a block.
        group: Index of the group in the plan.
        window: GATHERED for members' blocks, each at its own position; REDUCED for partial sums of a block, to which
            each sender adds its own part and all partial sums that it received for the block.
        block: Owner of the block, as an index in the group.
        slot: Position in the receiver's window, in blocks.
        call: Number of the group's gather or reduction in the step, from 0.
    """

    group: int = 0
    window: str = GATHERED
    block: int = 0
    slot: int = 0
    call: int = 0


@dataclass(frozen=True)
class GroupCollective(Operation):
    """A collective of one of the plan's groups. All members start a group's collectives in the same order.

    Attributes:
        group: Index of the group in the plan.
        collective: Name of the collective.
        numel: Elements of a rank's larger array.
        algorithm: Name of the algorithm; "" for the variant's.
        counts: For an all_to_all_v, by member: number of elements that it receives from each member.
        returns: Whether `counts` has instead the elements that a member sends to each member.
        table: For an all_to_all_v, instead of `counts`: elements from each member (rows) to each member (columns).
    """

    group: int = 0
    collective: str = "all_reduce"
    numel: int = 0
    algorithm: str = "ring"
    counts: tuple[int, ...] = ()
    returns: bool = False
    table: tuple[tuple[int, ...], ...] = ()

    @property
    def uneven(self) -> bool:
        """Whether every pair of members has its own element count."""
        return bool(self.counts or self.table)

    @property
    def exchange_key(self) -> tuple[object, ...]:
        """A key that is equal for members' parts of the same collective: all fields except labels and dependencies."""
        return (
            self.group,
            self.collective,
            self.numel,
            self.algorithm,
            self.counts,
            self.returns,
            self.table,
        )

    def rows(self) -> list[list[int]]:
        """Return the elements of an all_to_all_v from each member (rows) to each member (columns)."""
        if self.table:
            return list(map(list, self.table))
        if self.returns:
            return [[count] * len(self.counts) for count in self.counts]
        return [list(self.counts)] * len(self.counts)

    def sent_rows(self) -> list[list[int]]:
        """Return `rows` as sent, which is more than `rows` if the algorithm adds padding."""
        rows = self.rows()
        return sent_rows(self.algorithm, rows, self.numel // len(rows))


Kind = TypeVar("Kind", bound=Operation)


def replace_fields(operation: Kind, **values: Any) -> Kind:
    """Return a copy with other field values, like `dataclasses.replace` but in a fifth of its time.

    This matters because a step has tens of thousands of operations.
    """
    copy = object.__new__(type(operation))
    object.__setattr__(copy, "__dict__", operation.__dict__ | values)
    return copy


RankPlan = tuple[Operation, ...]
"""A rank's operations; dependencies are indices into it."""

_TYPES: dict[str, type[Operation]] = {
    "compute": Computing,
    "pause": Pause,
    "inside": IntraRankTransfer,
    "message": Message,
    "block": Block,
    "collective": GroupCollective,
}
_NAMES = {operation_type: name for name, operation_type in _TYPES.items()}
