"""The kinds of transport that a scenario names under `transport.kind`.

A kind defines how options become a rank's transport, and describes that transport to the rest of the testbed. Each kind
registers under its name in its own module. To add one from a file of your own, see docs/how-to/plugins/transports.md.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from testbed.comm.transport.base import TrafficClass, Transport
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.wire import ConnectionKey
from testbed.plugins import PluginError, Registry, attribute_errors, derived_from
from testbed.spec.scale import Scale


@dataclass(frozen=True)
class LossRecovery:
    """The loss recovery of a transport that does not rely on the kernel's TCP for it.

    Attributes:
        recovery: The name of the recovery.
        probed_as: The name in calibrations.
        data: Data packets of a group of an erasure code.
        parity: Parity packets of a group.
        reacts_to_loss: Whether losses shrink its window, like TCP Reno's.
        timeout_s: Emulated time until packets without feedback are resent; None: derived from the round trip.
        blind_packets: See `net.paths.datagram_recovery.LossyDatagrams`.
        bdp_multiple: The window, as a multiple of the bandwidth-delay product.
        window_bytes: A constant window; None if there is none.
    """

    recovery: str
    probed_as: str
    data: int
    parity: int
    reacts_to_loss: bool
    timeout_s: float | None = None
    blind_packets: int = 0
    bdp_multiple: float = 0.0
    window_bytes: float | None = None

    def excess_window_bytes(self, bdp_bytes: float) -> float:
        """Return the part of the window that exceeds the path's bandwidth-delay product, and so fills its queue."""
        held_bytes = self.bdp_multiple * bdp_bytes if self.window_bytes is None else self.window_bytes
        return max(0.0, held_bytes - bdp_bytes)


class Packet(NamedTuple):
    """A full packet: its payload in bytes, and all bytes that a link carries for it."""

    payload_bytes: int
    frame_bytes: int


class TransportKind(ABC):
    """A kind of transport. Subclasses implement `make`; all other defaults are those of plain TCP.

    The scenario's options (`transport.options`) are in the attribute `options`. Ranks import the module, too: it
    should need no more than the standard library, NumPy and `testbed.comm.transport`.
    """

    known_options: ClassVar[tuple[str, ...]] = ()
    """Names that `options` may have."""

    needed_options: ClassVar[tuple[str, ...]] = ()
    """Names that `options` must have."""

    config_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a scenario's `transport` that only this kind has; they are passed as options."""

    socket_keys: ClassVar[tuple[str, ...]] = ("congestion_control", "pacing", "buffers")
    """The settings of `transport.sockets` that apply to its sockets."""

    multipath: ClassVar[bool] = False
    """Whether its sockets are MPTCP sockets."""

    protocol: ClassVar[str] = "tcp"
    """The protocol of its packets in declared flows: "tcp", "udp" or "roce"."""

    verbs: ClassVar[bool] = False
    """Whether ranks need an RDMA-capable NIC."""

    writes: ClassVar[bool] = False
    """Whether large messages are RDMA writes, whatever the message protocol. They are sent once the receiver has
    announced its buffer, and the sender's request is done on the completion.
    """

    takes_several_paths: ClassVar[bool] = False
    """Whether messages of one pair may take several paths at once; otherwise all of one class take one path."""

    asks_network: ClassVar[bool] = False
    """Whether MeshSettings includes the bandwidth-delay product of each path and the rate of the rank's NIC."""

    settles: ClassVar[bool] = True
    """Whether a collective alone on the network always takes the same time; if not, runs do not check that."""

    modelled: ClassVar[bool] = False
    """Whether the model of a step can treat each pair as `channels` equal TCP connections.

    If not, predictions say so.
    """

    def __init__(self, **options: Any) -> None:
        known = (*self.known_options, *self.config_keys)
        if unknown := sorted(set(options) - set(known)):
            expected = ", ".join(self.known_options) or "none"
            raise PluginError(where="transport.options", got=repr(unknown[0]), expected=expected)
        if missing := [name for name in self.needed_options if name not in options]:
            raise PluginError(where="transport.options", got=f"no {missing[0]}", expected="one")
        self.options: Mapping[str, Any] = options

    @classmethod
    def emulated(cls, options: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
        """Return the options as ranks get them, converted from real values to emulated ones. They must fit in JSON."""
        return dict(options)

    @abstractmethod
    def make(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        distances: Sequence[str],
    ) -> Transport:
        """Return one rank's transport.

        Args:
            rank: The rank.
            addresses: (IPv4 address, port) of every rank, in rank order.
            settings: The settings of sockets.
            distances: The distance to each rank: same_rack, same_building, same_region or other_region.

        Raises:
            TransportError: If it cannot be made.
        """

    def channels(self, distance: str) -> int:
        """Return the number of connections, or subflows of one, between two ranks at this distance."""
        return 1

    def connection(self, traffic: TrafficClass, channel: int, distance: str) -> ConnectionKey:
        """Return the transport's key of a pair's connection, by which it gets its port and socket settings."""
        return ConnectionKey(traffic)

    def ports(self, dialled: int, listening: int, dialling: bool) -> tuple[int, int]:
        """Return source and destination port of a connection's packets.

        Args:
            dialled: The port of the dialling end.
            listening: The port of the listening end.
            dialling: Whether the packets are those of the dialling end.
        """
        return (dialled, listening) if dialling else (listening, dialled)

    @property
    def warms_up(self) -> bool:
        """Whether a pair's first messages are slower than later ones, as with TCP, whose window has to open."""
        return True

    @property
    def mends(self) -> LossRecovery | None:
        """Its own loss recovery; None if the kernel's TCP recovers losses."""
        return None

    @property
    def added_subflows(self) -> int:
        """The number of subflows that a host's kernel adds to each connection, each to another port of the listener."""
        return 0

    def overhead(self, distance: str) -> float:
        """Return the bytes that the transport adds per byte of long messages: headers, acknowledgements."""
        return 0.0

    def stripe_settings(self, distance: str) -> StripeSettings | None:
        """Return how messages are striped over connections; None for a single connection, or if the kernel does it."""
        return None

    def packet(self, mtu_bytes: int) -> Packet | None:
        """Return a full packet of a long message on links of this MTU; None: the same as TCP's."""
        return None

    def write_threshold_bytes(self, distance: str) -> float:
        """Return the size in bytes above which messages are large, for a kind that `writes`."""
        return math.inf

    @property
    def granted_share(self) -> float | None:
        """The share of its NIC's rate that a receiver grants to all senders together; None without grants."""
        return None

    def slowest_byte_s(self, distance: str, round_trip_s: Callable[[int], float]) -> float:
        """Return the minimum time per byte on one connection that the transport itself imposes, such as by a window.

        round_trip_s: the round trip of a message of this many bytes on the empty path.
        """
        return 0.0


TRANSPORTS: Registry[type[TransportKind]] = Registry(
    "transport", "testbed.comm.transport.kinds", "testbed.transports", derived_from(TransportKind)
)
"""All transport kinds by name. Each registers itself in its module: `@TRANSPORTS.register("tcp")`."""


def source_file(thing: type) -> Path:
    """Return the file in which a class is defined."""
    return Path(getattr(sys.modules[thing.__module__], "__file__", None) or thing.__module__)


def transport_kind(name: str, options: Mapping[str, Any]) -> TransportKind:
    """Return the kind of this name, or of FILE.py:NAME, with emulated options.

    Raises PluginError with file and line.
    """
    kind = TRANSPORTS.find(name)
    with attribute_errors(f"transport {name}", source_file(kind)):
        return kind(**options)
