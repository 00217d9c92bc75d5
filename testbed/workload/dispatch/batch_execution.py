"""Serving with servers chosen on arrival: what ranks do for a batch once its server is known.

Ranks add these operations to their plans during a step. The operations for a batch size, node and card are one piece,
equal for all batches except for numbers. So every rank keeps a few pieces, and none has to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from testbed.workload.dispatch.dispatcher import Dispatcher, DispatchLog, DispatchRules, Sending, Server
from testbed.workload.plan import QUEUE, JobPlan, Message, Operation

UNNUMBERED = -1
"""Placeholder in names for the number of a sending."""

PieceKey = tuple[int, int, int]
"""Requests in a batch, number of the node, card whose turn it is."""


@dataclass(frozen=True)
class Piece:
    """The operations of all ranks for one batch.

    Attributes:
        plan: The operations.
        answers: Indices of the answer's parts in the plan of the rank where requests arrive, first to last.
    """

    plan: JobPlan
    answers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Dispatching:
    """The inputs of a dispatcher, and the operations for each batch that it may dispatch.

    Attributes:
        rules: How a server is chosen.
        entry: Rank that decides.
        nodes: Ranks of each node, the host's first.
        names: Names of the nodes' hosts.
        servers: The servers.
        sizes: Size of each batch.
        start: Plans before any decision: in `entry`'s plan, the times at which batches are closed.
        pieces: Operations by batch size, node and card.
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
        """Return a dispatcher for one step."""
        return Dispatcher(len(self.sizes), self.servers, self.names, self.rules)

    @cached_property
    def _tags(self) -> int:
        """An upper bound of the message tags of a piece."""
        operations = (op for piece in self.pieces.values() for own in piece.plan.ranks for op in own)
        return 1 + max((op.tag for op in operations if isinstance(op, Message)), default=0)

    def key(self, sending: Sending) -> PieceKey:
        """Return the key of a sending's piece."""
        return self.sizes[sending.batch], self.servers[sending.server].node, sending.turn

    def ranks(self, key: PieceKey) -> Iterator[int]:
        """Yield the ranks that have operations in a piece."""
        return (rank for rank, own in enumerate(self.pieces[key].plan.ranks) if own)

    def operations(self, key: PieceKey, number: int, rank: int, base: int) -> list[Operation]:
        """Return a rank's operations for a sending, to append to a plan of `base` operations."""
        return [self._numbered(one, number, base) for one in self.pieces[key].plan.ranks[rank]]

    def _numbered(self, one: Operation, number: int, base: int) -> Operation:
        name = one.name.replace(str(UNNUMBERED), str(number))
        # its own stream, so that sendings to different servers do not wait for each other
        queued = one.stream.startswith(QUEUE)
        stream = one.stream if queued else f"{one.stream.replace(str(UNNUMBERED), '')} {number}"
        after = tuple(base + index for index in one.after)
        if isinstance(one, Message):
            tag = number * self._tags + one.tag
            return replace(one, name=name, stream=stream, after=after, tag=tag)
        return replace(one, name=name, stream=stream, after=after)

    def to_document(self) -> dict[str, Any]:
        """Return the inputs as JSON-ready values."""
        pieces = [
            [list(key), piece.plan.to_document(), list(piece.answers)] for key, piece in self.pieces.items()
        ]
        own = {name: getattr(self, name) for name in ("entry", "nodes", "names", "sizes")}
        servers = [asdict(server) for server in self.servers]
        rules, start = asdict(self.rules), self.start.to_document()
        return {**own, "rules": rules, "servers": servers, "start": start, "pieces": pieces}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Dispatching:
        """Rebuild the inputs from `to_document`, after a round trip through JSON."""
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
    """What ranks did in a step.

    Attributes:
        plan: The operations that they executed.
        dispatched: The dispatcher's decisions.
        answers: By sending, indices of the answer's parts in the plan of `entry`.
    """

    plan: JobPlan
    dispatched: DispatchLog
    answers: Mapping[int, tuple[int, ...]]


class GrowingPlan:
    """Tracks the plans of ranks as sendings add to them.

    Attributes:
        answers: By sending, indices of the answer's parts in the plan of `entry`.
        answered: The sending, by the index of its answer's last part.
    """

    def __init__(self, dispatching: Dispatching) -> None:
        self.dispatching = dispatching
        self.answers: dict[int, tuple[int, ...]] = {}
        self.answered: dict[int, int] = {}

    def part(self, key: PieceKey, number: int, rank: int, plan: Sequence[Operation]) -> list[Operation]:
        """Return what a rank adds to its plan for a sending."""
        base = len(plan)
        if rank == self.dispatching.entry:
            answers = self.dispatching.pieces[key].answers
            self.answers[number] = tuple(base + index for index in answers)
            self.answered[base + answers[-1]] = number
        return self.dispatching.operations(key, number, rank, base)
