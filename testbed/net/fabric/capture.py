"""Packet captures of WAN links at both ends of each direction, merged into one pcapng file."""

from __future__ import annotations

import heapq
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from testbed.net.links import LinkError, LinkWire
from testbed.net.links.netns import command_in_namespace
from testbed.processes import close_pipes, wait_or_kill, wait_readable

SNAP_BYTES = 128  # Ethernet, IPv4, TCP with all its options, and the beginning of the payload
BUFFER_KIB = 16_384
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
# the kernel hands packets over in blocks, at the latest a second after a block's first packet
HANDED_OVER_S = 1.1
SUFFIX = ".pcapng"


@dataclass
class _Point:
    """One interface watched in one direction."""

    link: str
    direction: str
    end: str
    interface: str
    flow: str
    file: Path
    process: subprocess.Popen[str] | None = None


class Capture:
    """Runs tcpdump on both ends of WAN links, in process `pid`'s namespaces; use as a context manager.

    After the block `folder` has `LINK.a_to_b.pcapng` and `LINK.b_to_a.pcapng` for each link: an interface named "entry"
    (before queue and fibre) and one named "exit", times with nanoseconds, packets cut to SNAP_BYTES. `records` tells
    how many packets there are, and how many tcpdump was too slow for.
    """

    def __init__(self, pid: int, wires: Iterable[LinkWire], links: Iterable[str], folder: Path) -> None:
        self._pid = pid
        self._folder = folder
        self._scratch = folder.with_name(f"{folder.name}.partial")
        wanted = set(links)
        self._points: list[_Point] = []
        for wire in wires:
            for direction, entry, leave in (
                ("a_to_b", wire.inner_a, wire.inner_b),
                ("b_to_a", wire.inner_b, wire.inner_a),
            ):
                for end, interface, flow in (("entry", entry, "in"), ("exit", leave, "out")):
                    file = self._scratch / f"{wire.name}.{direction}.{end}"
                    if wire.name in wanted:
                        self._points.append(_Point(wire.name, direction, end, interface, flow, file))
        self.records: list[dict[str, Any]] = []

    def __enter__(self) -> Capture:
        try:
            if self._points:
                self._scratch.mkdir(parents=True)
            for point in self._points:
                point.process = self._start(point)
            for point in self._points:
                self._await_start(point)
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._discard()

    def _start(self, point: _Point) -> subprocess.Popen[str]:
        command = ["tcpdump", "-i", point.interface, "-Q", point.flow, "-w", "-", "-Z", "root", "-n"]
        command += ["-s", str(SNAP_BYTES), "-B", str(BUFFER_KIB), "--time-stamp-precision=nano"]
        command = command_in_namespace(self._pid, ["setpriv", "--pdeathsig", "TERM", *command])
        try:
            # the file is opened here: tcpdump would give it to another user, which not every file system allows
            with point.file.open("wb") as file:
                return subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, text=True)
        except FileNotFoundError as error:
            raise LinkError(f"cannot capture: {error.filename} is not installed") from error

    def _await_start(self, point: _Point) -> None:
        assert point.process is not None
        assert point.process.stderr is not None
        said = ""
        while "listening on" not in said:
            readable = wait_readable([point.process.stderr], START_TIMEOUT_S)
            line = point.process.stderr.readline() if readable else ""
            if not line:
                raise LinkError(f"cannot capture link {point.link}: {said.strip() or 'no word from tcpdump'}")
            said += line

    def _finish(self) -> None:
        missed: dict[tuple[str, str, str], int] = {}
        if self._points:
            time.sleep(HANDED_OVER_S)
        for point in self._points:
            assert point.process is not None
            point.process.send_signal(signal.SIGINT)
        for point in self._points:
            assert point.process is not None
            _, said = point.process.communicate(timeout=STOP_TIMEOUT_S)
            dropped = re.search(r"(\d+) packets? dropped by kernel", said)
            missed[point.link, point.direction, point.end] = int(dropped[1]) if dropped else 0
        if self._points:
            self._folder.mkdir(exist_ok=True)
        for link, direction in dict.fromkeys((point.link, point.direction) for point in self._points):
            own = {
                point.end: point.file
                for point in self._points
                if (point.link, point.direction) == (link, direction)
            }
            counts = merge_captures(own, self._folder / f"{link}.{direction}{SUFFIX}")
            for end, packets in counts.items():
                record = {"link": link, "direction": direction, "end": end, "packets": packets}
                self.records.append({**record, "missed": missed[link, direction, end]})

    def _discard(self) -> None:
        for point in self._points:
            if point.process is not None:
                if point.process.poll() is None:
                    point.process.terminate()
                    wait_or_kill(point.process, 2.0)
                close_pipes(point.process)
        shutil.rmtree(self._scratch, ignore_errors=True)


_PCAP_NANOSECONDS = b"\x4d\x3c\xb2\xa1"
_PCAP_HEADER_BYTES = 24
_PCAP_RECORD = struct.Struct("<IIII")
_SECTION = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
_ETHERNET = 1
_IF_NAME, _IF_TSRESOL, _END = 2, 9, 0

Packet = tuple[int, bytes, int]  # nanoseconds since the epoch, what was kept, bytes on the wire


def read_pcap(path: Path) -> Iterator[Packet]:
    """The packets of a capture with nanoseconds; one cut off in the middle ends it. ValueError for another format."""
    with path.open("rb") as file:
        if file.read(_PCAP_HEADER_BYTES)[:4] != _PCAP_NANOSECONDS:
            raise ValueError(f"{path}: not a capture with nanoseconds, least significant byte first")
        while len(header := file.read(_PCAP_RECORD.size)) == _PCAP_RECORD.size:
            seconds, nanoseconds, kept, length = _PCAP_RECORD.unpack(header)
            data = file.read(kept)
            if len(data) < kept:
                return
            yield seconds * 1_000_000_000 + nanoseconds, data, length


def merge_captures(sources: Mapping[str, Path], target: Path) -> dict[str, int]:
    """Write one pcapng with an interface per source; returns the number of packets of each."""
    counts = dict.fromkeys(sources, 0)

    def of(number: int, path: Path) -> Iterator[tuple[int, int, bytes, int]]:
        return ((time_ns, number, data, length) for time_ns, data, length in read_pcap(path))

    names = list(sources)
    with target.open("wb") as file:
        file.write(_block(0x0A0D0D0A, _SECTION))
        for name in names:
            options = _option(_IF_NAME, name.encode()) + _option(_IF_TSRESOL, b"\x09") + _option(_END, b"")
            file.write(_block(1, struct.pack("<HHI", _ETHERNET, 0, 0) + options))
        streams = [of(number, sources[name]) for number, name in enumerate(names)]
        for time_ns, number, data, length in heapq.merge(*streams, key=lambda packet: packet[0]):
            counts[names[number]] += 1
            head = struct.pack("<IIIII", number, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), length)
            file.write(_block(6, head + _padded(data)))
    return counts


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + size + body + size


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
