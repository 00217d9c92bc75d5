"""What has passed between a rank and each of its peers: kept for those that it has to do with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from testbed.comm.transport.base import PeerCounters


class Tallies(Mapping[int, PeerCounters]):
    """Of all ranks but this one; each is made when it is first asked for, since a rank of thousands talks to few."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._made: dict[int, PeerCounters] = {}

    def __getitem__(self, peer: int) -> PeerCounters:
        """Of one peer. KeyError for this rank and those that there are not."""
        found = self._made.get(peer)
        if found is None:
            if peer not in self:
                raise KeyError(peer)
            found = self._made[peer] = PeerCounters()
        return found

    def __contains__(self, peer: object) -> bool:
        """Whether it is a peer."""
        return isinstance(peer, int) and 0 <= peer < self._size and peer != self._rank

    def __iter__(self) -> Iterator[int]:
        """All peers, in rank order."""
        return (peer for peer in range(self._size) if peer != self._rank)

    def __len__(self) -> int:
        """How many peers there are."""
        return self._size - 1
