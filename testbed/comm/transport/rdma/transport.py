"""The transport `rdma`: one rank's queue pairs, grouped by peer; see Transport for the messages.

Each pair of ranks also has a TCP connection for the addresses of queue pairs and for goodbyes.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from testbed.comm.transport.base import TransportError
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.control_connection import (
    READY_TAG,
    SETUP_TAG,
    ControlConnection,
    ControlledMesh,
)
from testbed.comm.transport.rdma import wire
from testbed.comm.transport.rdma.card import Card, QueuePair
from testbed.comm.transport.rdma.pair import RdmaPair
from testbed.comm.transport.rdma.regions import RegionCache
from testbed.comm.transport.rdma.verbs import (
    RECEIVED,
    SENT,
    Address,
    Completion,
)
from testbed.comm.transport.rdma.wire import udp_port
from testbed.comm.transport.sockets import MeshSettings, WireCounts
from testbed.comm.transport.wire import ConnectionKey

FAST_DEPTH = 4096
CARD_COUNTS = ("went_back", "out_of_sequence")  # fields of CardCounts that snapshots have

Control = ControlConnection[RdmaPair]


class RdmaTransport(ControlledMesh[RdmaPair]):
    """One rank's RDMA connections; see Mesh for the other arguments and the errors.

    Args:
        card: This rank's own NIC.
        stripes: Returns the striping of messages to a peer. Both sides of a pair must agree.
    """

    counts_payload = False  # the NIC bypasses the kernel
    setup_limits: ClassVar[Mapping[int, int]] = {SETUP_TAG: 64 * 1024, READY_TAG: 0}
    setup_content = "queue pair addresses"
    holds_goodbye = True  # the peer keeps its NIC open until its goodbye is answered

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
        self._owners: dict[int, Control] = {}  # by queue pair number
        try:
            super().__init__(rank, addresses, settings, listener=listener)
            self._loop.watch(card, select.EPOLLIN, self._on_completions)
        except BaseException:
            card.close()
            raise

    # ---- see Mesh

    def _make_pair(self, peer: int, key: ConnectionKey) -> RdmaPair:
        return RdmaPair(self._end(peer), self._stripes(peer))

    def _release_sockets(self) -> None:
        super()._release_sockets()
        self._card.close()

    def wire_counts(self, peers: Mapping[int, WireCounts]) -> WireCounts | None:
        """See Mesh.

        IP counts packets that the NIC receives, so they count as the rank's own, too. IP does not count packets that
        the NIC sends. The bytes of both are unknown.
        """
        total, counts = super().wire_counts(peers), self._card.counts()
        if total is None or counts is None:
            return None
        return total.add(WireCounts(segments_in=counts.received))

    def snapshots(self) -> list[tuple[int, ConnectionKey, dict[str, float]]]:
        """See Mesh. The snapshots are of the control connections.

        Bytes are those of messages. A NIC counts for all its peers together.
        """
        counts = self._card.counts()
        of_card = {} if counts is None else {name: getattr(counts, name) for name in CARD_COUNTS}
        return [
            (peer, key, {**figures, "bytes_acked": self._counters[peer].bytes_sent, **of_card})
            for peer, key, figures in super().snapshots()
        ]

    def socket_info(self) -> list[dict[str, Any]]:
        """See Mesh. Each entry has the NIC's counts."""
        counts = self._card.counts()
        of_card = {} if counts is None else {"card": counts._asdict()}
        return [{**entry, **of_card} for entry in super().socket_info()]

    @property
    def registered(self) -> int:
        """The number of times that memory had to be registered with the NIC."""
        return self._regions.registered

    # ---- setup of a pair

    def _on_attach(self, control: Control) -> None:
        """Send the addresses of this rank's queue pairs to the peer."""
        settings = self._stripes(control.peer)
        try:
            fast = self._queue_pair(control, 0, FAST_DEPTH)
            writing = [
                self._queue_pair(control, 1 + channel, settings.outstanding)
                for channel in range(settings.connections)
            ]
        except TransportError as error:
            control.fail(error)
            return
        numbers = [queue_pair.number for queue_pair in (fast, *writing)]
        self._owners.update(dict.fromkeys(numbers, control))
        control.pair.attach(self._card, fast, writing, self._regions)
        control.send_setup(json.dumps({"gid": fast.address.gid, "numbers": numbers}).encode())

    def _queue_pair(self, control: Control, number: int, depth: int) -> QueuePair:
        peer, traffic = control.peer, control.key.traffic
        # 0 is the fast path, the others are channels
        key = ConnectionKey(traffic, number, 1 + self._stripes(peer).connections)
        port = udp_port(self.settings.local_port(max(self.rank, peer), min(self.rank, peer), key))
        return self._card.queue_pair(number == 0, depth, port, traffic.dscp)

    def _on_setup(self, control: Control, tag: int, data: bytearray) -> None:
        """Connect to the peer's queue pairs, or start sending if they are already connected to this rank's."""
        if tag == READY_TAG:
            control.pair.start()
            return
        queue_pairs = control.pair.queue_pairs
        try:
            endpoints = json.loads(data)
        except ValueError:
            endpoints = None
        if not isinstance(endpoints, dict):
            control.fail("its queue pair addresses are not a JSON object")
            return
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
        control.send_setup(b"", READY_TAG)

    def _on_end(self, control: Control, error: TransportError) -> None:
        """Handle the loss of the peer. Its earlier writes have arrived."""
        self._handle_completions()
        control.pair.fail(error)
        for queue_pair in control.pair.queue_pairs:
            self._owners.pop(queue_pair.number, None)

    # ---- called on completions

    def _on_completions(self, mask: int) -> None:
        self._handle_completions()
        for control in self._controls():
            control.pair.fast.flush()
            if control.pair.can_say_goodbye:
                control.resume_reading()  # the peer's goodbye may have waited for this

    def _handle_completions(self) -> None:
        for completion in self._card.completions():
            control = self._owners.get(completion.queue_pair)
            if control is None or control.pair.lost is not None:
                if completion.kind == RECEIVED and not completion.failed:
                    self._card.free(completion.number)
            elif reason := self._handle(control.pair, completion):
                control.fail(reason)

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
