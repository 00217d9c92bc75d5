"""What a kind of transport is: how a rank's is made of its options, what policies, model and fabric ask about it."""

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
    """How a transport mends losses itself. probed_as: what calibrations know that by.

    data, parity: of a group of erasure codes. reacts: whether losses make its window smaller, as TCP Reno's. products:
    of the path's rate and round trip how much its window holds; window_bytes: of a window of one size, None where
    there is none. timeout_s: until what nothing else tells of is sent again, emulated; None: by the round trip.
    blind_packets: see `net.paths.datagram_recovery.LossyDatagrams`.
    """

    recovery: str
    probed_as: str
    data: int
    parity: int
    reacts: bool
    timeout_s: float | None = None
    blind_packets: int = 0
    products: float = 0.0
    window_bytes: float | None = None

    def standing_bytes(self, product_bytes: float) -> float:
        """Of its window what a full path of such a product does not hold, so that it stands in its queue."""
        held_bytes = self.products * product_bytes if self.window_bytes is None else self.window_bytes
        return max(0.0, held_bytes - product_bytes)


class Packet(NamedTuple):
    """A full packet: bytes of payload, and all that a link carries for it."""

    payload_bytes: int
    frame_bytes: int


class TransportKind(ABC):
    """A kind of transport. Derive, and make one rank's transport in `make`; the rest has defaults of plain TCP.

    Options of the scenario (`transport.options`) arrive as attribute `options`. Ranks import the module, too: it should
    need no more than the standard library, NumPy and `testbed.comm.transport`.
    """

    known_options: ClassVar[tuple[str, ...]] = ()
    """What `options` may hold."""

    needed_options: ClassVar[tuple[str, ...]] = ()
    """Which of them must be there."""

    config_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a scenario's `transport` that say something to it alone; they arrive among the options."""

    socket_keys: ClassVar[tuple[str, ...]] = ("congestion_control", "pacing", "buffers")
    """Which settings of `transport.sockets` its sockets can have."""

    multipath: ClassVar[bool] = False
    """Whether its sockets are MPTCP's."""

    protocol: ClassVar[str] = "tcp"
    """What its messages' packets are to the network: "tcp", "udp", or "roce", as a declared flow has it."""

    verbs: ClassVar[bool] = False
    """Whether ranks need a network card with verbs, for RDMA."""

    writes: ClassVar[bool] = False
    """Whether a large message leaves only when its receiver has said where to, whatever the protocol, and is done with
    at its sender when word has come back that it is there."""

    takes_several_paths: ClassVar[bool] = False
    """Whether messages of one pair may take several paths at once; else all of a traffic class take one."""

    asks_network: ClassVar[bool] = False
    """Whether ranks are told the product of rate and delay of each path, and their cards' rates (MeshSettings)."""

    settles: ClassVar[bool] = True
    """Whether the same collective, alone on the network, takes as long each time; else runs do not ask that of it."""

    modelled: ClassVar[bool] = False
    """Whether the model of a step is right about it: pairs have `channels` alike, each a TCP connection. If not,
    predictions say so."""

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
        """The options as ranks get them, from real figures to emulated ones; JSON must be able to carry them."""
        return dict(options)

    @abstractmethod
    def make(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        distances: Sequence[str],
    ) -> Transport:
        """One rank's transport.

        addresses: (IPv4 address, port) of every rank, in rank order. settings: how sockets are to be made. distances:
        from this rank to each, of same_rack, same_building, same_region, other_region. TransportError.
        """

    def channels(self, distance: str) -> int:
        """Over how many connections, or subflows of one, messages between two ranks so far apart are spread."""
        return 1

    def connection(self, traffic: TrafficClass, channel: int, distance: str) -> ConnectionKey:
        """What a pair's connection is known by to the transport, so that it gets its port and socket settings."""
        return ConnectionKey(traffic)

    def ports(self, dialled: int, listening: int, dialling: bool) -> tuple[int, int]:
        """From and to which a connection's packets go that the end dials which has port `dialled`.

        dialling: whether they are of that end, not of the one that listens.
        """
        return (dialled, listening) if dialling else (listening, dialled)

    @property
    def warms_up(self) -> bool:
        """Whether a pair's first messages are slower than later ones: as TCP's, whose windows open."""
        return True

    @property
    def mends(self) -> LossRecovery | None:
        """How it mends losses itself; None where the kernel's TCP does."""
        return None

    @property
    def added_subflows(self) -> int:
        """How many subflows a host's kernel adds to each connection, each to a port more that the listener has."""
        return 0

    def overhead(self, distance: str) -> float:
        """Of long messages, what the transport itself adds on the network for each byte: headers, acknowledgements."""
        return 0.0

    def dealing(self, distance: str) -> StripeSettings | None:
        """How messages are cut and dealt out to connections; None where one carries them all, or the kernel does it."""
        return None

    def packet(self, mtu_bytes: int) -> Packet | None:
        """Of long messages, on links of this MTU; None: as TCP's."""
        return None

    def written_above(self, distance: str) -> float:
        """Which of its messages are large, where it `writes`: of more bytes than these."""
        return math.inf

    @property
    def granted(self) -> float | None:
        """Of a receiver's card what it grants its senders, all together, before they send; None where nobody asks."""
        return None

    def slowest_byte_s(self, distance: str, round_trip_s: Callable[[int], float]) -> float:
        """What a byte takes at least on one connection, by rules of the transport's own, such as a window.

        round_trip_s: of a message of so many bytes on the empty path.
        """
        return 0.0


TRANSPORTS: Registry[type[TransportKind]] = Registry(
    "transport", "testbed.comm.transport.kinds", "testbed.transports", derived_from(TransportKind)
)
"""All that have a name. Each registers where it stands: `@TRANSPORTS.register("tcp")`."""


def source_file(thing: type) -> Path:
    """The file that a class stands in."""
    return Path(getattr(sys.modules[thing.__module__], "__file__", None) or thing.__module__)


def transport_kind(name: str, options: Mapping[str, Any]) -> TransportKind:
    """Of a name, or of FILE.py:NAME. options: emulated. PluginError, with the file's line that raised."""
    kind = TRANSPORTS.find(name)
    with attribute_errors(f"transport {name}", source_file(kind)):
        return kind(**options)
