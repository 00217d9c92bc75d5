"""The kind `datagram`: UDP datagrams, with the loss recovery and congestion control that the scenario chooses."""

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
from testbed.comm.transport.kinds import TRANSPORTS, LossRecovery, TransportKind
from testbed.comm.transport.kinds.striped import PACKET_BYTES
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.wire import ConnectionKey
from testbed.spec.keywords import BDP
from testbed.spec.scale import Scale


@TRANSPORTS.register("datagram")
class Datagram(TransportKind):
    """UDP datagrams. Option `datagram`: the fields of DatagramSettings."""

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
        """Convert the keys of `transport.datagram` to fields of DatagramSettings. Windows scale like messages."""
        asked = options["datagram"]
        window = asked["window"]
        settings = DatagramSettings(
            recovery=asked["recovery"],
            control=asked["control"],
            **asked["erasure"],
            paths=1 if asked["spray"] == "none" else asked["paths"],
            window_bytes=None if window == BDP else max(1, round(scale.emulated_bytes(window))),
            rate_scale=scale.emulated_bps(1.0),
        )
        return {"datagram": asdict(settings)}

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
        """See TransportKind: true for controls that search for their rate."""
        return self.settings.control not in ("none", "window", "credits")

    @property
    def mends(self) -> LossRecovery:
        """See TransportKind."""
        settings = self.settings
        # other controls keep queues short
        bdp_multiple, window_bytes = (
            (WINDOW_PRODUCTS, settings.window_bytes) if settings.control == "window" else (0.0, None)
        )
        return LossRecovery(
            settings.recovery,
            settings.recovery,
            settings.data,
            settings.parity,
            settings.control == "aimd",
            bdp_multiple=bdp_multiple,
            window_bytes=window_bytes,
        )

    @property
    def granted_share(self) -> float | None:
        """See TransportKind."""
        return LOAD if CONTROLS[self.settings.control].uses_grants else None

    def channels(self, distance: str) -> int:
        """Return the number of paths."""
        return self.settings.paths

    def connection(self, traffic: TrafficClass, channel: int, distance: str) -> ConnectionKey:
        """Return the key of a path's port, as if it were a connection's."""
        paths = self.settings.paths
        return ConnectionKey(traffic, channel, paths) if paths > 1 else ConnectionKey(traffic)

    def overhead(self, distance: str) -> float:
        """Return the share of parity.

        It ignores acknowledgements, and the difference between its headers and TCP's.
        """
        coded = RECOVERIES[self.settings.recovery].code is not None
        return self.settings.parity / self.settings.data if coded else 0.0

    def slowest_byte_s(self, distance: str, round_trip_s: Callable[[int], float]) -> float:
        """Return the limit that the scenario's window imposes."""
        settings = self.settings
        if settings.control != "window" or settings.window_bytes is None:
            return 0.0
        return round_trip_s(PACKET_BYTES) / settings.window_bytes
