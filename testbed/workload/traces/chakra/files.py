"""One rank's `.et` file: length-prefixed messages with metadata first, readable in every version of the format."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.proto import serialize_length_prefixed
from google.protobuf.unknown_fields import UnknownFieldSet

from testbed.workload.traces.chakra import schema
from testbed.workload.traces.trace import TraceError

_TYPE = 3  # number of the field `type` in nodes of every form, which metadata does not have


@dataclass(frozen=True)
class EtNode:
    """A node, in the same representation for files of every form.

    Attributes:
        attributes: Values by name, with lists as tuples; `comm_type` always has the current form's number.
        values: Values of its inputs, as text.
        types: Types of its inputs, as text.
        start_us: Start in microseconds; 0 if unknown.
        duration_us: Duration in microseconds; 0 if unknown.
    """

    id: int
    name: str
    type: int
    data_deps: tuple[int, ...] = ()
    ctrl_deps: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: str = ""
    types: str = ""


@dataclass(frozen=True)
class EtFile:
    """A rank's file.

    Attributes:
        path: The file.
        version: Version of the format, as stated in the file or implied by its form.
        attributes: Attributes of the whole file.
        nodes: The nodes.
        unknown: Number of nodes with fields that the form does not have.
    """

    path: Path
    version: str
    attributes: Mapping[str, Any]
    nodes: tuple[EtNode, ...]
    unknown: int = 0


def read_file(path: Path) -> EtFile:
    """Read a rank's file; raise TraceError, with the message's number, if it is not an execution trace."""
    messages = list(_messages(path))
    if not messages:
        hint = "The rank that wrote it died, or its disk was full."
        raise TraceError(where=str(path), got="no node", expected="a trace of what its rank does", hint=hint)
    first_is_metadata = _TYPE not in _fields(path, 0, messages[0])
    metadata, nodes = (messages[:1], messages[1:]) if first_is_metadata else ([], messages)
    head = _parse(path, 0, schema.CURRENT["GlobalMetadata"], metadata[0] if metadata else b"")
    attributes = {own.name: _value(own) for own in head.attr}
    first = len(metadata)

    def parsed(form: Mapping[str, Any]) -> list[Any]:
        return [_parse(path, number, form["Node"], data) for number, data in enumerate(nodes, first)]

    if head.version or attributes:
        current = parsed(schema.CURRENT)
        return EtFile(
            path,
            head.version,
            attributes,
            tuple(map(_node_of_current, current)),
            sum(map(_has_unknown_fields, current)),
        )
    old = parsed(schema.ATTRIBUTES)
    if any(not node.attribute and _has_unknown_fields(node) for node in old):
        # `attribute` is a message and `input_shapes` is text, so numbers in these fields mean another form
        current = parsed(schema.CURRENT)
        if not any(map(_has_unknown_fields, current)):
            return EtFile(path, "", attributes, tuple(map(_node_of_current, current)))
        return EtFile(path, "0.0.1", attributes, tuple(map(_node_of_flat, parsed(schema.FLAT))))
    if any(node.attribute for node in old):
        if any(_has_unknown_fields(own) for node in old for own in node.attribute):
            old = parsed(schema.EARLIER_ATTRIBUTES)
        return EtFile(path, "0.0.3", attributes, tuple(map(_node_of_attributes, old)))
    return EtFile(path, "", attributes, tuple(map(_node_of_current, parsed(schema.CURRENT))))


def write_file(path: Path, attributes: Mapping[str, Any], nodes: Iterable[EtNode]) -> None:
    """Write a rank's file in the current form."""
    head = schema.CURRENT["GlobalMetadata"](version=schema.VERSION)
    _set_attributes(head.attr, attributes)
    with path.open("wb") as file:
        for message in (head, *map(_message, nodes)):
            serialize_length_prefixed(message, file)


def _messages(path: Path) -> Iterator[bytes]:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: no execution trace: {error}") from None
    position, number = 0, 0
    while position < len(data):
        length = shift = 0
        while True:
            if position >= len(data) or shift > 28:
                raise TraceError(f"{path}: message {number}: got no length, expected a varint of 32 bits")
            byte = data[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if position + length > len(data):
            have = len(data) - position
            raise TraceError(f"{path}: message {number}: got {have} bytes, expected {length}")
        yield data[position : position + length]
        position += length
        number += 1


def _parse(path: Path, number: int, kind: Any, data: bytes) -> Any:
    message = kind()
    try:
        message.MergeFromString(data)
    except DecodeError as error:
        raise TraceError(f"{path}: message {number}: no message of an execution trace: {error}") from None
    return message


def _fields(path: Path, number: int, data: bytes) -> set[int]:
    """Return the numbers of the fields that are present."""
    from google.protobuf.empty_pb2 import Empty  # noqa: PLC0415

    return {own.field_number for own in UnknownFieldSet(_parse(path, number, Empty, data))}


def _has_unknown_fields(message: Message) -> bool:
    return len(UnknownFieldSet(message)) > 0


def _value(attribute: Any) -> Any:
    """Return the value of a current-form attribute; None if there is none."""
    which = attribute.WhichOneof("value")
    if which is None:
        return None
    value = getattr(attribute, which)
    return tuple(value.values) if which.endswith("_list") else value


def _node_of_current(node: Any) -> EtNode:
    return EtNode(
        node.id,
        node.name,
        node.type,
        tuple(node.data_deps),
        tuple(node.ctrl_deps),
        node.start_time_micros,
        node.duration_micros,
        {own.name: _value(own) for own in node.attr},
        node.inputs.values,
        node.inputs.types,
    )


def _node_of_attributes(node: Any) -> EtNode:
    attributes: dict[str, Any] = {}
    for own in node.attribute:
        there = {one.name: value for one, value in own.ListFields()}
        values = [value for name, value in there.items() if name not in ("name", "type", "doc_string")]
        value = values[0] if values else None
        attributes[own.name] = value if isinstance(value, str | int | float | None) else tuple(value)
    runtime = attributes.pop("runtime", 0)
    if "comm_type" in attributes:
        attributes["comm_type"] = _current_number(schema.ATTRIBUTES_COMM, attributes["comm_type"])
    parents = tuple(node.parent)
    return EtNode(node.id, node.name, node.type, parents, (), 0, int(runtime), attributes, node.inputs)


def _node_of_flat(node: Any) -> EtNode:
    figures = {one.name: value for one, value in node.ListFields()}
    names = ("tensor_size", "num_ops", "comm_src", "comm_dst", "comm_size", "comm_tag")
    attributes = {name: figures[name] for name in names if name in figures}
    if comm := figures.get("comm_type"):
        attributes["comm_type"] = int(schema.FLAT_COMM.get(comm, -comm))
    if group := figures.get("communicator_id"):
        attributes["pg_name"] = str(group)
    if dims := figures.get("involved_dim"):
        attributes["involved_dim"] = tuple(dims)
    kind = _current_number(schema.FLAT_TYPES, node.type)
    return EtNode(
        node.id, node.name, kind, tuple(node.parent), (), 0, figures.get("simulated_run_time", 0), attributes
    )


def _current_number(known: Sequence[int], number: int) -> int:
    """Return the current form's number; a negative one if the old number is unknown."""
    return int(known[number]) if 0 <= number < len(known) else -abs(number) - 1


_INT32 = ("comm_src", "comm_dst", "comm_tag", "comm_priority")
_UINT64 = ("tensor_size",)
"""Attributes that programs read from a field of this width; they read other whole numbers as int64."""


def _set_attributes(into: Any, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        own = into.add(name=name)
        if isinstance(value, bool):
            own.bool_val = value
        elif isinstance(value, int):
            if name in _INT32 and -(2**31) <= value < 2**31:
                own.int32_val = value
            elif name in _UINT64:
                own.uint64_val = value
            else:
                own.int64_val = value
        elif isinstance(value, float):
            own.double_val = value
        else:
            own.string_val = value


def _message(node: EtNode) -> Any:
    message = schema.CURRENT["Node"](
        id=node.id,
        name=node.name,
        type=node.type,
        ctrl_deps=node.ctrl_deps,
        data_deps=node.data_deps,
        start_time_micros=node.start_us,
        duration_micros=node.duration_us,
    )
    _set_attributes(message.attr, node.attributes)
    return message
