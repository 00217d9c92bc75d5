"""What a rank does: operations on streams, with what they wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from testbed.comm.collectives.algorithms.all_to_all_v import sent_rows

COMPUTE = "compute"
COMPUTING = (COMPUTE, "forward", "backward", "full_backward", "backward_input", "backward_weight")
"""Kinds of Computing that count as a rank's computing in figures and drawings."""

QUEUE = "queue"
"""How a stream's name begins whose operations come one at a time in the order in which they can begin."""

EVERYBODY = "all"  # the name of groups of all ranks, one for each class of traffic, which need not be made


@dataclass(frozen=True)
class Operation:
    """name: for records. stream: of its rank. kind: what time waited for it is booked as.

    after: indices in the rank's plan of what must be done before it starts, beside what is before it on its stream.
    """

    name: str
    stream: str
    kind: str
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Computing(Operation):
    """duration_s: emulated. holds: real bytes of activations that it begins to keep; gives: those freed at its end."""

    duration_s: float = 0.0
    holds: float = 0.0
    gives: float = 0.0


@dataclass(frozen=True)
class Pause(Operation):
    """Time that passes on a stream, whatever the rank does: duration_s, emulated."""

    duration_s: float = 0.0


@dataclass(frozen=True)
class IntraRankTransfer(Pause):
    """What a rank's accelerators send each other, which no network carries."""


@dataclass(frozen=True)
class Message(Operation):
    """One end of a message of `numel` elements; `sends`: which one. tag: tells messages of a pair apart."""

    peer: int = 0
    numel: int = 0
    tag: int = 0
    sends: bool = False


GATHERED, REDUCED = "gathered", "reduced"


@dataclass(frozen=True)
class Block(Message):
    """One end of a block's way into a window of a group's member: put there, and signalled, by the one that `sends`.

    window: GATHERED, for blocks of members, each in its place; REDUCED, for partial sums of a block, to which whoever
    sends one adds its own and all that came for it. numel: of a block. block: whose, by place in the group. slot: in
    the receiver's window, in blocks. call: of the group's gathers, or reductions, in a step, from 0.
    """

    group: int = 0
    window: str = GATHERED
    block: int = 0
    slot: int = 0
    call: int = 0


@dataclass(frozen=True)
class GroupCollective(Operation):
    """A collective of one of the plan's groups; numel: elements of a rank's larger array.

    Members start a group's collectives in one and the same order. counts: of an all_to_all_v, by member: elements that
    it gets from each, or, where the operation `returns` them, gives to each; `table`: or those from each, in rows.
    algorithm: "" for the variant's.
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
        """Whether every pair of members has a count of its own."""
        return bool(self.counts or self.table)

    @cached_property
    def alike(self) -> GroupCollective:
        """The same for all that send the same in the same group."""
        return replace(self, name="", stream="", kind="", after=())

    @property
    def sending(self) -> tuple[object, ...]:
        """What `alike` is equal by, which is made much sooner."""
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
        """Elements of an all_to_all_v from each member, in rows, to each."""
        if self.table:
            return list(map(list, self.table))
        if self.returns:
            return [[count] * len(self.counts) for count in self.counts]
        return [list(self.counts)] * len(self.counts)

    def sent_rows(self) -> list[list[int]]:
        """The same as they are sent, which is more where they are padded."""
        rows = self.rows()
        return sent_rows(self.algorithm, rows, self.numel // len(rows))


Kind = TypeVar("Kind", bound=Operation)


def replace_fields(operation: Kind, **values: Any) -> Kind:
    """As `dataclasses.replace`, in a fifth of its time: a step has tens of thousands."""
    own = operation.__dict__ | values
    if "alike" in own:  # which goes by what may be another now
        del own["alike"]
    made = object.__new__(type(operation))
    object.__setattr__(made, "__dict__", own)
    return made


RankPlan = tuple[Operation, ...]
"""A rank's operations, which wait for each other by their places here."""

_TYPES: dict[str, type[Operation]] = {
    "compute": Computing,
    "pause": Pause,
    "inside": IntraRankTransfer,
    "message": Message,
    "block": Block,
    "collective": GroupCollective,
}
_NAMES = {made: name for name, made in _TYPES.items()}


def operation_document(operation: Operation) -> dict[str, Any]:
    """Ready for JSON."""
    return {"type": _NAMES[type(operation)], **asdict(operation)}


def operation_of(document: Mapping[str, Any]) -> Operation:
    """The inverse, after a way through JSON."""
    values = {name: _tuples(value) for name, value in document.items() if name != "type"}
    return _TYPES[document["type"]](**values)


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples, within each other too."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
