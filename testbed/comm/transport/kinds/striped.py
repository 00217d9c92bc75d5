"""The kind `striped`: several TCP connections per pair of ranks, with messages striped over them by distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from testbed.comm.transport.base import TrafficClass
from testbed.comm.transport.channels import FRAME, StripeSettings
from testbed.comm.transport.kinds import TRANSPORTS, TransportKind
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.striped import StripedTransport
from testbed.comm.transport.wire import PACKET_HEADERS_BYTES, ConnectionKey
from testbed.spec.scale import Scale

PACKET_BYTES = 8 * 1024  # about the payload of a jumbo frame
SAME_BUILDING = "same_building"  # the default for zones without their own settings
WINDOWS = ("outstanding", "together")  # fields of StripeSettings
MIN_OUTSTANDING = 2  # one segment is in flight while another is acknowledged


class StripingKind(TransportKind):
    """A kind that stripes messages. Option `stripes`: the fields of StripeSettings, by distance."""

    config_keys: ClassVar[tuple[str, ...]] = ("stripes",)
    takes_several_paths = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stripes = {name: StripeSettings(**one) for name, one in self.options["stripes"].items()}

    @classmethod
    def emulated(cls, options: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
        """Scale segments, and the limit of messages that are not cut, like messages; but packets do not scale.

        Segments never become smaller than a packet. Instead there are fewer of them, and fewer may be in flight, for
        the same bytes. Otherwise headers and acknowledgements would take a quarter of the network at `size_scale:
        2000`.
        """
        by_distance = {}
        for name, given in options["stripes"].items():
            stripe = given or options["stripes"][SAME_BUILDING]
            wanted_bytes = scale.emulated_bytes(stripe["segment_bytes"])
            segment_bytes = max(min(stripe["segment_bytes"], PACKET_BYTES), round(wanted_bytes))
            share = min(1.0, wanted_bytes / segment_bytes)
            fast_bytes = round(scale.emulated_bytes(StripeSettings.fast_bytes))
            scaled = {**stripe, "segment_bytes": segment_bytes, "fast_bytes": fast_bytes}
            for window in WINDOWS:
                if (limit := stripe.get(window)) is not None:
                    scaled[window] = max(min(limit, MIN_OUTSTANDING), round(limit * share))
            by_distance[name] = asdict(StripeSettings(**scaled))
        return {"stripes": by_distance}

    def channels(self, distance: str) -> int:
        """Return the number of connections at that distance."""
        return self.stripes[distance].connections

    def connection(self, traffic: TrafficClass, channel: int, distance: str) -> ConnectionKey:
        """Return the key of one of the pair's connections."""
        return ConnectionKey(traffic, channel, self.channels(distance))

    def slowest_byte_s(self, distance: str, round_trip_s: Callable[[int], float]) -> float:
        """Return the limit that the segments in flight impose. A segment is acknowledged once all of it has arrived."""
        stripe = self.stripes[distance]
        in_flight = min(stripe.outstanding, stripe.together or stripe.outstanding)
        return round_trip_s(stripe.segment_bytes) / (stripe.segment_bytes * in_flight)


@TRANSPORTS.register("striped")
class Striped(StripingKind):
    """Striping over TCP connections."""

    modelled = True

    def make(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        distances: Sequence[str],
    ) -> StripedTransport:
        """See TransportKind."""
        return StripedTransport(rank, addresses, settings, lambda peer: self.stripes[distances[peer]])

    def stripe_settings(self, distance: str) -> StripeSettings:
        """See TransportKind."""
        return self.stripes[distance]

    def overhead(self, distance: str) -> float:
        """Return the share of a segment's header and of its acknowledgement, which is a separate packet.

        Both ends are assumed to send the same number of bytes.
        """
        return (2 * FRAME.size + PACKET_HEADERS_BYTES) / self.stripes[distance].segment_bytes
