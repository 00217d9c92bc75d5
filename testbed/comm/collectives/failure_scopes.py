"""Failure scopes: the operations of a communicator fail together, and its members can agree on what to do next.

A lost peer ends the operations of all communicators that contain it. In the terms of NCCL and of MPI's fault
tolerance (ULFM), `revoke` is `ncclCommAbort` and `MPIX_Comm_revoke`, sent to all members. `Agreement` reaches a
decision even if some members die meanwhile. Both send notes outside the message stream.

How agreement works: the lowest living rank decides. All members send it their votes. It waits for all members that it
considers alive, combines the votes, and announces the decision. If it dies, all send their votes to the next rank,
along with the decision if they know one; that decision is then final. So all living ranks reach the same decision,
provided that suspected ranks are treated as dead: a rank that one member has lost is lost for all. A member that loses
another after voting votes again, because the deciding rank may have no connection that would show the loss.
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
# limit on notes about communicators and agreements that this rank has not reached yet
_MOST_EARLY = 10_000


class Revoked(TransportError):
    """A member has aborted the communicator; only `shrink` and `agree` work on it from now on."""

    def __init__(self, rank: int, by: int, reason: str) -> None:
        self.rank, self.by, self.reason = rank, by, reason
        who = "this rank" if by == rank else f"rank {by}"
        super().__init__(f"rank {rank}: {who} aborted the communicator: {reason}")


class Scope:
    """The operations of one communicator. ranks: its members' transport ranks. failure: the error that ended it."""

    def __init__(self, number: int, ranks: Iterable[int]) -> None:
        self.number = number
        self.ranks = frozenset(ranks)
        self.failure: TransportError | None = None
        self.tasks: set[Any] = set()

    def fail(self, error: TransportError) -> None:
        """End all operations of the scope. The first error counts, except that an abort overrides any other error."""
        if self.failure is not None and (self.revoked or not isinstance(error, Revoked)):
            return
        self.failure = error
        for task in sorted(self.tasks, key=lambda task: task.start_s):
            task.cancel(self.failure)
            if not self.failure.during:  # the task's error names the operation
                self.failure = task.error

    @property
    def revoked(self) -> bool:
        """Whether a member has aborted the communicator."""
        return isinstance(self.failure, Revoked)


class Scopes:
    """All scopes of a rank, and the notes that peers send about them.

    lost: peers known to be gone, until `peer_returned`.
    has_pending: whether another thread or the transport has queued something for `process_pending`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._peer_events: PeerEvents | None = find_peer_events(transport)
        self._scopes: weakref.WeakValueDictionary[int, Scope] = weakref.WeakValueDictionary()
        self._revocations: deque[tuple[Scope, str]] = deque()
        self._inbox: deque[tuple[int, bytes] | PeerLost] = deque()  # filled inside calls of the transport
        self._agreements: dict[tuple[int, int], Agreement] = {}
        # votes of agreements not yet started here
        self._votes: dict[tuple[int, int], list[tuple[int, dict[str, Any]]]] = {}
        self._early_revocations: dict[int, Revoked] = {}  # revocations of communicators not yet created here
        self.lost: dict[int, PeerLost] = {}
        self.has_pending = False
        if self._peer_events is not None:
            self._peer_events.on_note = lambda peer, data: self._enqueue((peer, data))
            self._peer_events.on_peer_lost = self._enqueue

    def add(self, number: int, ranks: Iterable[int]) -> Scope:
        """Add the scope of a communicator; it has failed already if a member is lost or it was revoked early."""
        scope = self._scopes[number] = Scope(number, ranks)
        lost_members = sorted(scope.ranks & set(self.lost))
        early = self._early_revocations.pop(number, None)
        if lost_members:
            scope.fail(self.lost[lost_members[0]])
        elif early is not None:
            scope.fail(early)
        return scope

    def lose_peer(self, error: PeerLost) -> None:
        """Record a lost peer and end every scope that contains it."""
        if error.peer in self.lost:
            return
        self.lost[error.peer] = error
        for scope in list(self._scopes.values()):
            if error.peer in scope.ranks:
                scope.fail(error)
        for which, agreement in self._agreements.items():
            self._send(which, agreement.lose(error.peer))

    def peer_returned(self, peer: int, lost: int | None = None) -> None:
        """Let a lost peer's next incarnation join communicators that are made from now on.

        `lost` is the incarnation that was lost. If a later one has connected already, its connections stay.
        """
        known = self._peer_events.incarnations.get(peer, 0) if self._peer_events is not None else 0
        if hasattr(self._transport, "forget") and (lost is None or known <= lost):
            self._transport.forget(peer)
        self.lost.pop(peer, None)

    def revoke(self, scope: Scope, reason: str) -> None:
        """Request the end of a scope on all its members. May be called by any thread or signal handler."""
        self._revocations.append((scope, reason))
        self.has_pending = True
        self._transport.wake()

    def process_pending(self) -> None:
        """Process queued revocations and notes, in the rank's own thread and outside calls of the transport."""
        self.has_pending = False
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, PeerLost):
                self.lose_peer(item)
            else:
                peer, data = item
                try:
                    self._on_note(peer, json.loads(data))
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    self.lose_peer(
                        PeerLost(self._transport.rank, peer, f"it sent an invalid note ({error!r})")
                    )
        while self._revocations:
            scope, reason = self._revocations.popleft()
            own = self._transport.rank
            if not scope.revoked:
                self._send_revocation(scope, own, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
            scope.fail(Revoked(own, own, reason))

    def agree(self, scope: Scope, sequence: int, vote: Vote) -> Agreement:
        """Start agreement number `sequence` of a scope's members; it progresses as their notes arrive."""
        which = scope.number, sequence
        agreement = self._agreements[which] = Agreement(self._transport.rank, scope.ranks)
        for peer in scope.ranks & set(self.lost):
            agreement.lose(peer)
        for peer, message in self._votes.pop(which, ()):
            self._send(which, agreement.receive(peer, message))
        self._send(which, agreement.vote(vote))
        return agreement

    def send_note(self, peers: Iterable[int], document: dict[str, Any]) -> None:
        """Send a note to all of these peers that are not known to be lost.

        Raises TransportError if the transport does not support notes.
        """
        if self._peer_events is None:
            raise TransportError("this transport cannot send notes, expected one with PeerEvents")
        data = json.dumps(document).encode()
        for peer in peers:
            if peer not in self.lost and peer != self._transport.rank:
                self._peer_events.send_note(peer, data)

    def _send_revocation(self, scope: Scope, by: int, reason: str) -> None:
        if self._peer_events is not None:
            note = {"what": REVOKE, "communicator": scope.number, "by": by, "reason": reason}
            self.send_note(sorted(scope.ranks), note)

    def _enqueue(self, item: tuple[int, bytes] | PeerLost) -> None:
        self._inbox.append(item)
        self.has_pending = True

    def _send(self, which: tuple[int, int], messages: Messages) -> None:
        number, sequence = which
        for peer, message in messages:
            self.send_note([peer], {"what": AGREE, "communicator": number, "sequence": sequence, **message})

    def _on_note(self, peer: int, note: dict[str, Any]) -> None:
        number = int(note["communicator"])
        if note["what"] == AGREE:
            which = number, int(note["sequence"])
            if which in self._agreements:
                self._send(which, self._agreements[which].receive(peer, note))
            elif len(self._votes) < _MOST_EARLY:
                self._votes.setdefault(which, []).append((peer, note))
        elif note["what"] == REVOKE:
            error = Revoked(self._transport.rank, int(note["by"]), str(note["reason"]))
            scope = self._scopes.get(number)
            if scope is None:
                if len(self._early_revocations) < _MOST_EARLY:
                    self._early_revocations[number] = error
            elif not scope.revoked:
                # forwarded: the member that aborted it may have died before it reached everyone
                self._send_revocation(scope, error.by, error.reason)
                scope.fail(error)


Messages = list[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class Vote:
    """A vote: flags, combined by AND; excluded ranks, by union; a number, by maximum."""

    flags: int
    out: frozenset[int] = frozenset()
    number: int = 0

    def combined_with(self, other: Vote) -> Vote:
        """Return the combination of two votes."""
        return Vote(self.flags & other.flags, self.out | other.out, max(self.number, other.number))

    def without(self, ranks: Iterable[int]) -> Vote:
        """Return this vote with these ranks excluded as well."""
        return replace(self, out=self.out.union(ranks))

    def document(self) -> dict[str, Any]:
        """Return the vote as a JSON-compatible dict."""
        return {"flags": self.flags, "out": sorted(self.out), "number": self.number}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Vote:
        """Return the vote from a dict made by `document`."""
        return cls(int(document["flags"]), frozenset(map(int, document["out"])), int(document["number"]))


class Agreement:
    """One member's state machine of one agreement. Each call returns messages to send to members.

    decided: the decision, once it is known here. The agreement must be kept and fed after that as well, because
    other members may need what this one knows.
    """

    def __init__(self, rank: int, ranks: Iterable[int]) -> None:
        self.rank = rank
        self.ranks = tuple(sorted(ranks))
        self.decided: Vote | None = None
        self._lost: set[int] = set()
        self._announced_lost: set[int] = set()  # lost ranks that this rank, as the decider, has announced
        self._own: Vote | None = None
        self._votes: dict[int, Vote] = {}
        self._voted_to: int | None = None

    @property
    def missing_members(self) -> list[int]:
        """Members whose vote or decision is awaited, for error messages."""
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
        """Cast this member's vote, once."""
        self._own = vote
        self._lose_all(vote.out)
        return self._advance()

    def lose(self, peer: int) -> Messages:
        """Handle the loss of a member."""
        if peer not in self.ranks or peer in self._lost or peer == self.rank:
            return []
        self._lost.add(peer)
        if self.decided is None:
            self._voted_to = None  # vote again: the decider may have no contact with the lost member
        return self._advance()

    def receive(self, peer: int, message: dict[str, Any]) -> Messages:
        """Handle a member's message.

        Messages of a member known to be lost, even if only reported by others, are ignored: the next decider may
        already have been told that nothing from it arrived here.
        """
        if peer in self._lost:
            return []
        vote = Vote.of(message["vote"])
        if message["decided"]:
            if self.decided is not None:
                return []
            self.decided = vote
            return self._advance()  # as the decider, to members that have voted already
        if self.decided is not None:  # the peer does not know the decision
            return [(peer, self._message(self.decided, True))]
        self._votes[peer] = vote
        self._lose_all(vote.out)
        return self._advance()

    def _lose_all(self, out: Iterable[int]) -> None:
        self._lost |= set(out).intersection(self.ranks) - {self.rank}

    def _advance(self) -> Messages:
        if self._own is None:
            return []
        if self._decider != self.rank:
            if self._voted_to == self._decider:
                return []
            self._voted_to = self._decider
            known = self.decided is not None
            return [(self._decider, self._message(self.decided or self._own.without(self._lost), known))]
        living = [rank for rank in self._living if rank != self.rank]
        if self.decided is None:
            if any(rank not in self._votes for rank in living):
                if self._lost == self._announced_lost:
                    return []
                # members without contact to the lost ranks do not know yet where to send their votes
                self._announced_lost = set(self._lost)
                return [(rank, self._message(self._own.without(self._lost), False)) for rank in living]
            vote = self._own
            for rank in living:
                vote = vote.combined_with(self._votes[rank])
            self.decided = vote.without(self._lost)
        return [(rank, self._message(self.decided, True)) for rank in living]

    @staticmethod
    def _message(vote: Vote, decided: bool) -> dict[str, Any]:
        return {"decided": decided, "vote": vote.document()}
