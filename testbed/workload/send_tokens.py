"""Send tokens: one replica of a building at a time sends to another building (Atlas, arXiv:2411.14458).

The holder of the token sends for as long as its message would take alone, then passes the token on. Around each such
message a rank's plan gets a receive of the token, a pause, and a send of the token to the next replica.
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

TOKEN = "send_token"  # kind of the messages that pass a token

Indices = NDArray[np.int64]


class Turn(NamedTuple):
    """A rank's place among the replicas that take turns to send to a pipeline neighbour.

    Attributes:
        peer: The rank that it sends to.
        replicas: Ranks that take turns.
        own: Index of this rank among them.
        itemsize: Bytes of an element.
        rate: Bytes per second of a message that has the path to itself.
        forward: Whether the peer comes later in the pipeline.
    """

    peer: int
    replicas: tuple[int, ...]
    own: int
    itemsize: int
    rate: float
    forward: bool

    def seconds(self, message: Message) -> float:
        """Return the seconds that a message takes alone."""
        return message.numel * self.itemsize / self.rate

    def end(self, token: Token, after: tuple[int, ...], *, sends: bool) -> Message:
        """Return this rank's end of a token's message."""
        name, stream, tag = f"token {token.number}", f"token {self.peer}", self.tag(token)
        return Message(name, stream, TOKEN, after, peer=token.replica, numel=1, tag=tag, sends=sends)

    def tag(self, token: Token) -> int:
        """Return the tag of a token's message."""
        return 2 * token.number + self.forward


def find_turns(
    rank: int, lines: Sequence[Sequence[int]], tokens: Mapping[tuple[int, int], SendToken], itemsize: int
) -> Iterator[Turn]:
    """Yield the turns of a rank that shares a direction between buildings with other replicas.

    Args:
        rank: The rank.
        lines: Ranks of its pipeline and of that pipeline's replicas.
        tokens: Send token of each pair of ranks that needs one.
        itemsize: Bytes of an element.
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
    """A passed token: the number, within a turn, of the message that it permits, and the replica at the other end."""

    number: int
    replica: int


class TokenSend(NamedTuple):
    """A message that waits for its turn.

    Attributes:
        place: Index in the base pattern.
        turn: The turn that it waits for.
        waited: Token that it waits for; None for the very first message.
        passed: Token that is passed on after it; None after the last message.
    """

    place: int
    turn: Turn
    waited: Token | None
    passed: Token | None


class TokenPattern(Pattern):
    """A base pattern, relocated to a rank, with send tokens added. Peers and groups are the plan's own."""

    def __init__(self, base: Pattern, relocation: Relocation | None, turns: Sequence[Turn]) -> None:
        super().__init__(())
        self.base, self.relocation, self.turns = base, relocation, tuple(turns)

    @classmethod
    def of(cls, base: Pattern, relocation: Relocation | None, turns: Sequence[Turn]) -> TokenPattern:
        """Return the pattern for these turns; the same object on every call."""
        key = "turns", relocation, tuple(turns)
        return base.cached(key, lambda: cls(base, relocation, turns))

    @cached_property
    def token_sends(self) -> list[TokenSend]:
        """The messages that wait for a turn, in order."""
        sends = self.base.cached("sends", partial(_sends, self.base))
        found = []
        for turn in self.turns:
            peer = turn.peer if self.relocation is None else self.relocation.peers.index(turn.peer)
            places, own, count = sends.get(peer, ()), turn.own, len(turn.replicas)
            before, behind = turn.replicas[own - 1], turn.replicas[(own + 1) % count]
            for number, place in enumerate(places):
                waited = Token(number, before) if number or own else None
                # the last replica passes the token to the first one, for its next message
                following = number + (own + 1) // count
                passed = Token(following, behind) if following < len(places) else None
                found.append(TokenSend(place, turn, waited, passed))
        return sorted(found)

    @cached_property
    def delayed(self) -> list[Message]:
        """Those messages, as operations of the base pattern."""
        operations = self.base.operations
        return [own for one in self.token_sends if isinstance(own := operations[one.place], Message)]

    @cached_property
    def base_indices(self) -> Indices:
        """Their indices in the base pattern."""
        return np.array([one.place for one in self.token_sends], dtype=np.int64)

    @cached_property
    def message_indices(self) -> Indices:
        """Their indices in this pattern: after the receive of the token, before the pause."""
        return self.new_index[self.base_indices]

    @cached_property
    def receives_token(self) -> NDArray[np.bool_]:
        """Which of those messages wait for a token."""
        return np.array([one.waited is not None for one in self.token_sends], dtype=bool)

    @cached_property
    def passes_token(self) -> NDArray[np.bool_]:
        """After which of those messages the token is passed on."""
        return np.array([one.passed is not None for one in self.token_sends], dtype=bool)

    @cached_property
    def new_index(self) -> Indices:
        """The index in this pattern of each operation of the base pattern."""
        added = np.zeros(len(self.base) + 1, dtype=np.int64)
        added[self.base_indices] += self.receives_token
        added[self.base_indices + 1] += 1 + self.passes_token
        return np.arange(len(self.base)) + np.cumsum(added)[:-1]

    def __len__(self) -> int:
        return (
            len(self.base) + len(self.token_sends) + int(self.receives_token.sum() + self.passes_token.sum())
        )

    @cached_property
    def operations(self) -> RankPlan:
        """The operations, made on first use."""
        return tuple(chain.from_iterable(map(self._with_tokens, range(len(self.base)))))

    @cached_property
    def _by_place(self) -> dict[int, TokenSend]:
        return {one.place: one for one in self.token_sends}

    def _with_tokens(self, place: int) -> list[Operation]:
        """Return what an operation of the base pattern becomes, with token operations around it."""
        own, at, taken = self.base.operations[place], self.new_index, self._by_place.get(place)
        if self.relocation is not None and isinstance(own, GroupCollective | Message):
            own = relocate(own, *self.relocation)
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
    def token_ends(self) -> list[tuple[int, bool, int]]:
        """Ends of token messages: all receives in their messages' order, then all sends.

        Each is the rank at the other end, whether it is sent there, and the tag.
        """
        waited = [
            (one.waited.replica, False, one.turn.tag(one.waited)) for one in self.token_sends if one.waited
        ]
        passed = [
            (one.passed.replica, True, one.turn.tag(one.passed)) for one in self.token_sends if one.passed
        ]
        return waited + passed

    @cached_property
    def token_indices(self) -> Indices:
        """The indices of `token_ends` in this pattern."""
        return np.concatenate(
            [self.message_indices[self.receives_token] - 1, self.message_indices[self.passes_token] + 2]
        )

    @cached_property
    def _unsorted_shared(self) -> Indices:
        """Indices of the base pattern's shared operations, then of `token_ends`."""
        return np.concatenate([self.new_index[self.base.shared_indices], self.token_indices])

    @cached_property
    def shared_indices(self) -> list[int]:
        """Indices of the operations that involve other ranks."""
        places: list[int] = np.sort(self._unsorted_shared).tolist()
        return places

    def _sort(self) -> tuple[list[int], list[tuple[Message | GroupCollective, int]]]:
        numbers: dict[tuple[int, bool], int] = {}
        kinds, base = list(self.base.shared_kinds), len(self.base.exchanges)
        kinds += [
            numbers.setdefault((peer, sends), base + len(numbers)) for peer, sends, _ in self.token_ends
        ]
        order = np.argsort(self._unsorted_shared)
        _, first, which, count = np.unique(
            np.array(kinds, dtype=np.int64)[order],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        by_first = np.argsort(first)  # in order of first appearance
        number_of = np.empty_like(by_first)
        number_of[by_first] = np.arange(len(by_first))
        exchanged = [self._shared_operation(self.shared_indices[place]) for place in first[by_first].tolist()]
        return number_of[which].tolist(), list(zip(exchanged, count[by_first].tolist(), strict=True))

    def _shared_operation(self, place: int) -> Message | GroupCollective:
        base = int(np.searchsorted(self._first_index, place, side="right")) - 1
        found = self._with_tokens(base)[place - int(self._first_index[base])]
        assert isinstance(found, Message | GroupCollective)
        return found

    @cached_property
    def _first_index(self) -> Indices:
        """Index of the first operation that each operation of the base pattern becomes."""
        found: Indices = self.new_index.copy()
        found[self.base_indices] -= self.receives_token
        return found


def _sends(pattern: Pattern) -> Mapping[int, list[int]]:
    """Return the indices of messages to other stages, by peer."""
    found = defaultdict(list)
    for place in pattern.shared_indices:
        own = pattern.operations[place]
        if isinstance(own, Message) and own.sends and own.kind == PIPELINE:
            found[own.peer].append(place)
    return found
