"""Several connections per peer, over which large messages are spread: see `channels` and `pairs` for how."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from testbed.comm.transport.base import BEST_EFFORT, MAX_TAG, TrafficClass
from testbed.comm.transport.channels import Channel, StripeSettings
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.pairs import Pair
from testbed.comm.transport.shared_window import SharedWindow
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.wire import ConnectionKey


class StripedTransport(Mesh):
    """One rank's pairs; see Transport for the messages, MeshSettings for `settings`.

    rank: this rank. addresses: (IPv4 address, port) of every rank, in rank order. stripes: how messages to a peer are
    cut and dealt out, by how far it is, for example; the same on both sides of a pair. eager, listener: as for
    TcpTransport. Raises TransportError when a setting does not take, TransportTimeout when `eager` and a peer does not
    appear.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        stripes: Callable[[int], StripeSettings] | None = None,
        *,
        eager: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        self._pairs: dict[tuple[int, TrafficClass], Pair] = {}
        self._windows: dict[int, SharedWindow] = {}
        self._stripes = stripes or (lambda peer: StripeSettings())
        super().__init__(rank, addresses, settings, listener, eager)

    def _connections_to(self, peer: int, tag: int, traffic: TrafficClass) -> Pair:
        """The channels to a peer, begun if need be."""
        pair = self._pairs.get((peer, traffic))
        if pair is None or not 0 <= tag <= MAX_TAG:
            self._check_address(peer, tag)
        if pair is None or (pair.lost is None and not pair.connected):
            for key in self._keys(peer, traffic):
                self._stream(peer, key)
        return self._pairs[peer, traffic]

    def _make_stream(self, peer: int, key: ConnectionKey) -> Channel:
        settings = self._stripes(peer)
        if key.channels != settings.connections or key.channel >= key.channels:
            raise ValueError(
                f"channel: got {key.channel} of {key.channels}, expected one of {settings.connections}"
            )
        pair = self._pairs.get((peer, key.traffic))
        if pair is None:
            counters, staged = self._counters[peer], self.settings.max_staged_bytes
            pair = self._pairs[peer, key.traffic] = Pair(
                self.rank, peer, settings, staged, counters, self.exposed, self._window_of(settings)
            )
        channel = pair.channels[key.channel] = Channel(pair, key.channel)
        return channel

    def _window_of(self, settings: StripeSettings) -> SharedWindow | None:
        """The one of all pairs with these settings, which are one object."""
        if settings.together is None:
            return None
        return self._windows.setdefault(id(settings), SharedWindow(settings.together))

    def _drop(self, peer: int) -> None:
        for which in [which for which, pair in self._pairs.items() if which[0] == peer and pair.lost]:
            del self._pairs[which]

    def _keys(self, peer: int, traffic: TrafficClass = BEST_EFFORT) -> list[ConnectionKey]:
        count = self._stripes(peer).connections
        return [ConnectionKey(traffic, channel, count) for channel in range(count)]

    def _before_goodbye(self, deadline_s: float) -> None:
        self._progress_until(lambda: all(pair.may_part for pair in self._pairs.values()), deadline_s)
