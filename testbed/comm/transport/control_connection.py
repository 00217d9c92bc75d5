"""Pairs whose messages bypass TCP, such as queue pairs, but which a TCP connection sets up and closes.

Over this control connection, the ends of a pair exchange addresses, notes and goodbyes. It also detects a lost peer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from testbed.comm.transport.base import TransportError
from testbed.comm.transport.mesh import Mesh, Pair
from testbed.comm.transport.onesided import PeerEnd
from testbed.comm.transport.tcp import Connection
from testbed.comm.transport.wire import GOODBYE_TAG, HEADER, NOTE_TAG, ConnectionKey

SETUP_TAG, READY_TAG = 2**64 - 4, 2**64 - 5  # above all message tags


class ControlledPair(Pair, Protocol):
    """A pair with a control connection."""

    def fail(self, reason: TransportError) -> None:
        """Mark the peer as lost."""


ControlledT = TypeVar("ControlledT", bound=ControlledPair)


class ControlledMesh(Mesh[ControlledT]):
    """One rank's pairs, each with a control connection.

    Attributes:
        setup_limits: The tags of the messages that set up a pair, with the size limit of each in bytes.
        setup_content: The content of these messages, for errors.
        holds_goodbye: Whether this rank answers a peer's goodbye only once its own pair can say goodbye, too.
    """

    setup_limits: ClassVar[Mapping[int, int]]
    setup_content: ClassVar[str]
    holds_goodbye: ClassVar[bool] = False

    # ---- for subclasses

    def _make_pair(self, peer: int, key: ConnectionKey) -> ControlledT:
        """Return a new pair."""
        raise NotImplementedError

    def _on_attach(self, control: ControlConnection[ControlledT]) -> None:
        """Start the exchange: the control connection is open."""
        raise NotImplementedError

    def _on_setup(self, control: ControlConnection[ControlledT], tag: int, data: bytearray) -> None:
        """Handle a message of the exchange."""
        raise NotImplementedError

    def _on_end(self, control: ControlConnection[ControlledT], error: TransportError) -> None:
        """Handle the loss of the peer."""
        control.pair.fail(error)

    def _pair_info(self, pair: ControlledT) -> dict[str, Any]:
        """Return statistics of a pair, ready for JSON."""
        return {}

    # ---- see Mesh

    def _make_stream(self, peer: int, key: ConnectionKey) -> ControlConnection[ControlledT]:
        if key.channel or key.channels:
            raise ValueError(f"channel: got {key.channel} of {key.channels}, expected none")
        pair = self._pairs.setdefault(key.traffic, {})[peer] = self._make_pair(peer, key)
        return ControlConnection(self, pair, peer, key)

    def _controls(self) -> Iterator[ControlConnection[ControlledT]]:
        """Yield the control connections of all pairs, in the order in which they were made."""
        for stream in list(self._streams.values()):
            assert isinstance(stream, ControlConnection)
            yield stream


class ControlConnection(Connection, Generic[ControlledT]):
    """The control connection of one pair."""

    def __init__(
        self, mesh: ControlledMesh[ControlledT], pair: ControlledT, peer: int, key: ConnectionKey
    ) -> None:
        super().__init__(PeerEnd(mesh.rank, peer, mesh.counters[peer], mesh.exposed))
        self.pair, self.key = pair, key
        self._mesh = mesh

    def attach(self, sock: Any, watch: Any) -> None:
        """Attach the socket (see Stream), and start the exchange."""
        super().attach(sock, watch)
        if self.lost is None:
            self._mesh._on_attach(self)

    def send_setup(self, data: bytes, tag: int = SETUP_TAG) -> None:
        """Send a message of the exchange."""
        self.queue(HEADER.pack(tag, len(data)), memoryview(data), None)

    def refuse_setup(self, size_bytes: int) -> None:
        """Mark the peer as lost after a message that does not belong here."""
        expected = f"{self._mesh.setup_content}, notes and goodbyes"
        self.fail(f"it sent a message of {size_bytes} bytes where only {expected} belong")

    def info(self) -> dict[str, Any] | None:
        """See Stream; with statistics of the pair."""
        info = super().info()
        return None if info is None else {**info, **self._mesh._pair_info(self.pair)}

    def _begin_payload(self, stage: bytearray, start: int) -> bool:
        tag, length = HEADER.unpack_from(stage, start)
        if tag in {GOODBYE_TAG, NOTE_TAG}:
            return super()._begin_payload(stage, start)
        if length > self._mesh.setup_limits.get(tag, -1):
            self.refuse_setup(length)
            return False
        return self._begin_control(length, partial(self._mesh._on_setup, self, tag))

    def _on_goodbye(self, reason: str, orderly: bool = False) -> None:
        if orderly and self._mesh.holds_goodbye and not self.pair.can_say_goodbye:
            self._pause()  # until `resume_reading`
        else:
            super()._on_goodbye(reason, orderly)

    def _on_lost(self, error: TransportError) -> None:
        super()._on_lost(error)
        self._mesh._on_end(self, error)
