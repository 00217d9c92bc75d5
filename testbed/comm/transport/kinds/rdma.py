"""The kind `rdma`: reliable RDMA connections, several per pair of ranks, on soft-RoCE under the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from testbed.comm.transport.base import TrafficClass
from testbed.comm.transport.kinds import TRANSPORTS, LossRecovery, Packet
from testbed.comm.transport.kinds.striped import StripingKind
from testbed.comm.transport.rdma.card import Card, CardSettings, ack_timeout_s
from testbed.comm.transport.rdma.devices import find_card, set_window
from testbed.comm.transport.rdma.transport import RdmaTransport
from testbed.comm.transport.rdma.wire import (
    HEADER,
    HEADERS_BYTES,
    PACKETS_PER_ACK,
    ROCE_PORT,
    payload_bytes,
    udp_port,
)
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.wire import ConnectionKey
from testbed.plugins import PluginError
from testbed.spec.scale import Scale

MAX_FAST_BYTES = 8 * 1024  # size of a slot; each rank has hundreds


@TRANSPORTS.register("rdma")
class Rdma(StripingKind):
    """RDMA. Options: `stripes`, see StripingKind; `rdma`: ack_timeout_s (emulated) and window_packets."""

    config_keys: ClassVar[tuple[str, ...]] = ("stripes", "rdma")
    socket_keys: ClassVar[tuple[str, ...]] = ()
    protocol = "roce"
    verbs = True
    modelled = True
    writes = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if any(stripes.together is not None for stripes in self.stripes.values()):
            expected = "none: queue pairs have windows of their own"
            raise PluginError(
                where="transport.stripes", got="together with transport rdma", expected=expected
            )
        self.stripes = {
            name: replace(stripes, fast_bytes=min(stripes.fast_bytes, MAX_FAST_BYTES))
            for name, stripes in self.stripes.items()
        }

    @classmethod
    def emulated(cls, options: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
        """Convert segments as StripingKind does, and times as usual."""
        rdma = options["rdma"]
        scaled = {**rdma, "ack_timeout_s": scale.emulated_s(rdma["ack_timeout_s"])}
        return {**super().emulated(options, scale), "rdma": scaled}

    def make(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        distances: Sequence[str],
    ) -> RdmaTransport:
        """See TransportKind."""
        name, gid_index = find_card(addresses[rank][0])
        set_window(self.options["rdma"]["window_packets"])
        largest = max(stripes.fast_bytes for stripes in self.stripes.values())
        timeout_s = self.options["rdma"]["ack_timeout_s"]
        card = Card(CardSettings(name, gid_index, largest + HEADER.size, ack_timeout_s=timeout_s))
        return RdmaTransport(rank, addresses, settings, card, lambda peer: self.stripes[distances[peer]])

    def connection(self, traffic: TrafficClass, channel: int, distance: str) -> ConnectionKey:
        """Return the key of one of the pair's queue pairs; the first is the fast path."""
        return ConnectionKey(traffic, 1 + channel, 1 + self.channels(distance))

    def ports(self, dialled: int, listening: int, dialling: bool) -> tuple[int, int]:
        """Return the packets' ports: both ends send to ROCE_PORT, from a port derived from the dialling port."""
        return udp_port(dialled), ROCE_PORT

    @property
    def mends(self) -> LossRecovery:
        """See TransportKind: NICs use go-back-N."""
        timeout_s = ack_timeout_s(self.options["rdma"]["ack_timeout_s"])
        return LossRecovery("go_back_n", "rdma", 0, 0, False, timeout_s, PACKETS_PER_ACK)

    def packet(self, mtu_bytes: int) -> Packet:
        """See TransportKind."""
        payload = payload_bytes(mtu_bytes)
        return Packet(payload, payload + HEADERS_BYTES)

    def write_threshold_bytes(self, distance: str) -> float:
        """Return the limit of the fast path."""
        return self.stripes[distance].fast_bytes

    def overhead(self, distance: str) -> float:
        """Return the overhead of headers; announcements (one header each) and immediates are negligible."""
        return HEADER.size / self.stripes[distance].segment_bytes
