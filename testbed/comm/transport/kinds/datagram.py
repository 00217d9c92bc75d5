"""UDP datagrams, whose losses the ranks mend and whose pace they keep, in ways that a scenario chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from testbed.comm.transport.base import TrafficClass
from testbed.comm.transport.datagram.controls import CONTROLS
from testbed.comm.transport.datagram.controls.credits import LOAD
from testbed.comm.transport.datagram.recoveries import RECOVERIES
from testbed.comm.transport.datagram.sender import WINDOW_PRODUCTS, DatagramSettings
from testbed.comm.transport.datagram.transport import DatagramTransport
from testbed.comm.transport.kinds.base import TRANSPORTS, LossRecovery, TransportKind
from testbed.comm.transport.kinds.striped import PACKET_BYTES
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.wire import ConnectionKey
from testbed.spec.keywords import BDP
from testbed.spec.scale import Scale


@TRANSPORTS.register("datagram")
class Datagram(TransportKind):
    """datagram: the fields of DatagramSettings."""

    config_keys = ("datagram",)
    socket_keys = ()
    takes_several_paths = True
    asks_network = True
    modelled = True
    protocol = "udp"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.settings = DatagramSettings(**self.options.get("datagram", {}))

    @classmethod
    def emulated(cls, options: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
        """From keys of `transport.datagram` to fields of DatagramSettings; windows shrink as messages do."""
        asked = options["datagram"]
        window = asked["window"]
        own = DatagramSettings(
            recovery=asked["recovery"],
            control=asked["control"],
            **asked["erasure"],
            paths=1 if asked["spray"] == "none" else asked["paths"],
            window_bytes=None if window == BDP else max(1, round(scale.emulated_bytes(window))),
            rate_scale=scale.emulated_bps(1.0),
        )
        return {"datagram": asdict(own)}

    def make(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        distances: Sequence[str],
    ) -> DatagramTransport:
        """See TransportKind."""
        return DatagramTransport(rank, addresses, settings, self.settings)

    @property
    def warms_up(self) -> bool:
        """See TransportKind: with controls that find their pace."""
        return self.settings.control not in ("none", "window", "credits")

    @property
    def mends(self) -> LossRecovery:
        """See TransportKind."""
        own = self.settings
        # other controls keep what stands in queues short
        products, window_bytes = (
            (WINDOW_PRODUCTS, own.window_bytes) if own.control == "window" else (0.0, None)
        )
        return LossRecovery(
            own.recovery,
            own.recovery,
            own.data,
            own.parity,
            own.control == "aimd",
            products=products,
            window_bytes=window_bytes,
        )

    @property
    def granted(self) -> float | None:
        """See TransportKind."""
        return LOAD if CONTROLS[self.settings.control].grants else None

    def channels(self, distance: str) -> int:
        """One for each path."""
        return self.settings.paths

    def connection(self, traffic: TrafficClass, channel: int, distance: str) -> ConnectionKey:
        """A path's port, as if it were a connection's."""
        paths = self.settings.paths
        return ConnectionKey(traffic, channel, paths) if paths > 1 else ConnectionKey(traffic)

    def overhead(self, distance: str) -> float:
        """Parity; what headers are more than TCP's is left out, as acknowledgements are."""
        coded = RECOVERIES[self.settings.recovery].code is not None
        return self.settings.parity / self.settings.data if coded else 0.0

    def slowest_byte_s(self, distance: str, round_trip_s: Callable[[int], float]) -> float:
        """By a window that the scenario gives."""
        own = self.settings
        if own.control != "window" or own.window_bytes is None:
            return 0.0
        return round_trip_s(PACKET_BYTES) / own.window_bytes
