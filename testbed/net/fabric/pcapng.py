"""Captures put together: from tcpdump's files, one per interface, to one pcapng with all of them in the order of time.

Formats: pcap with nanoseconds (magic a1b23c4d, draft-ietf-opsawg-pcap), pcapng (draft-ietf-opsawg-pcapng: section
header, interface description and enhanced packet blocks). Written here because the usual libraries keep microseconds.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

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


def merge(sources: Mapping[str, Path], target: Path) -> dict[str, int]:
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
