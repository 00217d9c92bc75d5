"""Execution traces byte by byte, from field numbers alone: nothing of the testbed's own reader or writer."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

Fields = list[tuple[int, Any]]
METADATA, LOAD, STORE, COMP, SEND, RECV, COLL = range(1, 8)
DOUBLE, INT32, INT64, UINT64, BOOL, BOOLS, STRING = 3, 7, 9, 13, 27, 28, 29  # of a current attribute's values


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(fields: Fields) -> bytes:
    """Whole numbers as varints, floats as 8 bytes, text and messages with their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def attribute(name: str, kind: int, value: Any) -> tuple[int, bytes]:
    """Of a node in the current form."""
    if kind == BOOLS:
        value = message([(1, bytes(map(int, value)))])
    return 10, message([(1, name), (kind, value)])


def node(number: int, name: str, kind: int, *more: tuple[int, Any]) -> bytes:
    return message([(1, number), (2, name), (3, kind), *more])


def waits(*before: int) -> tuple[int, bytes]:
    """data_deps, in the current form."""
    return 5, b"".join(map(varint, before))


def collective(number: int, comm: int, size: int, *more: tuple[int, Any], name: str = "coll") -> bytes:
    own = (attribute("comm_type", INT64, comm), attribute("comm_size", INT64, size))
    return node(number, name, COLL, attribute("is_cpu_op", BOOL, 0), *own, *more)


def write(path: Path, *messages: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(varint(len(own)) + own for own in messages))
    return path


def version(text: str = "0.0.4") -> bytes:
    return message([(1, text)])


def decoded(data: bytes) -> Fields:
    """A message's fields in their order; messages and text as bytes."""
    found: Fields = []
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        key = number()
        if key & 7 == 0:
            found.append((key >> 3, number()))
        else:
            size = {1: 8, 5: 4}.get(key & 7) or number()
            found.append((key >> 3, data[position : position + size]))
            position += size
    return found


def messages(path: Path) -> list[Fields]:
    """Of a file, each with the length before it."""
    found = []
    data, position = path.read_bytes(), 0
    while position < len(data):
        size, shift = 0, 0
        while True:
            byte = data[position]
            position += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(decoded(data[position : position + size]))
        position += size
    return found


def attributes(fields: Fields) -> dict[str, Any]:
    """Of a node in the current form: values as they stand on the wire."""
    found = {}
    for number, value in fields:
        if number == 10:
            own = decoded(value)
            found[dict(own)[1].decode()] = own[1][1]
    return found
