"""What each rank of a job does in a step: operations on streams, with what they wait for.

As on an accelerator, operations of one stream come one after the other, and streams go on side by side; a stream that
is a queue takes them in the order in which they can begin. The same plan
is carried out by ranks on a network, and by a model of both: `tracking` says for either of them what may start when.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from testbed.collectives.late_counts import sent_rows
from testbed.collectives.tuning import TuningTable

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
class Inside(Pause):
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
Known = TypeVar("Known")


def altered(operation: Kind, **values: Any) -> Kind:
    """As `dataclasses.replace`, in a fifth of its time: a step has tens of thousands."""
    made = object.__new__(type(operation))
    own = made.__dict__
    own.update(operation.__dict__, **values)
    own.pop("alike", None)  # which goes by what may be another now
    return made


RankPlan = tuple[Operation, ...]
_TYPES: dict[str, type[Operation]] = {
    "compute": Computing,
    "pause": Pause,
    "inside": Inside,
    "message": Message,
    "block": Block,
    "collective": GroupCollective,
}
_NAMES = {made: name for name, made in _TYPES.items()}


@dataclass(frozen=True)
class JobPlan:
    """All ranks' plans; groups: ranks that do collectives together, by name.

    holds_receivers: a message leaves once its receiver waits for it, and not before. jitter: standard deviation of
    computing, as a share of its time; seed: of that. dscps: of what operations send, by their kind, where not 0.
    buildings: of the ranks; () for one. near: what algorithms go by in their place, as `parallelism.hierarchy` says it;
    () for buildings. tuning: what collectives go by whose algorithm is "auto". like: of each rank, one that
    does the same, but for whom it sends to and in which groups; () where none is known to.
    """

    ranks: tuple[RankPlan, ...] = ()
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    holds_receivers: bool = False
    jitter: float = 0.0
    seed: int = 0
    dscps: Mapping[str, int] = field(default_factory=dict)
    buildings: tuple[int, ...] = ()
    tuning: TuningTable = field(default_factory=TuningTable)
    near: tuple[int, ...] = ()
    like: tuple[int, ...] = field(default=(), compare=False, repr=False)
    _known: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def remembered(self, what: Hashable, made: Callable[[], Known]) -> Known:
        """What follows from the plan, which whoever asks again for `what` need not find out anew."""
        if what not in self._known:
            self._known[what] = made()
        found: Known = self._known[what]
        return found

    def placed(self, buildings: tuple[int, ...], tuning: TuningTable, near: tuple[int, ...]) -> JobPlan:
        """In these buildings, by this table; the same one whenever it is asked for."""
        if (buildings, tuning, near) == (self.buildings, self.tuning, self.near):
            return self
        where = "placed", buildings, tuning, near
        return self.remembered(where, lambda: replace(self, buildings=buildings, tuning=tuning, near=near))

    def using(self, algorithm: str) -> JobPlan:
        """With this one in the collectives that name none; the same one whenever it is asked for."""
        if not self._has_nameless:
            return self
        return self.remembered(("using", algorithm), lambda: self._using(algorithm))

    @cached_property
    def _has_nameless(self) -> bool:
        alike = {id(own): own for own in self.shared}
        return any(_nameless(operation) for own in alike.values() for _, operation in own)

    @cached_property
    def shared(self) -> tuple[Sequence[tuple[int, Operation]], ...]:
        """By rank, the operations that other ranks take part in, with their indices: few of all."""
        if self.like:
            first = {rank: [index for index, _ in _shared(self.ranks[rank])] for rank in set(self.like)}
            return tuple(
                [(index, own[index]) for index in first[rank]]
                for own, rank in zip(self.ranks, self.like, strict=True)
            )
        found = {number: _shared(own) for number, own in {id(own): own for own in self.ranks}.items()}
        return tuple(found[id(own)] for own in self.ranks)

    @cached_property
    def operations(self) -> int:
        """How many all ranks have."""
        return sum(map(len, self.ranks))

    @cached_property
    def hashes(self) -> tuple[int, ...]:
        """Of each rank's operations, in whose place they can be told apart by."""
        if not self.like:
            return tuple(map(hash, self.ranks))
        first = {rank: hash(self.ranks[rank]) for rank in set(self.like)}
        return tuple(
            hash((first[rank], tuple(own))) for own, rank in zip(self.shared, self.like, strict=True)
        )

    def _using(self, algorithm: str) -> JobPlan:
        made: dict[int, RankPlan] = {}
        for own, shared in zip(self.ranks, self.shared, strict=True):
            if id(own) not in made:
                operations = list(own)
                for index, operation in shared:
                    if _nameless(operation):
                        operations[index] = altered(operation, algorithm=algorithm)
                made[id(own)] = tuple(operations)
        return replace(self, ranks=tuple(made[id(own)] for own in self.ranks))

    def near_of(self, group: int) -> tuple[int, ...]:
        """Who of a group's members is near whom, for algorithms: those of one number, in the members' order."""
        members, numbers = self.groups[group][1], self.near or self.buildings
        return tuple(numbers[member] for member in members) if numbers else (0,) * len(members)

    def dscp(self, operation: Operation) -> int:
        """Of the packets of an operation."""
        return self.dscps.get(operation.kind, 0)

    def to_document(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "ranks": [list(map(operation_document, plan)) for plan in self.ranks],
            "groups": [[name, list(members)] for name, members in self.groups],
            "holds_receivers": self.holds_receivers,
            "jitter": self.jitter,
            "seed": self.seed,
            "dscps": dict(self.dscps),
            "buildings": list(self.buildings),
            "tuning": self.tuning.to_document(),
            "near": list(self.near),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> JobPlan:
        """The inverse, after a way through JSON."""
        ranks = [tuple(operation_of(entry) for entry in plan) for plan in document["ranks"]]
        groups = tuple((name, tuple(members)) for name, members in document["groups"])
        rest = {name: document[name] for name in ("holds_receivers", "jitter", "seed", "dscps")}
        buildings, near = tuple(document["buildings"]), tuple(document["near"])
        tuning = TuningTable.from_document(document["tuning"])
        return cls(tuple(ranks), groups, buildings=buildings, tuning=tuning, near=near, **rest)


def _shared(plan: RankPlan) -> list[tuple[int, Operation]]:
    kinds = Message, GroupCollective
    return [(index, operation) for index, operation in enumerate(plan) if isinstance(operation, kinds)]


def _nameless(operation: Operation) -> bool:
    return isinstance(operation, GroupCollective) and not operation.algorithm


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


def jittered_s(plan: JobPlan, rank: int, index: int, step: int) -> float:
    """What an operation's computing takes in one step, the same in every run."""
    operation = plan.ranks[rank][index]
    assert isinstance(operation, Computing)
    if not plan.jitter:
        return operation.duration_s
    deviation = random.Random(f"{plan.seed}/{step}/{rank}/{index}").gauss(0.0, plan.jitter)
    return operation.duration_s * max(0.0, 1.0 + deviation)
