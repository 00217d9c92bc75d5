"""Serving where it is decided on arrival who serves: what ranks do for a batch once it is known whom it goes to.

Ranks add it to their plans while a step is under way. What a batch of a size takes at a node's card is one piece, alike
but for numbers, so that everybody keeps a few of them and none has to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from testbed.workload.dispatch.dispatcher import Dispatcher, DispatchLog, DispatchRules, Sending, Server
from testbed.workload.plan import QUEUE, JobPlan, Message, Operation

UNNUMBERED = -1
"""What a piece is called by in names before it has its number."""

PieceKey = tuple[int, int, int]
"""Requests in a batch, which node, whose turn of its cards."""


@dataclass(frozen=True)
class Piece:
    """plan: what all ranks do. answers: numbers in the plan of the rank where requests arrive, first to last."""

    plan: JobPlan
    answers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Dispatching:
    """entry: rank that decides. nodes: ranks of each, the host's first; names: of these hosts. sizes: of batches.

    start: what there is before anything is decided: the moments at which batches are closed, in `entry`'s plan.
    """

    rules: DispatchRules
    entry: int
    nodes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    servers: tuple[Server, ...]
    sizes: tuple[int, ...]
    start: JobPlan
    pieces: Mapping[PieceKey, Piece]

    def dispatcher(self) -> Dispatcher:
        """Of a step."""
        return Dispatcher(len(self.sizes), self.servers, self.names, self.rules)

    @cached_property
    def _tags(self) -> int:
        """More than the messages that a pair has in a piece."""
        operations = (op for piece in self.pieces.values() for own in piece.plan.ranks for op in own)
        return 1 + max((op.tag for op in operations if isinstance(op, Message)), default=0)

    def key(self, sending: Sending) -> PieceKey:
        """Which piece it is."""
        return self.sizes[sending.batch], self.servers[sending.server].node, sending.turn

    def ranks(self, key: PieceKey) -> Iterator[int]:
        """That have something to do in a piece."""
        return (rank for rank, own in enumerate(self.pieces[key].plan.ranks) if own)

    def operations(self, key: PieceKey, number: int, rank: int, base: int) -> list[Operation]:
        """A rank's part of a sending, behind so many operations of its plan."""
        return [self._numbered(one, number, base) for one in self.pieces[key].plan.ranks[rank]]

    def _numbered(self, one: Operation, number: int, base: int) -> Operation:
        name = one.name.replace(str(UNNUMBERED), str(number))
        # on its own: nothing waits for what goes to somebody else
        queued = one.stream.startswith(QUEUE)
        stream = one.stream if queued else f"{one.stream.replace(str(UNNUMBERED), '')} {number}"
        after = tuple(base + index for index in one.after)
        if isinstance(one, Message):
            tag = number * self._tags + one.tag
            return replace(one, name=name, stream=stream, after=after, tag=tag)
        return replace(one, name=name, stream=stream, after=after)

    def to_document(self) -> dict[str, Any]:
        """Ready for JSON."""
        pieces = [
            [list(key), piece.plan.to_document(), list(piece.answers)] for key, piece in self.pieces.items()
        ]
        own = {name: getattr(self, name) for name in ("entry", "nodes", "names", "sizes")}
        servers = [asdict(server) for server in self.servers]
        rules, start = asdict(self.rules), self.start.to_document()
        return {**own, "rules": rules, "servers": servers, "start": start, "pieces": pieces}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Dispatching:
        """The inverse, after a way through JSON."""
        pieces = {
            (key[0], key[1], key[2]): Piece(JobPlan.from_document(plan), tuple(answers))
            for key, plan, answers in document["pieces"]
        }
        return cls(
            DispatchRules(**document["rules"]),
            document["entry"],
            tuple(map(tuple, document["nodes"])),
            tuple(document["names"]),
            tuple(Server(one["node"], tuple(one["turns"])) for one in document["servers"]),
            tuple(document["sizes"]),
            JobPlan.from_document(document["start"]),
            pieces,
        )


@dataclass(frozen=True, eq=False)
class ExecutedPlan:
    """plan: what ranks have done in the end. answers: of each sending, where in the plan of `entry` it is answered."""

    plan: JobPlan
    dispatched: DispatchLog
    answers: Mapping[int, tuple[int, ...]]


class GrowingPlan:
    """Ranks' plans as they grow by sendings. answers: of each sending, where in the plan of `entry` it is answered.

    answered: by its answer's last part, the sending.
    """

    def __init__(self, dispatching: Dispatching) -> None:
        self.dispatching = dispatching
        self.answers: dict[int, tuple[int, ...]] = {}
        self.answered: dict[int, int] = {}

    def part(self, key: PieceKey, number: int, rank: int, plan: Sequence[Operation]) -> list[Operation]:
        """What a rank adds to its plan for a sending."""
        base = len(plan)
        if rank == self.dispatching.entry:
            answers = self.dispatching.pieces[key].answers
            self.answers[number] = tuple(base + index for index in answers)
            self.answered[base + answers[-1]] = number
        return self.dispatching.operations(key, number, rank, base)
