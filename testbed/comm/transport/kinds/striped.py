"""Several TCP connections per pair of ranks, over which messages are cut and dealt out, by the ranks' distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from testbed.comm.transport.base import TrafficClass
from testbed.comm.transport.channels import FRAME, StripeSettings
from testbed.comm.transport.kinds.base import TRANSPORTS, TransportKind
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.striped import StripedTransport
from testbed.comm.transport.wire import PACKET_HEADERS_BYTES, ConnectionKey
from testbed.spec.scale import Scale

PACKET_BYTES = 8 * 1024  # about what a jumbo frame carries
SAME_BUILDING = "same_building"  # holds for zones of it of which nothing is said
WINDOWS = ("outstanding", "together")  # of StripeSettings
MIN_OUTSTANDING = 2  # one segment can be on its way while another is acknowledged


class StripingKind(TransportKind):
    """What cuts messages and deals them out. stripes: per distance, the fields of StripeSettings."""

    config_keys: ClassVar[tuple[str, ...]] = ("stripes",)
    takes_several_paths = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stripes = {name: StripeSettings(**one) for name, one in self.options["stripes"].items()}

    @classmethod
    def emulated(cls, options: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
        """Segments, and messages that are not cut, shrink as messages do, but packets do not.

        Of segments that would be smaller than a packet there are fewer, which may be under way together for as many
        bytes: each has a header and an acknowledgement, which took a quarter of the network at `size_scale: 2000`.
        """
        found = {}
        for name, said in options["stripes"].items():
            stripe = said or options["stripes"][SAME_BUILDING]
            wanted_bytes = scale.emulated_bytes(stripe["segment_bytes"])
            segment_bytes = max(min(stripe["segment_bytes"], PACKET_BYTES), round(wanted_bytes))
            share = min(1.0, wanted_bytes / segment_bytes)
            fast_bytes = round(scale.emulated_bytes(StripeSettings.fast_bytes))
            own = {**stripe, "segment_bytes": segment_bytes, "fast_bytes": fast_bytes}
            for window in WINDOWS:
                if (most := stripe.get(window)) is not None:
                    own[window] = max(min(most, MIN_OUTSTANDING), round(most * share))
            found[name] = asdict(StripeSettings(**own))
        return {"stripes": found}

    def channels(self, distance: str) -> int:
        """As many as the stripes of that distance say."""
        return self.stripes[distance].connections

    def connection(self, traffic: TrafficClass, channel: int, distance: str) -> ConnectionKey:
        """One of the pair's."""
        return ConnectionKey(traffic, channel, self.channels(distance))

    def slowest_byte_s(self, distance: str, round_trip_s: Callable[[int], float]) -> float:
        """By the segments that may be under way; one is acknowledged when all of it has come."""
        stripe = self.stripes[distance]
        most = min(stripe.outstanding, stripe.together or stripe.outstanding)
        return round_trip_s(stripe.segment_bytes) / (stripe.segment_bytes * most)


@TRANSPORTS.register("striped")
class Striped(StripingKind):
    """Over TCP."""

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

    def dealing(self, distance: str) -> StripeSettings:
        """See TransportKind."""
        return self.stripes[distance]

    def overhead(self, distance: str) -> float:
        """A segment's header, and its acknowledgement in a packet of its own; as if both ends sent as much."""
        return (2 * FRAME.size + PACKET_HEADERS_BYTES) / self.stripes[distance].segment_bytes
