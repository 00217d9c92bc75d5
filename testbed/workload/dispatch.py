"""The choice of a server for each batch when it is sent, and the ranks' operations for it. Times are emulated.

The choice is based on earlier sendings and the answers so far. Ranks then add the batch's operations to their plans
during a step. The operations for a batch size, node and card form one piece, which is the same for all batches except
for numbers. So every rank stores a few pieces, and none has to be sent. This module does not use file models, so that
ranks need not import them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

from testbed.errors import TestbedError
from testbed.workload.plan import QUEUE, JobPlan, Message, Operation

LEAST_OUTSTANDING, TWO_CHOICES, RANDOM, TURNS = "least_outstanding", "two_choices", "random", "turns"


class NoServerError(TestbedError):
    """The error for a batch that no remaining server can serve."""


@dataclass(frozen=True)
class Server:
    """A target of batches: a card that has a whole model, or a node.

    Attributes:
        node: Number of the node.
        turns: Its cards, which serve in turn.
    """

    node: int
    turns: tuple[int, ...]


@dataclass(frozen=True)
class DispatchRules:
    """The rules by which a server is chosen.

    Attributes:
        policy: LEAST_OUTSTANDING, TWO_CHOICES, RANDOM or TURNS.
        retry_s: Time to wait for an answer; None to wait forever.
        most: Maximum number of retries of a batch.
        by_node: Whether all servers of a node are avoided once one of them is overdue.
        seed: Seed of random choices.
    """

    policy: str
    retry_s: float | None = None
    most: int = 0
    by_node: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Sending:
    """One attempt to have a batch served.

    Attributes:
        number: Number of the sending.
        batch: The batch.
        server: The server.
        turn: The server's card that serves it.
        at_s: Time at which it was sent.
    """

    number: int
    batch: int
    server: int
    turn: int
    at_s: float


@dataclass
class Outage:
    """An overdue server or node: when this was noticed, and when it eventually answered."""

    unit: int
    noticed_s: float
    back_s: float | None = None


@dataclass
class DispatchLog:
    """The outcome of all batches.

    Attributes:
        sendings: All sendings.
        first: The sending that was answered first, by answered batch.
        lost: Batches that were never answered.
        outages: Overdue servers or nodes.
    """

    sendings: list[Sending] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)

    def since(self, start_s: float) -> DispatchLog:
        """Return the log with times relative to `start_s`."""
        return DispatchLog(
            [replace(one, at_s=one.at_s - start_s) for one in self.sendings],
            self.first,
            self.lost,
            [
                Outage(
                    one.unit, one.noticed_s - start_s, None if one.back_s is None else one.back_s - start_s
                )
                for one in self.outages
            ],
        )


class Dispatcher:
    """The dispatcher at the rank where requests arrive. It knows only its own sendings and the answers so far."""

    def __init__(self, batches: int, servers: Sequence[Server], names: Sequence[str], rules: DispatchRules):
        """Prepare for a step; `names` are the nodes' names, for messages."""
        self.batches, self.servers, self.names, self.rules = batches, servers, names, rules
        self.found = DispatchLog()
        self._draw = Random(f"{rules.seed}/dispatch")
        self._owed: list[set[int]] = [set() for _ in servers]
        self._turns = [0] * len(servers)
        self._used = [-1] * len(servers)  # number of the last sending to each server
        self._tries: dict[int, list[int]] = {}
        self._due: list[tuple[float, int]] = []
        self._outages: dict[int, Outage] = {}

    def _unit(self, server: int) -> int:
        return self.servers[server].node if self.rules.by_node else server

    @property
    def over(self) -> bool:
        """Whether all batches are answered or lost, and no responsive server owes an answer."""
        if len(self.found.first) + len(self.found.lost) < self.batches:
            return False
        return not any(
            owed for server, owed in enumerate(self._owed) if self._unit(server) not in self._outages
        )

    @property
    def due_s(self) -> float | None:
        """The time at which the next answer is overdue."""
        while self._due and self._settled(self._due[0][1]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _settled(self, number: int) -> bool:
        sending = self.found.sendings[number]
        return sending.batch in self.found.first or number not in self._owed[sending.server]

    def send(self, batch: int, now_s: float) -> Sending:
        """Choose a server for a batch now."""
        tried_servers = self._tries.setdefault(batch, [])
        server = self._choose({self._unit(one) for one in tried_servers})
        turns = self.servers[server].turns
        turn = turns[self._turns[server] % len(turns)]
        self._turns[server] += 1
        sending = Sending(len(self.found.sendings), batch, server, turn, now_s)
        self.found.sendings.append(sending)
        self._owed[server].add(sending.number)
        self._used[server] = sending.number
        tried_servers.append(server)
        if self.rules.retry_s is not None:
            heapq.heappush(self._due, (now_s + self.rules.retry_s, sending.number))
        return sending

    def _choose(self, tried_servers: set[int]) -> int:
        """Choose among responsive servers that have not had the batch, else among responsive ones, else among all."""
        every = range(len(self.servers))
        responsive = [server for server in every if self._unit(server) not in self._outages]
        untried = [server for server in responsive if self._unit(server) not in tried_servers]
        candidates = untried or responsive or list(every)
        if self.rules.policy == RANDOM:
            return self._draw.choice(candidates)
        if self.rules.policy == TWO_CHOICES:
            candidates = self._draw.sample(candidates, min(2, len(candidates)))
        if self.rules.policy in (LEAST_OUTSTANDING, TWO_CHOICES):
            fewest = min(len(self._owed[server]) for server in candidates)
            candidates = [server for server in candidates if len(self._owed[server]) == fewest]
        # among equals, the least recently used; unused ones come first, in their order
        return min(candidates, key=lambda server: (self._used[server], server))

    def answered(self, number: int, now_s: float) -> None:
        """Record that a sending is fully answered and its server responsive."""
        sending = self.found.sendings[number]
        self._owed[sending.server].discard(number)
        if sending.batch not in self.found.lost:
            self.found.first.setdefault(sending.batch, number)
        if (outage := self._outages.pop(self._unit(sending.server), None)) is not None:
            outage.back_s = now_s

    def due(self, now_s: float) -> list[Sending]:
        """Return the batches retried because their answers are overdue; raise NoServerError if no server is left."""
        again = []
        while (due_s := self.due_s) is not None and due_s <= now_s:
            _, number = heapq.heappop(self._due)
            again += self._give_up(number, due_s)
        return again

    def lose(self, servers: Sequence[int], now_s: float) -> list[Sending]:
        """Return the batches retried because these servers' connections are lost; raise NoServerError if stuck."""
        again = []
        for server in servers:
            self._record_outage(server, now_s)
        for server in servers:
            for number in sorted(self._owed[server]):
                again += self._give_up(number, now_s)
        return again

    def _record_outage(self, server: int, now_s: float) -> None:
        unit = self._unit(server)
        if unit not in self._outages:
            self._outages[unit] = Outage(unit, now_s)
            self.found.outages.append(self._outages[unit])

    def _give_up(self, number: int, now_s: float) -> list[Sending]:
        sending = self.found.sendings[number]
        if self._settled(number) or self._tries[sending.batch][-1] != sending.server:
            return []
        self._record_outage(sending.server, now_s)
        if len(self._tries[sending.batch]) <= self.rules.most:
            return [self.send(sending.batch, now_s)]
        if all(self._unit(server) in self._outages for server in range(len(self.servers))):
            words = ", ".join(self.names[node] for node in sorted({server.node for server in self.servers}))
            raise NoServerError(f"batch {sending.batch} was sent {len(self._tries[sending.batch])} times; {words}: "
                               "no server with the model's tables answers")  # fmt: skip
        if sending.batch not in self.found.lost:
            self.found.lost.append(sending.batch)
        return []


UNNUMBERED = -1
"""Placeholder in names for the number of a sending."""

PieceKey = tuple[int, int, int]
"""Requests in a batch, number of the node, card whose turn it is."""


@dataclass(frozen=True)
class Piece:
    """The operations of all ranks for one batch.

    Attributes:
        key: The batch's size, its node and its card.
        plan: The operations.
        answers: Indices of the answer's parts in the plan of the rank where requests arrive, from first to last.
    """

    key: PieceKey
    plan: JobPlan
    answers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Dispatching:
    """The inputs of a dispatcher, and the operations for each batch that it may dispatch.

    Attributes:
        rules: Rules by which a server is chosen.
        entry: Rank that makes the decisions.
        nodes: Ranks of each node, with the host's rank first.
        names: Names of the nodes' hosts.
        servers: The servers.
        sizes: Size of each batch.
        start: Plans before any decision; the plan of `entry` has the times at which batches are closed.
        pieces: Operations for each batch size, node and card.
    """

    rules: DispatchRules
    entry: int
    nodes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    servers: tuple[Server, ...]
    sizes: tuple[int, ...]
    start: JobPlan
    pieces: tuple[Piece, ...]

    def dispatcher(self) -> Dispatcher:
        """Return a dispatcher for one step."""
        return Dispatcher(len(self.sizes), self.servers, self.names, self.rules)

    @cached_property
    def _tags(self) -> int:
        """An upper bound on the message tags of a piece."""
        operations = (op for piece in self.pieces for own in piece.plan.ranks for op in own)
        return 1 + max((op.tag for op in operations if isinstance(op, Message)), default=0)

    @cached_property
    def by_key(self) -> Mapping[PieceKey, Piece]:
        """The pieces by their keys."""
        return {piece.key: piece for piece in self.pieces}

    def key(self, sending: Sending) -> PieceKey:
        """Return the key of a sending's piece."""
        return self.sizes[sending.batch], self.servers[sending.server].node, sending.turn

    def ranks(self, key: PieceKey) -> Iterator[int]:
        """Yield the ranks that have operations in a piece."""
        return (rank for rank, own in enumerate(self.by_key[key].plan.ranks) if own)

    def operations(self, key: PieceKey, number: int, rank: int, base: int) -> list[Operation]:
        """Return a rank's operations for a sending, to append to a plan of `base` operations."""
        return [self._numbered(one, number, base) for one in self.by_key[key].plan.ranks[rank]]

    def _numbered(self, one: Operation, number: int, base: int) -> Operation:
        name = one.name.replace(str(UNNUMBERED), str(number))
        # a separate stream, so that sendings to different servers do not wait for each other
        queued = one.stream.startswith(QUEUE)
        stream = one.stream if queued else f"{one.stream.replace(str(UNNUMBERED), '')} {number}"
        after = tuple(base + index for index in one.after)
        if isinstance(one, Message):
            tag = number * self._tags + one.tag
            return replace(one, name=name, stream=stream, after=after, tag=tag)
        return replace(one, name=name, stream=stream, after=after)


@dataclass(frozen=True, eq=False)
class ExecutedPlan:
    """The operations that ranks executed in a step.

    Attributes:
        plan: The operations that they executed.
        dispatched: The dispatcher's decisions.
        answers: By sending, indices of the answer's parts in the plan of `entry`.
    """

    plan: JobPlan
    dispatched: DispatchLog
    answers: Mapping[int, tuple[int, ...]]


class GrowingPlan:
    """A tracker of the ranks' plans as sendings add to them.

    Attributes:
        answers: By sending, indices of the answer's parts in the plan of `entry`. answered: The sending, by the index
        of its answer's last part.
    """

    def __init__(self, dispatching: Dispatching) -> None:
        self.dispatching = dispatching
        self.answers: dict[int, tuple[int, ...]] = {}
        self.answered: dict[int, int] = {}

    def part(self, key: PieceKey, number: int, rank: int, plan: Sequence[Operation]) -> list[Operation]:
        """Return the operations that a rank adds to its plan for a sending."""
        base = len(plan)
        if rank == self.dispatching.entry:
            answers = self.dispatching.by_key[key].answers
            self.answers[number] = tuple(base + index for index in answers)
            self.answered[base + answers[-1]] = number
        return self.dispatching.operations(key, number, rank, base)
