"""Send tokens: of replicas in a building one at a time sends to another building (Atlas, arXiv:2411.14458).

Who has the token sends for as long as its message takes alone, then passes it on. To a rank's plan this adds, around
each such message: that it waits for the token, a pause, and that the next replica gets it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.workload.operations import GroupCollective, Message, Operation, Pause, RankPlan, replace_fields
from testbed.workload.parallelism import PIPELINE
from testbed.workload.plan_options import SendToken
from testbed.workload.plan_patterns import Pattern, Relocation, relocate

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

    def end(self, token: Token, after: tuple[int, ...], *, sends: bool) -> Message:
        """The one of a token that this rank has."""
        name, stream, tag = f"token {token.number}", f"token {self.peer}", self.tag(token)
        return Message(name, stream, TOKEN, after, peer=token.replica, numel=1, tag=tag, sends=sends)

    def tag(self, token: Token) -> int:
        """Of its messages."""
        return 2 * token.number + self.forward


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


class Token(NamedTuple):
    """Word of whose turn it is: the number of its message among those of a turn, and the replica at the other end."""

    number: int
    replica: int


class Taken(NamedTuple):
    """A message that waits for its turn, and its place in the pattern without.

    waited: the token that it waits for, which the first one of all does not; passed: the one that goes on behind it.
    """

    place: int
    turn: Turn
    waited: Token | None
    passed: Token | None


class TokenPattern(Pattern):
    """What a rank with this move does by a pattern, where it takes these turns. Peers and groups are the plan's."""

    def __init__(self, plain: Pattern, move: Relocation | None, turns: Sequence[Turn]) -> None:
        super().__init__(())
        self.plain, self.move, self.turns = plain, move, tuple(turns)

    @classmethod
    def of(cls, plain: Pattern, move: Relocation | None, turns: Sequence[Turn]) -> TokenPattern:
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
            places, own, many = sends.get(peer, ()), turn.own, len(turn.replicas)
            before, behind = turn.replicas[own - 1], turn.replicas[(own + 1) % many]
            for number, place in enumerate(places):
                waited = Token(number, before) if number or own else None
                following = (
                    number + (own + 1) // many
                )  # the last one's token is the first one's for the next message
                passed = Token(following, behind) if following < len(places) else None
                found.append(Taken(place, turn, waited, passed))
        return sorted(found)

    @cached_property
    def delayed(self) -> list[Message]:
        """Those that wait for their turn, as they are in the pattern without."""
        operations = self.plain.operations
        return [own for one in self.taken if isinstance(own := operations[one.place], Message)]

    @cached_property
    def places(self) -> Places:
        """Of these there."""
        return np.array([one.place for one in self.taken], dtype=np.int64)

    @cached_property
    def messages(self) -> Places:
        """Where these stand: behind the token that they wait for, before their pause."""
        return self.at[self.places]

    @cached_property
    def waiting(self) -> NDArray[np.bool_]:
        """Which of those wait for a token."""
        return np.array([one.waited is not None for one in self.taken], dtype=bool)

    @cached_property
    def passing(self) -> NDArray[np.bool_]:
        """Behind the pauses of which of those the token is passed on."""
        return np.array([one.passed is not None for one in self.taken], dtype=bool)

    @cached_property
    def at(self) -> Places:
        """Where the operations of the pattern without turns stand in this one."""
        added = np.zeros(len(self.plain) + 1, dtype=np.int64)
        added[self.places] += self.waiting
        added[self.places + 1] += 1 + self.passing
        return np.arange(len(self.plain)) + np.cumsum(added)[:-1]

    def __len__(self) -> int:
        return len(self.plain) + len(self.taken) + int(self.waiting.sum() + self.passing.sum())

    @cached_property
    def operations(self) -> RankPlan:
        """Made when asked for."""
        return tuple(chain.from_iterable(map(self._with_turn, range(len(self.plain)))))

    @cached_property
    def _by_place(self) -> dict[int, Taken]:
        return {one.place: one for one in self.taken}

    def _with_turn(self, place: int) -> list[Operation]:
        """An operation of the pattern without turns as it is in this one, with what its turn takes."""
        own, at, taken = self.plain.operations[place], self.at, self._by_place.get(place)
        if self.move is not None and isinstance(own, GroupCollective | Message):
            own = relocate(own, *self.move)
        own = replace_fields(own, after=tuple(at[list(own.after)].tolist()))
        if taken is None:
            return [own]
        assert isinstance(own, Message)
        turn, here, found = taken.turn, int(at[place]), list[Operation]()
        if taken.waited is not None:
            found.append(turn.end(taken.waited, (), sends=False))
            own = replace_fields(own, after=(*own.after, here - 1))
        name, stream = f"token of {own.name}", f"token {turn.peer}"
        found += [own, Pause(name, stream, TOKEN, own.after, turn.seconds(own))]
        if taken.passed is not None:
            found.append(turn.end(taken.passed, (here + 1,), sends=True))
        return found

    @cached_property
    def tokens(self) -> list[tuple[int, bool, int]]:
        """Ends of tokens: those that are waited for, in their messages' order; then those that are passed on.

        Of each the other end's rank, whether it is sent there, and its tag.
        """
        waited = [(one.waited.replica, False, one.turn.tag(one.waited)) for one in self.taken if one.waited]
        passed = [(one.passed.replica, True, one.turn.tag(one.passed)) for one in self.taken if one.passed]
        return waited + passed

    @cached_property
    def token_places(self) -> Places:
        """Where these stand."""
        return np.concatenate([self.messages[self.waiting] - 1, self.messages[self.passing] + 2])

    @cached_property
    def _exchanging(self) -> Places:
        """Where those of the pattern without turns stand that are shared, then ends of tokens."""
        return np.concatenate([self.at[self.plain.shared], self.token_places])

    @cached_property
    def shared(self) -> list[int]:
        """As a pattern's."""
        places: list[int] = np.sort(self._exchanging).tolist()
        return places

    def _sort(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        numbers: dict[tuple[int, bool], int] = {}
        sorts, plain = list(self.plain.sorts), len(self.plain.exchanged)
        sorts += [numbers.setdefault((peer, sends), plain + len(numbers)) for peer, sends, _ in self.tokens]
        order = np.argsort(self._exchanging)
        _, first, which, many = np.unique(
            np.array(sorts, dtype=np.int64)[order],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        by_first = np.argsort(first)  # as the first of each come
        number_of = np.empty_like(by_first)
        number_of[by_first] = np.arange(len(by_first))
        exchanged = [self._exchanged(self.shared[place]) for place in first[by_first].tolist()]
        return number_of[which].tolist(), list(zip(exchanged, many[by_first].tolist(), strict=True))

    def _exchanged(self, place: int) -> Message | GroupCollective:
        plain = int(np.searchsorted(self._first, place, side="right")) - 1
        found = self._with_turn(plain)[place - int(self._first[plain])]
        assert isinstance(found, Message | GroupCollective)
        return found

    @cached_property
    def _first(self) -> Places:
        """Of what each operation of the pattern without turns comes to, where the first one stands."""
        found: Places = self.at.copy()
        found[self.places] -= self.waiting
        return found


def _sends(pattern: Pattern) -> Mapping[int, list[int]]:
    """Places of what is sent to other stages, by peer."""
    found = defaultdict(list)
    for place in pattern.shared:
        own = pattern.operations[place]
        if isinstance(own, Message) and own.sends and own.kind == PIPELINE:
            found[own.peer].append(place)
    return found
