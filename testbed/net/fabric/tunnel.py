"""The measurement of a tunnel between two machines, with its own frames, before anything else uses the tunnel.

One end is the client. The other end (`serve`) echoes small frames, counts large frames and sends large frames.
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
BROADCAST_MAC, SOURCE_MAC = b"\xff" * 6, b"\x02" + b"\0" * 5
HEADER = struct.Struct("!6s6sHcId")  # MAC addresses, EtherType, message type, number, value
ECHO, ECHOED, DATA, COUNT, COUNTED, SEND = b"e", b"E", b"d", b"c", b"C", b"s"
ECHOES, RECEIVE_TIMEOUT_S = 60, 0.5
BURST_S = 0.4
SOCKET_BUFFER_BYTES = 8 << 20
# A machine that lost fragments keeps the rest for 30 s (net.ipv4.ipfrag_time). If they fill its reassembly memory, no
# large frame arrives until then, even if an earlier user of the network sent them.
FRAGMENT_TIMEOUT_S, RETRY_INTERVAL_S = 32.0, 2.0


@dataclass(frozen=True)
class TunnelMeasurement:
    """The measurement of a tunnel to a building on another machine.

    Attributes:
        machine: The machine's name.
        building: The building's name.
        round_trip_s: Median round trip of small frames; infinite if none came back.
        slow_round_trip_s: Their 95th percentile.
        there_bps: Rate to the machine.
        back_bps: Rate from the machine.
        needed_bps: The maximum rate at which the fabric can send through it in one direction.
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
        """The kind of frames that are lost, for an error message."""
        small = self.round_trip_s < float("inf")
        return "small frames come back and large ones do not" if small else "no frames come back"


class TunnelSocket:
    """One end of a measurement: a packet socket on an interface of the current network namespace."""

    def __init__(self, interface: str, mtu: int) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            self._socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._socket.bind((interface, ETHERTYPE))
        self._data = bytes(max(0, mtu - HEADER.size))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, what: bytes, number: int = 0, figure: float = 0.0, data: bytes = b"") -> None:
        """Send a frame; drop it if the interface's queue is full."""
        with contextlib.suppress(OSError):
            self._socket.send(HEADER.pack(BROADCAST_MAC, SOURCE_MAC, ETHERTYPE, what, number, figure) + data)

    def receive(self, timeout_s: float) -> tuple[bytes, int, float, int] | None:
        """Return (type, number, value, size in bytes) of the next frame; None after the timeout."""
        if not wait_readable([self._socket], timeout_s):
            return None
        frame = self._socket.recv(1 << 16)
        *_, what, number, figure = HEADER.unpack(frame[: HEADER.size])
        return what, number, figure, len(frame)

    def burst(self) -> None:
        """Send large frames for BURST_S, as fast as possible."""
        end_s = time.monotonic() + BURST_S
        while time.monotonic() < end_s:
            self.send(DATA, data=self._data)


class _RateMeter:
    """A meter of received bytes after the first frame, and of the seconds that they took."""

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


def serve(end: TunnelSocket) -> None:
    """Serve the other end's requests until the socket is closed, which raises OSError or ValueError."""
    meter = _RateMeter()
    while True:
        frame = end.receive(RECEIVE_TIMEOUT_S)
        if frame is None:
            continue
        what, number, _, size = frame
        if what == ECHO:
            end.send(ECHOED, number)
        elif what == DATA:
            meter.add(size)
        elif what == COUNT:
            end.send(COUNTED, meter.bytes, meter.seconds)
            meter = _RateMeter()
        elif what == SEND:
            end.burst()


def measure_round_trips(end: TunnelSocket) -> list[float]:
    """Measure round trips of small frames, one at a time, in seconds; lost ones are omitted."""
    times = []
    for number in range(ECHOES):
        began_s = time.monotonic()
        end.send(ECHO, number)
        while (frame := end.receive(RECEIVE_TIMEOUT_S)) is not None:
            if frame[:2] == (ECHOED, number):
                times.append(time.monotonic() - began_s)
                break
    return times


def measure_rate_there_bps(end: TunnelSocket) -> float:
    """Measure the rate at which the other end receives, in bit/s of Ethernet frames; 0 if it receives nothing."""
    end.burst()
    time.sleep(0.05)
    end.send(COUNT)
    while (frame := end.receive(2 * RECEIVE_TIMEOUT_S)) is not None:
        if frame[0] == COUNTED:
            return frame[1] * 8 / frame[2] if frame[2] > 0 else 0.0
    return 0.0


def measure_rate_back_bps(end: TunnelSocket) -> float:
    """Measure the rate at which this end receives, in bit/s of Ethernet frames; 0 if it receives nothing."""
    end.send(SEND)
    meter = _RateMeter()
    while (frame := end.receive(RECEIVE_TIMEOUT_S)) is not None:
        if frame[0] == DATA:
            meter.add(frame[3])
    return meter.bytes * 8 / meter.seconds if meter.seconds > 0 else 0.0


def measure_tunnel(end: TunnelSocket, machine: str, building: str, needed_bps: float) -> TunnelMeasurement:
    """Measure round trip and rates of a tunnel; without any connectivity, times are infinite and rates 0.

    If small frames come back and large ones do not, retry until the kernel has discarded stale fragments.
    """
    times = sorted(measure_round_trips(end)) or [float("inf")]
    retries = int(FRAGMENT_TIMEOUT_S / RETRY_INTERVAL_S) if times[0] < float("inf") else 0
    there_bps, back_bps = measure_rate_there_bps(end), measure_rate_back_bps(end)
    while retries and not (there_bps and back_bps):
        retries -= 1
        time.sleep(RETRY_INTERVAL_S)
        there_bps, back_bps = measure_rate_there_bps(end), measure_rate_back_bps(end)
    return TunnelMeasurement(
        machine,
        building,
        round_trip_s=statistics.median(times),
        slow_round_trip_s=times[int(0.95 * len(times))],
        there_bps=there_bps,
        back_bps=back_bps,
        needed_bps=needed_bps,
    )
