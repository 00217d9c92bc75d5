"""Who serves a batch, decided when it goes, by what was sent before and which answers have come. Emulated seconds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from testbed.errors import TestbedError

LEAST_OUTSTANDING, TWO_CHOICES, RANDOM, TURNS = "least_outstanding", "two_choices", "random", "turns"


class NoServerError(TestbedError):
    """A batch that nobody is left to serve."""


@dataclass(frozen=True)
class Server:
    """What a batch is given to: a card that has all of a model, or a node. node: by its number; turns: of its cards."""

    node: int
    turns: tuple[int, ...]


@dataclass(frozen=True)
class DispatchRules:
    """How one is chosen. retry_s: how long an answer is waited for, None for ever; most: times that a batch goes again.

    by_node: whether all servers of a node are avoided once one of them owes an answer for too long.
    """

    policy: str
    retry_s: float | None = None
    most: int = 0
    by_node: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Sending:
    """A batch that goes to a server, for the first time or again: which of its cards' turn it is, when."""

    number: int
    batch: int
    server: int
    turn: int
    at_s: float


@dataclass
class Outage:
    """A server, or a node, that owed an answer for too long: when it was noticed, and when it answered after all."""

    unit: int
    noticed_s: float
    back_s: float | None = None


@dataclass
class DispatchLog:
    """What came of all batches. first: of each that was answered, the sending that was answered first. lost: never."""

    sendings: list[Sending] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def since(self, start_s: float) -> DispatchLog:
        """With times from this moment on."""
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

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> DispatchLog:
        """The inverse, after a way through JSON."""
        return cls(
            [Sending(**one) for one in document["sendings"]],
            {int(batch): number for batch, number in document["first"].items()},
            document["lost"],
            [Outage(**one) for one in document["outages"]],
        )


class Dispatcher:
    """Where requests arrive. It knows what it has sent and what was answered, when it hears of it, and nothing else."""

    def __init__(self, batches: int, servers: Sequence[Server], names: Sequence[str], rules: DispatchRules):
        """names: of nodes, for people."""
        self.batches, self.servers, self.names, self.rules = batches, servers, names, rules
        self.found = DispatchLog()
        self._draw = Random(f"{rules.seed}/dispatch")
        self._owed: list[set[int]] = [set() for _ in servers]
        self._turns = [0] * len(servers)
        self._used = [-1] * len(servers)  # the last sending to each
        self._tries: dict[int, list[int]] = {}
        self._due: list[tuple[float, int]] = []
        self._out: dict[int, Outage] = {}

    def _unit(self, server: int) -> int:
        return self.servers[server].node if self.rules.by_node else server

    @property
    def over(self) -> bool:
        """Whether all are answered or lost, and nobody who answers at all owes anything."""
        if len(self.found.first) + len(self.found.lost) < self.batches:
            return False
        return not any(owed for server, owed in enumerate(self._owed) if self._unit(server) not in self._out)

    @property
    def due_s(self) -> float | None:
        """When an answer that is still owed has been waited for long enough."""
        while self._due and self._settled(self._due[0][1]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _settled(self, number: int) -> bool:
        sending = self.found.sendings[number]
        return sending.batch in self.found.first or number not in self._owed[sending.server]

    def send(self, batch: int, now_s: float) -> Sending:
        """Choose who gets a batch now."""
        tried = self._tries.setdefault(batch, [])
        server = self._choose({self._unit(one) for one in tried})
        turns = self.servers[server].turns
        turn = turns[self._turns[server] % len(turns)]
        self._turns[server] += 1
        sending = Sending(len(self.found.sendings), batch, server, turn, now_s)
        self.found.sendings.append(sending)
        self._owed[server].add(sending.number)
        self._used[server] = sending.number
        tried.append(server)
        if self.rules.retry_s is not None:
            heapq.heappush(self._due, (now_s + self.rules.retry_s, sending.number))
        return sending

    def _choose(self, tried: set[int]) -> int:
        """Of those that answer and have not had the batch; of those that answer; of all."""
        every = range(len(self.servers))
        well = [server for server in every if self._unit(server) not in self._out]
        fresh = [server for server in well if self._unit(server) not in tried]
        among = fresh or well or list(every)
        if self.rules.policy == RANDOM:
            return self._draw.choice(among)
        if self.rules.policy == TWO_CHOICES:
            among = self._draw.sample(among, min(2, len(among)))
        if self.rules.policy in (LEAST_OUTSTANDING, TWO_CHOICES):
            fewest = min(len(self._owed[server]) for server in among)
            among = [server for server in among if len(self._owed[server]) == fewest]
        # of equals whoever was used the longest ago; before all were, in their order
        return min(among, key=lambda server: (self._used[server], server))

    def answered(self, number: int, now_s: float) -> None:
        """All of a sending's answer has come; whoever sent it is well."""
        sending = self.found.sendings[number]
        self._owed[sending.server].discard(number)
        if sending.batch not in self.found.lost:
            self.found.first.setdefault(sending.batch, number)
        if (outage := self._out.pop(self._unit(sending.server), None)) is not None:
            outage.back_s = now_s

    def due(self, now_s: float) -> list[Sending]:
        """What goes again, since its answer has been waited for long enough. NoServerError."""
        again = []
        while (due_s := self.due_s) is not None and due_s <= now_s:
            _, number = heapq.heappop(self._due)
            again += self._give_up(number, due_s)
        return again

    def lose(self, servers: Sequence[int], now_s: float) -> list[Sending]:
        """The connection to some is gone: all that they owe goes again. NoServerError."""
        again = []
        for server in servers:
            self._note(server, now_s)
        for server in servers:
            for number in sorted(self._owed[server]):
                again += self._give_up(number, now_s)
        return again

    def _note(self, server: int, now_s: float) -> None:
        unit = self._unit(server)
        if unit not in self._out:
            self._out[unit] = Outage(unit, now_s)
            self.found.outages.append(self._out[unit])

    def _give_up(self, number: int, now_s: float) -> list[Sending]:
        sending = self.found.sendings[number]
        if self._settled(number) or self._tries[sending.batch][-1] != sending.server:
            return []
        self._note(sending.server, now_s)
        if len(self._tries[sending.batch]) <= self.rules.most:
            return [self.send(sending.batch, now_s)]
        if all(self._unit(server) in self._out for server in range(len(self.servers))):
            words = ", ".join(self.names[node] for node in sorted({server.node for server in self.servers}))
            raise NoServerError(f"batch {sending.batch} was sent {len(self._tries[sending.batch])} times; {words}: "
                               "none that has the model's tables answers any more")  # fmt: skip
        if sending.batch not in self.found.lost:
            self.found.lost.append(sending.batch)
        return []
