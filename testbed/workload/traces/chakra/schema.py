"""The protobuf messages of Chakra execution traces, in every form that occurs in existing traces.

Field numbers are those of `et_def.proto` in mlcommons/chakra's history. The classes are created from the lists below at
import, so that no generated code has to be stored. Enumerations are plain integers here, which is equivalent on the
wire.

- current: used since October 2023, with "0.0.4" and later in files.
- attributes: used from July to October 2023 (proto2). A node's content is in attributes, whose numbers changed once.
- flat: used until June 2023 (proto2). Each figure has its own field.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION = "1.0.0"
"""Version in files that are written here."""


class NodeType(IntEnum):
    """The type of a node."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


class Comm(IntEnum):
    """A collective, as `comm_type` of a node."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


ATTRIBUTES_COMM = (Comm.ALL_REDUCE, Comm.ALL_TO_ALL, Comm.ALL_GATHER, Comm.REDUCE_SCATTER, Comm.BROADCAST)
"""`comm_type` of the form with attributes, by number."""
FLAT_COMM = {number + 1: comm for number, comm in enumerate(ATTRIBUTES_COMM[:4])}
"""`comm_type` of the flat form, where 0 is none."""
FLAT_TYPES = (NodeType.INVALID_NODE, *list(NodeType)[2:])
"""Types of the flat form, which has no metadata nodes, by number."""

_SCALARS = (
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
)
_FIELD = descriptor_pb2.FieldDescriptorProto


def _list_of(scalar: str) -> str:
    return f"{scalar.capitalize()}List"


def _values() -> str:
    """Return the fields of the current form's attributes: from number 3 on, alternately a scalar and its list type."""
    pairs = ((f"{one}_val {one}", f"{one}_list {_list_of(one)}") for one in _SCALARS)
    return "; ".join(f"{field} {number}" for number, field in enumerate((f for p in pairs for f in p), 3))


# message: fields as "name type number"; a capitalized type is a message; "*" means repeated
_CURRENT = {
    **{_list_of(one): f"values *{one} 1" for one in _SCALARS},
    "AttributeProto": f"name string 1; doc_string string 2; {_values()}",
    "GlobalMetadata": "version string 1; attr *AttributeProto 2",
    "IOInfo": "values string 1; shapes string 2; types string 3",
    "Node": "id uint64 1; name string 2; type int32 3; ctrl_deps *uint64 4; data_deps *uint64 5; "
    "start_time_micros uint64 6; duration_micros uint64 7; inputs IOInfo 8; outputs IOInfo 9; attr *AttributeProto 10",
}
_NODE_WITH_ATTRIBUTES = (
    "id uint64 1; name string 2; type int32 3; parent *uint64 4; inputs string 5; input_shapes string 6; "
    "input_types string 7; outputs string 8; output_shapes string 9; output_types string 10; "
    "attribute *AttributeProto 11"
)
_ATTRIBUTES = {  # from August 2023 on
    "AttributeProto": "name string 1; type int32 2; doc_string string 3; b bool 4; f float 5; u uint64 6; i int64 7; "
    "s string 8; bools *bool 9; floats *float 10; uints *uint64 11; ints *int64 12; strings *string 13",
    "GlobalMetadata": "attribute *AttributeProto 1",
    "Node": _NODE_WITH_ATTRIBUTES,
}
_EARLIER_ATTRIBUTES = {  # without unsigned numbers
    "AttributeProto": "name string 1; type int32 2; doc_string string 3; b bool 4; f float 5; i int64 6; s string 7; "
    "bools *bool 8; floats *float 9; ints *int64 10; strings *bytes 11",
    "Node": _NODE_WITH_ATTRIBUTES,
}
_FLAT = {
    "Node": "id uint64 1; name string 2; type int32 3; parent *uint64 4; tensor_loc int32 5; tensor_size uint64 6; "
    "simulated_run_time uint64 7; input_tensor_loc int32 8; input_tensor_size uint64 9; output_tensor_loc int32 10; "
    "output_tensor_size uint64 11; num_ops uint64 12; comm_type int32 13; involved_dim *bool 14; "
    "communicator_id uint32 15; comm_src uint32 16; comm_dst uint32 17; comm_size uint64 18; comm_tag uint32 19; "
    "comm_priority uint32 20",
}


def _classes(form: str, syntax: str, messages: dict[str, str]) -> dict[str, Any]:
    """Return a class for each message, in a separate descriptor pool."""
    package = f"testbed.chakra.{form}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{form}.proto", package=package, syntax=syntax)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        if syntax == "proto3" and name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for entry in fields.split("; "):
            field, kind, number = entry.split()
            made = message.field.add(name=field, number=int(number), label=_FIELD.LABEL_OPTIONAL)
            if kind.startswith("*"):
                made.label, kind = _FIELD.LABEL_REPEATED, kind[1:]
            if kind[0].isupper():
                made.type, made.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                made.type = getattr(_FIELD, f"TYPE_{kind.upper()}")
            if message.oneof_decl and int(number) > 2:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


CURRENT = _classes("current", "proto3", _CURRENT)
ATTRIBUTES = _classes("attributes", "proto2", _ATTRIBUTES)
EARLIER_ATTRIBUTES = _classes("earlier_attributes", "proto2", _EARLIER_ATTRIBUTES)
FLAT = _classes("flat", "proto2", _FLAT)
