"""The transport `rdma`: one rank's pairs of queue pairs; see Transport for the messages.

Each pair also has a TCP connection, for setup and goodbye: see `control_connection`.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed.comm.transport.base import MAX_TAG, TrafficClass, TransportError
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.rdma import wire
from testbed.comm.transport.rdma.control_connection import ControlConnection
from testbed.comm.transport.rdma.pair import RdmaPair
from testbed.comm.transport.rdma.verbs import (
    RECEIVED,
    SENT,
    Address,
    Card,
    Completion,
    QueuePair,
    RegionCache,
)
from testbed.comm.transport.rdma.wire import udp_port
from testbed.comm.transport.sockets import MeshSettings, WireCounts
from testbed.comm.transport.wire import ConnectionKey

FAST_DEPTH = 4096
CARD_COUNTS = ("went_back", "out_of_sequence")  # fields of CardCounts that snapshots have

PairKey = tuple[int, TrafficClass]


class RdmaTransport(Mesh):
    """One rank's RDMA connections.

    Args:
        rank: This rank.
        addresses: (IPv4 address, port) of every rank, in rank order.
        settings: Sockets and timeouts.
        card: This rank's own card.
        stripes: Returns the striping of messages to a peer. Both sides of a pair must agree.
        listener: A bound socket to listen on instead of this rank's address.

    Raises:
        TransportError: If a setting does not take effect.
    """

    counts_payload = False  # the card bypasses the kernel

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        card: Card,
        stripes: Callable[[int], StripeSettings] | None = None,
        *,
        listener: socket.socket | None = None,
    ) -> None:
        self._stripes = stripes or (lambda peer: StripeSettings())
        self._card = card
        self._regions = RegionCache(card)
        self._pairs: dict[PairKey, RdmaPair] = {}
        self._queue_pairs: dict[PairKey, list[QueuePair]] = {}
        self._owners: dict[int, RdmaPair] = {}  # by queue pair number
        try:
            super().__init__(rank, addresses, settings, listener, eager=False)
            self._loop.watch(card, select.EPOLLIN, self._on_completions)
        except BaseException:
            card.close()
            raise

    # ---- see Mesh

    def _connections_to(self, peer: int, tag: int, traffic: TrafficClass) -> RdmaPair:
        pair = self._pairs.get((peer, traffic))
        if pair is None or not 0 <= tag <= MAX_TAG:
            self._check_address(peer, tag)
        if pair is None or (pair.lost is None and not pair.fast.ready):
            self._stream(peer, ConnectionKey(traffic))
        return self._pairs[peer, traffic]

    def _make_stream(self, peer: int, key: ConnectionKey) -> ControlConnection:
        if key.channel or key.channels:
            raise ValueError(f"channel: got {key.channel} of {key.channels}, expected none")
        counters, staged = self._counters[peer], self.settings.max_staged_bytes
        pair = RdmaPair(self.rank, peer, self._stripes(peer), staged, counters, self.exposed)
        self._pairs[peer, key.traffic] = pair
        control = ControlConnection(self.rank, peer, staged, counters, self.exposed)
        control.on_attach = lambda: self._on_attach(peer, key.traffic, control)
        control.on_endpoints = lambda endpoints: self._on_endpoints(peer, key.traffic, control, endpoints)
        control.on_ready = pair.start
        control.busy = lambda: not pair.can_say_goodbye
        control.on_end = lambda error: self._on_end(peer, key.traffic, error)
        return control

    def _keys(self, peer: int) -> list[ConnectionKey]:
        return [ConnectionKey()]

    def _drop_lost(self, peer: int) -> None:
        for pair_key in [
            pair_key for pair_key, pair in self._pairs.items() if pair_key[0] == peer and pair.lost
        ]:
            del self._pairs[pair_key]

    def _before_goodbye(self, deadline_s: float) -> None:
        self._progress_until(lambda: all(pair.can_say_goodbye for pair in self._pairs.values()), deadline_s)

    def _release_sockets(self) -> None:
        super()._release_sockets()
        self._card.close()

    def wire_counts(self, peers: Mapping[int, WireCounts]) -> WireCounts | None:
        """See Mesh.

        IP counts packets that the card receives, so they count as the rank's own, too. Packets that the card sends are
        not counted by IP. Bytes of neither are known.
        """
        total, counts = super().wire_counts(peers), self._card.counts()
        if total is None or counts is None:
            return None
        return total.add(WireCounts(segments_in=counts.received))

    def snapshots(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """See Mesh: of the control connections.

        Bytes are those of messages. A card counts for all its peers together.
        """
        counts = self._card.counts()
        of_card = {} if counts is None else {name: getattr(counts, name) for name in CARD_COUNTS}
        return [
            (peer, key, {**figures, "bytes_acked": self._counters[peer].bytes_sent, **of_card})
            for peer, key, figures in super().snapshots()
        ]

    def socket_info(self) -> list[dict[str, Any]]:
        """See Mesh; with the card's counts in each entry."""
        counts = self._card.counts()
        of_card = {} if counts is None else {"card": counts._asdict()}
        return [{**entry, **of_card} for entry in super().socket_info()]

    @property
    def registered(self) -> int:
        """How often memory had to be registered with the card."""
        return self._regions.registered

    # ---- setup of a pair

    def _on_attach(self, peer: int, traffic: TrafficClass, control: ControlConnection) -> None:
        """Send the addresses of this rank's queue pairs to the peer."""
        pair, settings = self._pairs[peer, traffic], self._stripes(peer)
        try:
            fast = self._queue_pair(peer, traffic, 0, FAST_DEPTH)
            writing = [
                self._queue_pair(peer, traffic, 1 + channel, settings.outstanding)
                for channel in range(settings.connections)
            ]
        except TransportError as error:
            control.fail(error)
            return
        self._queue_pairs[peer, traffic] = [fast, *writing]
        for queue_pair in (fast, *writing):
            self._owners[queue_pair.number] = pair
        pair.attach(self._card, fast, writing, self._regions)
        gid = fast.address.gid
        control.send_endpoints(
            {"gid": gid, "numbers": [queue_pair.number for queue_pair in (fast, *writing)]}
        )

    def _queue_pair(self, peer: int, traffic: TrafficClass, number: int, depth: int) -> QueuePair:
        dialler, listener = max(self.rank, peer), min(self.rank, peer)
        # 0 is the fast path, the others are channels
        key = ConnectionKey(traffic, number, 1 + self._stripes(peer).connections)
        port = udp_port(self.settings.local_port(dialler, listener, key))
        return self._card.queue_pair(number == 0, depth, port, traffic.dscp)

    def _on_endpoints(
        self, peer: int, traffic: TrafficClass, control: ControlConnection, endpoints: dict[str, Any]
    ) -> None:
        queue_pairs = self._queue_pairs[peer, traffic]
        gid, numbers = endpoints.get("gid"), endpoints.get("numbers")
        if not isinstance(gid, str) or not isinstance(numbers, list) or len(numbers) != len(queue_pairs):
            expected = f"{len(queue_pairs)} queue pairs and a gid"
            control.fail(f"its queue pairs: got {endpoints}, expected {expected}")
            return
        try:
            for queue_pair, number in zip(queue_pairs, numbers, strict=True):
                queue_pair.connect(Address(gid, int(number)))
        except (TransportError, ValueError) as error:
            control.fail(f"its queue pairs: {error}")
            return
        control.send_ready()

    def _on_end(self, peer: int, traffic: TrafficClass, error: TransportError) -> None:
        """Handle that the peer is gone. What it wrote before has arrived."""
        self._handle_completions()
        self._pairs[peer, traffic].fail(error)
        for queue_pair in self._queue_pairs.pop((peer, traffic), ()):
            self._owners.pop(queue_pair.number, None)

    # ---- called on completions

    def _on_completions(self, mask: int) -> None:
        self._handle_completions()
        for (peer, traffic), pair in list(self._pairs.items()):
            if pair.fast.blocked:
                pair.fast.flush()
            if pair.can_say_goodbye:
                self._streams[
                    peer, ConnectionKey(traffic)
                ].resume_reading()  # its goodbye may have waited for this

    def _handle_completions(self) -> None:
        for completion in self._card.completions():
            pair = self._owners.get(completion.queue_pair)
            if pair is None or pair.lost is not None:
                if completion.kind == RECEIVED and not completion.failed:
                    self._card.free(completion.number)
                continue
            if reason := self._handle(pair, completion):
                self._fail(pair, reason)

    def _handle(self, pair: RdmaPair, completion: Completion) -> str:
        """Pass a completion to its pair; return what is wrong with it, or ""."""
        kind, queue_pair, number, immediate, size_bytes, failed = completion
        if failed:
            return f"its card does not answer: {failed}" if kind == SENT else f"a receive failed: {failed}"
        if kind == SENT:
            if number:
                pair.on_sent(queue_pair, number)
            else:
                pair.fast.on_sent()
            return ""
        if kind != RECEIVED:
            return pair.on_written(wire.unpack_immediate(immediate), size_bytes)
        data = self._card.slot(number)[:size_bytes]
        try:
            return pair.on_frame(wire.unpack_frame(data), data[wire.HEADER.size :])
        except ValueError as error:
            return f"it sent {error}"
        finally:
            self._card.free(number)

    def _fail(self, pair: RdmaPair, reason: str) -> None:
        for pair_key, other in self._pairs.items():
            if other is pair:
                self._streams[pair_key[0], ConnectionKey(pair_key[1])].fail(reason)
                return
