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
from typing import Any

from testbed.net.links import LinkError, LinkWire
from testbed.net.links.netns import command_in_namespace
from testbed.processes import close_pipes, wait_or_kill, wait_readable

SNAP_BYTES = 128  # Ethernet, IPv4, TCP with all options, and the beginning of the payload
BUFFER_KIB = 16_384
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
# The kernel delivers packets in blocks, at most one second after a block's first packet.
FLUSH_S = 1.1
SUFFIX = ".pcapng"


@dataclass
class _CapturePoint:
    """One interface captured in one direction."""

    link: str
    direction: str
    end: str
    interface: str
    flow: str
    file: Path


class Capture:
    """A context manager that runs tcpdump at both ends of WAN links.

    After the block, `folder` contains `LINK.a_to_b.pcapng` and `LINK.b_to_a.pcapng` for each link. Each has an
    interface "entry" (before queue and propagation) and an interface "exit", with nanosecond timestamps and packets cut
    to SNAP_BYTES. `records` has the number of packets in each, and the number that tcpdump missed.

    Args:
        pid: A process in the WAN namespace.
        wires: All wires of the link engine.
        links: The names of the links to capture.
        folder: The folder for the files.
    """

    def __init__(self, pid: int, wires: Iterable[LinkWire], links: Iterable[str], folder: Path) -> None:
        self._pid = pid
        self._folder = folder
        self._scratch = folder.with_name(f"{folder.name}.partial")
        wanted = set(links)
        self._points: list[_CapturePoint] = []
        self._running: list[tuple[_CapturePoint, subprocess.Popen[str]]] = []
        for wire in wires:
            for direction, entry, leave in (
                ("a_to_b", wire.inner_a, wire.inner_b),
                ("b_to_a", wire.inner_b, wire.inner_a),
            ):
                for end, interface, flow in (("entry", entry, "in"), ("exit", leave, "out")):
                    file = self._scratch / f"{wire.name}.{direction}.{end}"
                    if wire.name in wanted:
                        self._points.append(_CapturePoint(wire.name, direction, end, interface, flow, file))
        self.records: list[dict[str, Any]] = []

    def __enter__(self) -> Capture:
        try:
            if self._points:
                self._scratch.mkdir(parents=True)
            for point in self._points:
                self._running.append((point, self._start(point)))
            for point, process in self._running:
                self._await_start(point, process)
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *reason: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._discard()

    def _start(self, point: _CapturePoint) -> subprocess.Popen[str]:
        command = ["tcpdump", "-i", point.interface, "-Q", point.flow, "-w", "-", "-Z", "root", "-n"]
        command += ["-s", str(SNAP_BYTES), "-B", str(BUFFER_KIB), "--time-stamp-precision=nano"]
        command = command_in_namespace(self._pid, ["setpriv", "--pdeathsig", "TERM", *command])
        try:
            # Open the file here: tcpdump would change its owner, which not every file system allows.
            with point.file.open("wb") as file:
                return subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, text=True)
        except FileNotFoundError as error:
            raise LinkError(f"cannot capture: {error.filename} is not installed") from error

    def _await_start(self, point: _CapturePoint, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        messages = ""
        while "listening on" not in messages:
            readable = wait_readable([process.stderr], START_TIMEOUT_S)
            line = process.stderr.readline() if readable else ""
            if not line:
                reason = messages.strip() or "tcpdump did not start"
                raise LinkError(f"cannot capture link {point.link}: {reason}")
            messages += line

    def _finish(self) -> None:
        missed: dict[tuple[str, str, str], int] = {}
        if self._points:
            time.sleep(FLUSH_S)
        for _, process in self._running:
            process.send_signal(signal.SIGINT)
        for point, process in self._running:
            _, messages = process.communicate(timeout=STOP_TIMEOUT_S)
            dropped = re.search(r"(\d+) packets? dropped by kernel", messages)
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
        for _, process in self._running:
            process.terminate()  # does nothing if it has ended
            wait_or_kill(process, 2.0)
            close_pipes(process)
        shutil.rmtree(self._scratch, ignore_errors=True)


_PCAP_NANOSECONDS = b"\x4d\x3c\xb2\xa1"
_PCAP_HEADER_BYTES = 24
_PCAP_RECORD = struct.Struct("<IIII")
_SECTION = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
_ETHERNET = 1
_IF_NAME, _IF_TSRESOL, _END = 2, 9, 0

Packet = tuple[int, bytes, int]  # nanoseconds since the epoch, captured bytes, length on the wire


def read_pcap(path: Path) -> Iterator[Packet]:
    """Yield the packets of a little-endian pcap file with nanosecond timestamps, up to the first truncated one.

    Raises:
        ValueError: The file has another format.
    """
    with path.open("rb") as file:
        if file.read(_PCAP_HEADER_BYTES)[:4] != _PCAP_NANOSECONDS:
            raise ValueError(f"{path}: expected a little-endian pcap file with nanosecond timestamps")
        while len(header := file.read(_PCAP_RECORD.size)) == _PCAP_RECORD.size:
            seconds, nanoseconds, kept, length = _PCAP_RECORD.unpack(header)
            data = file.read(kept)
            if len(data) < kept:
                return
            yield seconds * 1_000_000_000 + nanoseconds, data, length


def merge_captures(sources: Mapping[str, Path], target: Path) -> dict[str, int]:
    """Merge pcap files into one pcapng file with an interface per source; return the packet count of each."""
    counts = dict.fromkeys(sources, 0)

    def numbered(number: int, path: Path) -> Iterator[tuple[int, int, bytes, int]]:
        return ((time_ns, number, data, length) for time_ns, data, length in read_pcap(path))

    names = list(sources)
    with target.open("wb") as file:
        file.write(_block(0x0A0D0D0A, _SECTION))
        for name in names:
            options = _option(_IF_NAME, name.encode()) + _option(_IF_TSRESOL, b"\x09") + _option(_END, b"")
            file.write(_block(1, struct.pack("<HHI", _ETHERNET, 0, 0) + options))
        streams = [numbered(number, sources[name]) for number, name in enumerate(names)]
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
