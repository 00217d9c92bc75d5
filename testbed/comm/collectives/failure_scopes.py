"""What fails together: a communicator's operations. A lost peer ends those of the communicators that contain it.

In the terms of NCCL and of MPI's fault tolerance (ULFM): `revoke` is what `ncclCommAbort` and `MPIX_Comm_revoke` do,
told to all members; what members then decide together goes by `Agreement`. Both travel as notes beside all messages.
"""

from __future__ import annotations

import json
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from testbed.comm.transport import PeerLost, Transport, TransportError
from testbed.comm.transport.base import MAX_REASON_BYTES, PeerEvents, find_peer_events

REVOKE, AGREE = "revoke", "agree"
# communicators and agreements that peers tell of before this rank has come to them: sanity
_MOST_EARLY = 10_000


class Revoked(TransportError):
    """A member of the communicator has aborted it: nothing but `shrink` and `agree` can be done with it any more."""

    def __init__(self, rank: int, by: int, reason: str) -> None:
        self.rank, self.by, self.reason = rank, by, reason
        who = "this rank" if by == rank else f"rank {by}"
        super().__init__(f"rank {rank}: {who} aborted the communicator: {reason}")


class Scope:
    """The operations of one communicator. ranks: its members' numbers on the transport. failure: what ended it."""

    def __init__(self, number: int, ranks: Iterable[int]) -> None:
        self.number = number
        self.ranks = frozenset(ranks)
        self.failure: TransportError | None = None
        self.tasks: set[Any] = set()

    def fail(self, error: TransportError) -> None:
        """End everything of it. The first error counts, but for who has aborted it, which counts for more."""
        if self.failure is not None and (self.revoked or not isinstance(error, Revoked)):
            return
        self.failure = error
        for task in sorted(self.tasks, key=lambda task: task.start_s):
            task.cancel(self.failure)
            if not self.failure.during:  # the task's says what was under way
                self.failure = task.error

    @property
    def revoked(self) -> bool:
        """Whether a member has aborted it."""
        return isinstance(self.failure, Revoked)


class Scopes:
    """All scopes of a rank, and what its peers tell about them.

    lost: peers that are known to have gone, until `come_back`. stirred: whether another thread has asked for something,
    or the transport told of something, which `settle` looks at.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._tells: PeerEvents | None = find_peer_events(transport)
        self._scopes: weakref.WeakValueDictionary[int, Scope] = weakref.WeakValueDictionary()
        self._wanted: deque[tuple[Scope, str]] = deque()
        self._heard: deque[tuple[int, bytes] | PeerLost] = deque()  # inside calls of the transport
        self._agreements: dict[tuple[int, int], Agreement] = {}
        self._votes: dict[tuple[int, int], list[tuple[int, dict[str, Any]]]] = {}  # of those not begun here
        self._early: dict[int, Revoked] = {}  # of communicators that this rank has not made yet
        self.lost: dict[int, PeerLost] = {}
        self.stirred = False
        if self._tells is not None:
            self._tells.on_note = lambda peer, data: self._hear((peer, data))
            self._tells.on_peer_lost = self._hear

    def add(self, number: int, ranks: Iterable[int]) -> Scope:
        """A communicator's; of one that contains a lost peer, or was revoked before it came to be, it has failed."""
        scope = self._scopes[number] = Scope(number, ranks)
        gone = sorted(scope.ranks & set(self.lost))
        early = self._early.pop(number, None)
        if gone:
            scope.fail(self.lost[gone[0]])
        elif early is not None:
            scope.fail(early)
        return scope

    def lose(self, error: PeerLost) -> None:
        """A peer has gone: end every scope that contains it."""
        if error.peer in self.lost:
            return
        self.lost[error.peer] = error
        for scope in list(self._scopes.values()):
            if error.peer in scope.ranks:
                scope.fail(error)
        for which, agreement in self._agreements.items():
            self._send(which, agreement.lose(error.peer))

    def come_back(self, peer: int, lost: int | None = None) -> None:
        """A lost peer's next incarnation may take part in communicators that are made from now on.

        lost: the incarnation that was lost. Where a later one is there already, its connections stay.
        """
        known = self._tells.incarnations.get(peer, 0) if self._tells is not None else 0
        if hasattr(self._transport, "forget") and (lost is None or known <= lost):
            self._transport.forget(peer)
        self.lost.pop(peer, None)

    def revoke(self, scope: Scope, reason: str) -> None:
        """Have a scope end on all its members, soon. Any thread, or signal handler."""
        self._wanted.append((scope, reason))
        self.stirred = True
        self._transport.wake()

    def settle(self) -> None:
        """Do what was asked for, and told; by the rank's own thread, outside of the transport's calls."""
        self.stirred = False
        while self._heard:
            heard = self._heard.popleft()
            if isinstance(heard, PeerLost):
                self.lose(heard)
            else:
                peer, data = heard
                try:
                    self._on_note(peer, json.loads(data))
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    self.lose(PeerLost(self._transport.rank, peer, f"it told nonsense ({error!r})"))
        while self._wanted:
            scope, reason = self._wanted.popleft()
            own = self._transport.rank
            if not scope.revoked:
                self._pass_on(scope, own, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
            scope.fail(Revoked(own, own, reason))

    def agree(self, scope: Scope, sequence: int, vote: Vote) -> Agreement:
        """Begin an agreement of a scope's members, the `sequence`-th of theirs; it goes on as they are heard."""
        which = scope.number, sequence
        agreement = self._agreements[which] = Agreement(self._transport.rank, scope.ranks)
        for peer in scope.ranks & set(self.lost):
            agreement.lose(peer)
        for peer, message in self._votes.pop(which, ()):
            self._send(which, agreement.hear(peer, message))
        self._send(which, agreement.vote(vote))
        return agreement

    def tell(self, peers: Iterable[int], document: dict[str, Any]) -> None:
        """A note to peers that are not known to have gone. TransportError where the transport has none."""
        if self._tells is None:
            raise TransportError("this transport cannot tell peers anything beside messages")
        data = json.dumps(document).encode()
        for peer in peers:
            if peer not in self.lost and peer != self._transport.rank:
                self._tells.send_note(peer, data)

    def _pass_on(self, scope: Scope, by: int, reason: str) -> None:
        if self._tells is not None:
            note = {"what": REVOKE, "communicator": scope.number, "by": by, "reason": reason}
            self.tell(sorted(scope.ranks), note)

    def _hear(self, heard: tuple[int, bytes] | PeerLost) -> None:
        self._heard.append(heard)
        self.stirred = True

    def _send(self, which: tuple[int, int], messages: Messages) -> None:
        number, sequence = which
        for peer, message in messages:
            self.tell([peer], {"what": AGREE, "communicator": number, "sequence": sequence, **message})

    def _on_note(self, peer: int, note: dict[str, Any]) -> None:
        number = int(note["communicator"])
        if note["what"] == AGREE:
            which = number, int(note["sequence"])
            if which in self._agreements:
                self._send(which, self._agreements[which].hear(peer, note))
            elif len(self._votes) < _MOST_EARLY:
                self._votes.setdefault(which, []).append((peer, note))
        elif note["what"] == REVOKE:
            error = Revoked(self._transport.rank, int(note["by"]), str(note["reason"]))
            scope = self._scopes.get(number)
            if scope is None:
                if len(self._early) < _MOST_EARLY:
                    self._early[number] = error
            elif not scope.revoked:
                # passed on: who aborted it may have died in the middle of telling
                self._pass_on(scope, error.by, error.reason)
                scope.fail(error)


Messages = list[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class Vote:
    """What is agreed on: flags, combined by AND; ranks that are out, by union; a number, by the highest."""

    flags: int
    out: frozenset[int] = frozenset()
    number: int = 0

    def with_other(self, other: Vote) -> Vote:
        """Both combined."""
        return Vote(self.flags & other.flags, self.out | other.out, max(self.number, other.number))

    def without(self, ranks: Iterable[int]) -> Vote:
        """The same with these ranks out, too."""
        return replace(self, out=self.out.union(ranks))

    def document(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"flags": self.flags, "out": sorted(self.out), "number": self.number}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Vote:
        """The inverse."""
        return cls(int(document["flags"]), frozenset(map(int, document["out"])), int(document["number"]))


class Agreement:
    """One agreement, as one member takes part in it. Each call returns messages to be told to members.

    decided: what all have agreed on, once that is known here. It must be kept and fed after that, too: others may need
    what this member knows.
    """

    def __init__(self, rank: int, ranks: Iterable[int]) -> None:
        self.rank = rank
        self.ranks = tuple(sorted(ranks))
        self.decided: Vote | None = None
        self._lost: set[int] = set()
        self._told: set[int] = set()  # of these, as the one to decide, to all others
        self._own: Vote | None = None
        self._votes: dict[int, Vote] = {}
        self._voted_to: int | None = None

    @property
    def waits_for(self) -> list[int]:
        """Members whose word is missing; for people."""
        if self._decider == self.rank:
            return [rank for rank in self._living if rank not in self._votes and rank != self.rank]
        return [self._decider]

    @property
    def _living(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self._lost]

    @property
    def _decider(self) -> int:
        return self._living[0]

    def vote(self, vote: Vote) -> Messages:
        """This member's, once."""
        self._own = vote
        self._lose_all(vote.out)
        return self._go_on()

    def lose(self, peer: int) -> Messages:
        """A member has gone."""
        if peer not in self.ranks or peer in self._lost or peer == self.rank:
            return []
        self._lost.add(peer)
        return self._go_on()

    def hear(self, peer: int, message: dict[str, Any]) -> Messages:
        """A member's message.

        Of one that is known to have gone, if only by hearsay, nothing counts: whoever decides after it may have been
        told already that nothing of it was heard here.
        """
        if peer in self._lost:
            return []
        vote = Vote.of(message["vote"])
        if message["decided"]:
            if self.decided is not None:
                return []
            self.decided = vote
            return self._go_on()  # as the one to decide, to those who have voted already
        if self.decided is not None:  # it has not heard of it
            return [(peer, self._message(self.decided, True))]
        self._votes[peer] = vote
        self._lose_all(vote.out)
        return self._go_on()

    def _lose_all(self, out: Iterable[int]) -> None:
        self._lost |= set(out).intersection(self.ranks) - {self.rank}

    def _go_on(self) -> Messages:
        if self._own is None:
            return []
        if self._decider != self.rank:
            if self._voted_to == self._decider:
                return []
            self._voted_to = self._decider
            known = self.decided is not None
            return [(self._decider, self._message(self.decided or self._own, known))]
        living = [rank for rank in self._living if rank != self.rank]
        if self.decided is None:
            if any(rank not in self._votes for rank in living):
                if self._lost == self._told:
                    return []
                # who has had nothing to do with those that are lost does not know yet whom to vote to
                self._told = set(self._lost)
                return [(rank, self._message(self._own.without(self._lost), False)) for rank in living]
            vote = self._own
            for rank in living:
                vote = vote.with_other(self._votes[rank])
            self.decided = vote.without(self._lost)
        return [(rank, self._message(self.decided, True)) for rank in living]

    @staticmethod
    def _message(vote: Vote, decided: bool) -> dict[str, Any]:
        return {"decided": decided, "vote": vote.document()}
