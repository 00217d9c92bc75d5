"""The tunnel between two machines, measured by frames of its own before anything else uses it.

One end asks, the other (`answer`) does as it is asked: sends small frames back, counts large ones, sends large ones.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import time
from dataclasses import dataclass

from testbed.net.links.packet_sockets import (
    PACKET_IGNORE_OUTGOING,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    SOL_PACKET,
)
from testbed.processes import wait_readable

ETHERTYPE = 0x88B5  # for local experiments (IEEE 802)
ANYBODY, NOBODY = b"\xff" * 6, b"\x02" + b"\0" * 5
HEADER = struct.Struct("!6s6sHcId")  # addresses, type, what, number, a figure
ECHO, ECHOED, DATA, COUNT, COUNTED, SEND = b"e", b"E", b"d", b"c", b"C", b"s"
ECHOES, PATIENCE_S = 60, 0.5
BURST_S = 0.4
ROOM_BYTES = 8 << 20
# A machine that lost parts of large frames keeps the others for 30 s (net.ipv4.ipfrag_time), and where they fill its
# room for them no large frame arrives till then, be it from whoever used the network before.
FRAGMENTS_KEPT_S, AGAIN_S = 32.0, 2.0


@dataclass(frozen=True)
class TunnelMeasurement:
    """A tunnel to a building on another machine: round trip of small frames, rates there and back.

    slow_round_trip_s: their 95th percentile. needed_bps: what the network can ever send through it, one way.
    """

    machine: str
    building: str
    round_trip_s: float
    slow_round_trip_s: float
    there_bps: float
    back_bps: float
    needed_bps: float

    @property
    def missing(self) -> str:
        """What does not come back, for an error's message."""
        small = self.round_trip_s < float("inf")
        return "small frames come back and large ones do not" if small else "no frames come back"


class TunnelSocket:
    """One end: frames of this module's kind on an interface of the present network namespace."""

    def __init__(self, interface: str, mtu: int) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            self._socket.setsockopt(socket.SOL_SOCKET, option, ROOM_BYTES)
        self._socket.bind((interface, ETHERTYPE))
        self._data = bytes(max(0, mtu - HEADER.size))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, what: bytes, number: int = 0, figure: float = 0.0, data: bytes = b"") -> None:
        """One frame; none where the interface has no room for it."""
        with contextlib.suppress(OSError):
            self._socket.send(HEADER.pack(ANYBODY, NOBODY, ETHERTYPE, what, number, figure) + data)

    def receive(self, timeout_s: float) -> tuple[bytes, int, float, int] | None:
        """(what, number, figure, bytes) of the next frame; None if there is none in this time."""
        if not wait_readable([self._socket], timeout_s):
            return None
        frame = self._socket.recv(1 << 16)
        *_, what, number, figure = HEADER.unpack(frame[: HEADER.size])
        return what, number, figure, len(frame)

    def burst(self) -> None:
        """Large frames for BURST_S, as fast as they go."""
        end_s = time.monotonic() + BURST_S
        while time.monotonic() < end_s:
            self.send(DATA, data=self._data)


class _Tally:
    """Bytes of large frames after the first one, and the seconds they took."""

    def __init__(self) -> None:
        self.bytes = 0
        self._first_s = self._last_s = 0.0

    @property
    def seconds(self) -> float:
        return self._last_s - self._first_s

    def add(self, size: int) -> None:
        self._last_s = time.monotonic()
        self.bytes += size if self._first_s else 0
        self._first_s = self._first_s or self._last_s


def answer(end: TunnelSocket) -> None:
    """Do as the other end asks, until it closes (OSError, ValueError): for a thread."""
    tally = _Tally()
    while True:
        frame = end.receive(PATIENCE_S)
        if frame is None:
            continue
        what, number, _, size = frame
        if what == ECHO:
            end.send(ECHOED, number)
        elif what == DATA:
            tally.add(size)
        elif what == COUNT:
            end.send(COUNTED, tally.bytes, tally.seconds)
            tally = _Tally()
        elif what == SEND:
            end.burst()


def round_trips(end: TunnelSocket) -> list[float]:
    """Seconds, of small frames one at a time; those that do not come back are left out."""
    times = []
    for number in range(ECHOES):
        began_s = time.monotonic()
        end.send(ECHO, number)
        while (frame := end.receive(PATIENCE_S)) is not None:
            if frame[:2] == (ECHOED, number):
                times.append(time.monotonic() - began_s)
                break
    return times


def rate_there_bps(end: TunnelSocket) -> float:
    """What the other end got, in bit/s of Ethernet frames; 0 when it got nothing."""
    end.burst()
    time.sleep(0.05)
    end.send(COUNT)
    while (frame := end.receive(2 * PATIENCE_S)) is not None:
        if frame[0] == COUNTED:
            return frame[1] * 8 / frame[2] if frame[2] > 0 else 0.0
    return 0.0


def rate_back_bps(end: TunnelSocket) -> float:
    """What this end gets, in bit/s of Ethernet frames; 0 when it gets nothing."""
    end.send(SEND)
    tally = _Tally()
    while (frame := end.receive(PATIENCE_S)) is not None:
        if frame[0] == DATA:
            tally.add(frame[3])
    return tally.bytes * 8 / tally.seconds if tally.seconds > 0 else 0.0


def measure(end: TunnelSocket, machine: str, building: str, needed_bps: float) -> TunnelMeasurement:
    """All of it. A tunnel through which nothing passes has infinite times and no rate.

    Where small frames come back and large ones do not, it tries again until fragments of others' frames are given up.
    """
    times = sorted(round_trips(end)) or [float("inf")]
    patience = int(FRAGMENTS_KEPT_S / AGAIN_S) if times[0] < float("inf") else 0
    there_bps, back_bps = rate_there_bps(end), rate_back_bps(end)
    while patience and not (there_bps and back_bps):
        patience -= 1
        time.sleep(AGAIN_S)
        there_bps, back_bps = rate_there_bps(end), rate_back_bps(end)
    return TunnelMeasurement(
        machine,
        building,
        round_trip_s=statistics.median(times),
        slow_round_trip_s=times[int(0.95 * len(times))],
        there_bps=there_bps,
        back_bps=back_bps,
        needed_bps=needed_bps,
    )
