"""Send tokens: of replicas in a building one at a time sends to another building (Atlas, arXiv:2411.14458).

Who has the token sends for as long as its message takes alone, then passes it on. To a rank's plan this adds, around
each such message: that it waits for the token, a pause, and that the next replica gets it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.workload.operations import GroupCollective, Message, Operation, Pause, RankPlan, altered
from testbed.workload.options import SendToken
from testbed.workload.parallelism import PIPELINE
from testbed.workload.patterns import Move, Pattern, moved

TOKEN = "send_token"  # the kind of what passes it on

Places = NDArray[np.int64]


class Turn(NamedTuple):
    """A rank's at what it sends to a `peer`. replicas: who takes turns, this rank at the place `own`.

    rate: bytes per second of a message alone; itemsize: bytes of an element. forward: whether the peer comes later in
    the pipeline.
    """

    peer: int
    replicas: tuple[int, ...]
    own: int
    itemsize: int
    rate: float
    forward: bool

    def seconds(self, message: Message) -> float:
        """What a message takes alone."""
        return message.numel * self.itemsize / self.rate

    def token(self, number: int, replica: int, *, sends: bool) -> Message:
        """One end of that with which a replica may send its message of this number."""
        name, stream, tag = f"token {number}", f"token {self.peer}", 2 * number + self.forward
        return Message(name, stream, TOKEN, (), peer=replica, numel=1, tag=tag, sends=sends)


def turns_of(
    rank: int, lines: Sequence[Sequence[int]], tokens: Mapping[tuple[int, int], SendToken], itemsize: int
) -> Iterator[Turn]:
    """A rank's, where there are others: replicas that send from its building to the same one as it does.

    lines: the ranks of its pipeline, and of that one's replicas.
    """
    line = next(line for line in lines if rank in line)
    own = line.index(rank)
    for there, peer in enumerate(line):
        if (token := tokens.get((rank, peer))) is None:
            continue
        pairs = [(one[own], one[there]) for one in lines]
        replicas = tuple(
            pair[0] for pair in pairs if pair in tokens and tokens[pair].direction == token.direction
        )
        if len(replicas) > 1:
            yield Turn(peer, replicas, replicas.index(rank), itemsize, token.rate, there > own)


class Taken(NamedTuple):
    """A message that waits for its turn: its place in the pattern without, and its number among those of the turn.

    waits: whether for a token, which the first one of all has; after: who has the next turn, with which number.
    """

    place: int
    turn: Turn
    number: int
    waits: bool
    after: tuple[int, int] | None


class TakingTurns(Pattern):
    """What a rank with this move does by a pattern, where it takes these turns. Peers and groups are the plan's."""

    def __init__(self, plain: Pattern, move: Move | None, turns: Sequence[Turn]) -> None:
        super().__init__(())
        self.plain, self.move, self.turns = plain, move, tuple(turns)

    @classmethod
    def of(cls, plain: Pattern, move: Move | None, turns: Sequence[Turn]) -> TakingTurns:
        """The same one whenever it is asked for."""
        key = "turns", move, tuple(turns)
        return plain.remembered(key, lambda: cls(plain, move, turns))

    @cached_property
    def taken(self) -> list[Taken]:
        """In the order of their places."""
        sends = self.plain.remembered("sends", partial(_sends, self.plain))
        found = []
        for turn in self.turns:
            peer = turn.peer if self.move is None else self.move.line.index(turn.peer)
            places, last = sends.get(peer, ()), turn.own == len(turn.replicas) - 1
            for number, place in enumerate(places):
                after = (number + 1, turn.replicas[0]) if last else (number, turn.replicas[turn.own + 1])
                ends = after[0] == len(places)
                found.append(Taken(place, turn, number, bool(number or turn.own), None if ends else after))
        return sorted(found)

    @cached_property
    def delayed(self) -> list[Message]:
        """Those that wait for their turn, as they are in the pattern without."""
        operations = self.plain.operations
        return [own for one in self.taken if isinstance(own := operations[one.place], Message)]

    @cached_property
    def messages(self) -> Places:
        """Where these stand: behind the token that they wait for, before their pause."""
        return self.at[[one.place for one in self.taken]]

    @cached_property
    def waiting(self) -> NDArray[np.bool_]:
        """Which of those wait for a token."""
        return np.array([one.waits for one in self.taken], dtype=bool)

    @cached_property
    def passing(self) -> NDArray[np.bool_]:
        """Behind the pauses of which of those the token is passed on."""
        return np.array([one.after is not None for one in self.taken], dtype=bool)

    @cached_property
    def at(self) -> Places:
        """Where the operations of the pattern without turns stand in this one."""
        added = np.zeros(len(self.plain) + 1, dtype=np.int64)
        places = np.array([one.place for one in self.taken], dtype=np.int64)
        added[places] += self.waiting
        added[places + 1] += 1 + self.passing
        return np.arange(len(self.plain)) + np.cumsum(added)[:-1]

    def __len__(self) -> int:
        return len(self.plain) + len(self.taken) + int(self.waiting.sum() + self.passing.sum())

    @property
    def operations(self) -> RankPlan:
        """Made when asked for."""
        return self.remembered("operations", self._operations)

    def _operations(self) -> RankPlan:
        at, taken = self.at.tolist(), {one.place: one for one in self.taken}
        found: list[Operation] = []
        for place, operation in enumerate(self.plain.operations):
            own = operation
            if self.move is not None and isinstance(own, GroupCollective | Message):
                own = moved(own, *self.move)
            own = altered(own, after=tuple(at[earlier] for earlier in own.after))
            turn = taken.get(place)
            found += [own] if turn is None else _around(own, turn, len(found))
        return tuple(found)

    @cached_property
    def tokens(self) -> list[Message]:
        """Ends of tokens: those that are waited for, in their messages' order; then those that are passed on."""
        waited = [
            one.turn.token(one.number, one.turn.replicas[one.turn.own - 1], sends=False)
            for one in self.taken
            if one.waits
        ]
        passed = [one.turn.token(*one.after, sends=True) for one in self.taken if one.after is not None]
        return waited + passed

    @cached_property
    def token_places(self) -> Places:
        """Where these stand."""
        return np.concatenate([self.messages[self.waiting] - 1, self.messages[self.passing] + 2])

    @cached_property
    def shared(self) -> list[int]:
        """As a pattern's."""
        places: list[int] = np.sort(np.concatenate([self.at[self.plain.shared], self.token_places])).tolist()
        return places

    def _sort(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        sorts: list[int] = list(self.plain.sorts)
        kinds = [own if self.move is None else moved(own, *self.move) for own, _ in self.plain.exchanged]
        numbers: dict[tuple[int, bool], int] = {}
        for token in self.tokens:
            number = numbers.setdefault((token.peer, token.sends), len(kinds))
            if number == len(kinds):
                kinds.append(token)
            sorts.append(number)
        order = np.argsort(np.concatenate([self.at[self.plain.shared], self.token_places]))
        old, first, which, many = np.unique(
            np.array(sorts, dtype=np.int64)[order],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        by_first = np.argsort(first)  # as the first of each kind come
        number_of = np.empty_like(by_first)
        number_of[by_first] = np.arange(len(by_first))
        exchanged = [
            (kinds[kind], count)
            for kind, count in zip(old[by_first].tolist(), many[by_first].tolist(), strict=True)
        ]
        return number_of[which].tolist(), exchanged

    def _using(self, algorithm: str) -> Pattern:
        return TakingTurns.of(self.plain.using(algorithm), self.move, self.turns)


def _sends(pattern: Pattern) -> Mapping[int, list[int]]:
    """Places of what is sent to other stages, by peer."""
    found = defaultdict(list)
    for place in pattern.shared:
        own = pattern.operations[place]
        if isinstance(own, Message) and own.sends and own.kind == PIPELINE:
            found[own.peer].append(place)
    return found


def _around(message: Operation, taken: Taken, first: int) -> list[Operation]:
    """A message with what its turn takes; first: the place of the first one of these."""
    assert isinstance(message, Message)
    turn, found = taken.turn, list[Operation]()
    if taken.waits:
        found.append(turn.token(taken.number, turn.replicas[turn.own - 1], sends=False))
        message = altered(message, after=(*message.after, first))
    pause = Pause(
        f"token of {message.name}", f"token {turn.peer}", TOKEN, message.after, turn.seconds(message)
    )
    found += [message, pause]
    if taken.after is not None:
        passed = turn.token(*taken.after, sends=True)
        found.append(replace(passed, after=(first + len(found) - 1,)))
    return found
