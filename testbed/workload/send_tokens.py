"""Send tokens: one replica of a building at a time sends to another building (Atlas, arXiv:2411.14458).

The holder of the token sends for as long as its message would take alone, and then passes the token to the next
replica. Around each such message, a rank's plan gets a receive of the token, a pause, and a send of the token to the
next replica.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from testbed.workload.operations import GroupCollective, Message, Operation, Pause, RankPlan, replace_fields
from testbed.workload.parallelism import PIPELINE
from testbed.workload.plan import Pattern, Relocation, relocate
from testbed.workload.plan_options import SendToken

TOKEN = "send_token"  # kind of the messages that pass a token


class Turn(NamedTuple):
    """A rank's position among the replicas that take turns to send to a pipeline neighbour.

    Attributes:
        peer: The rank that it sends to.
        replicas: Ranks that take turns.
        own: Index of this rank among them.
        itemsize: Bytes of an element.
        rate: Bytes per second of a message that is alone on its path.
        forward: Whether the peer comes later in the pipeline.
    """

    peer: int
    replicas: tuple[int, ...]
    own: int
    itemsize: int
    rate: float
    forward: bool

    def seconds(self, message: Message) -> float:
        """Return the seconds that a message takes if nothing else uses the path."""
        return message.numel * self.itemsize / self.rate

    def end(self, token: Token, after: tuple[int, ...], *, sends: bool) -> Message:
        """Return this rank's end of the message that carries a token."""
        name, stream, tag = f"token {token.number}", f"token {self.peer}", self.tag(token)
        return Message(name, stream, TOKEN, after, peer=token.replica, numel=1, tag=tag, sends=sends)

    def tag(self, token: Token) -> int:
        """Return the tag of the message that carries a token."""
        return 2 * token.number + self.forward


def find_turns(
    rank: int, lines: Sequence[Sequence[int]], tokens: Mapping[tuple[int, int], SendToken], itemsize: int
) -> Iterator[Turn]:
    """Yield the turns of a rank that shares a direction between buildings with other replicas.

    Args:
        rank: The rank.
        lines: Ranks of its pipeline and of the replicas of that pipeline.
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
    """A passed token: the number of the message that it permits within a turn, and the replica at the other end."""

    number: int
    replica: int


def with_tokens(base: Pattern, relocation: Relocation | None, turns: tuple[Turn, ...]) -> Pattern:
    """Return a pattern, relocated to a rank, with send tokens added; always the same object.

    Its peers and groups are those of the plan.
    """
    return base.cached(
        ("turns", relocation, turns), lambda: Pattern(_with_tokens(base.operations, relocation, turns))
    )


def _with_tokens(operations: RankPlan, relocation: Relocation | None, turns: Sequence[Turn]) -> RankPlan:
    """Return the operations, with a receive, a pause and a send around each message that waits for its turn."""
    if relocation is not None:
        operations = tuple(
            relocate(own, *relocation) if isinstance(own, GroupCollective | Message) else own
            for own in operations
        )
    sends = _token_sends(operations, turns)
    places: list[int] = []  # indices of the operations after tokens are inserted
    end = 0
    for index in range(len(operations)):
        waited, passed = sends[index][1:] if index in sends else (None, None)
        places.append(end + (waited is not None))
        end = places[-1] + 1 + (index in sends) + (passed is not None)
    found: list[Operation] = []
    for index, operation in enumerate(operations):
        own = replace_fields(operation, after=tuple(places[earlier] for earlier in operation.after))
        if index not in sends:
            found.append(own)
            continue
        assert isinstance(own, Message)
        turn, waited, passed = sends[index]
        if waited is not None:
            found.append(turn.end(waited, (), sends=False))
            own = replace_fields(own, after=(*own.after, places[index] - 1))
        pause = Pause(f"token of {own.name}", f"token {turn.peer}", TOKEN, own.after, turn.seconds(own))
        found += [own, pause]
        if passed is not None:
            found.append(turn.end(passed, (places[index] + 1,), sends=True))
    return tuple(found)


def _token_sends(
    operations: RankPlan, turns: Sequence[Turn]
) -> dict[int, tuple[Turn, Token | None, Token | None]]:
    """Return, by index, the turn of each message that waits for one, with the tokens that it awaits and passes on.

    The very first message does not wait for a token, and the last one does not pass one on.
    """
    by_peer: dict[int, list[int]] = defaultdict(list)
    for index, own in enumerate(operations):
        if isinstance(own, Message) and own.sends and own.kind == PIPELINE:
            by_peer[own.peer].append(index)
    found: dict[int, tuple[Turn, Token | None, Token | None]] = {}
    for turn in turns:
        indices, own_turn, count = by_peer[turn.peer], turn.own, len(turn.replicas)
        before, behind = turn.replicas[own_turn - 1], turn.replicas[(own_turn + 1) % count]
        for number, index in enumerate(indices):
            waited = Token(number, before) if number or own_turn else None
            # the last replica passes the token to the first one, for its next message
            following = number + (own_turn + 1) // count
            passed = Token(following, behind) if following < len(indices) else None
            found[index] = turn, waited, passed
    return found
