"""Agreement among ranks of which some die meanwhile: pure, what is to be told to whom comes back as messages.

The lowest rank that lives decides. Everybody votes to it; it waits for all that it takes to live, combines, and tells
all. When it dies everybody votes to the next one, with the decision if it has heard of one: that then stands. So all
that live decide alike, provided that who is taken to be dead is: a rank that one member has lost, is lost for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

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
