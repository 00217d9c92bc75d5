"""What fails together: a communicator's operations. A lost peer ends those of the communicators that contain it.

In the terms of NCCL and of MPI's fault tolerance (ULFM): `revoke` is what `ncclCommAbort` and `MPIX_Comm_revoke` do,
told to all members; what members then decide together goes by `agreement`. Both travel as notes beside all messages.
"""

from __future__ import annotations

import json
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from testbed.comm.collectives.agreement import Agreement, Messages, Vote
from testbed.comm.transport import PeerLost, Transport, TransportError
from testbed.comm.transport.base import MOST_REASON_BYTES
from testbed.comm.transport.failures import TellsOfPeers, tells_of_peers

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
        self._tells: TellsOfPeers | None = tells_of_peers(transport)
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
                self._pass_on(scope, own, reason.encode()[:MOST_REASON_BYTES].decode(errors="ignore"))
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
                self._tells.tell(peer, data)

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
