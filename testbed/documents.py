"""Conversion of dataclasses to JSON and back, by the types of their fields, for messages to ranks and their logs.

A class whose values need a special conversion has `to_document` and `from_document`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: object, **more: object) -> str:
    """Return a dataclass as one line of JSON, with `more` entries that `from_json` ignores."""
    return json.dumps({**more, **_entries(value)}, default=_entries)


def from_json(kind: type[T], text: str) -> T:
    """Rebuild a dataclass from `to_json`."""
    return rebuild(kind, json.loads(text))


def rebuild(kind: type[T], document: Any) -> T:
    """Rebuild a dataclass from `dataclasses.asdict` or `to_json`, after a round trip through JSON."""
    found: T = _builder(cast(Any, kind))(document)
    return found


def _entries(value: Any) -> Any:
    if hasattr(value, "to_document"):
        return value.to_document()
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    return dict(value) if isinstance(value, Mapping) else list(value)


def _same(value: Any) -> Any:
    return value


def _build_fields(kind: Any, builders: Mapping[str, Callable[[Any], Any]], document: Any) -> Any:
    return kind(**{name: build(document[name]) for name, build in builders.items()})


def _build_each(builders: Sequence[Callable[[Any], Any]], document: Any) -> Any:
    return tuple(build(one) for build, one in zip(builders, document, strict=True))


def _build_all(container: type, build: Callable[[Any], Any], document: Any) -> Any:
    return container(document if build is _same else map(build, document))


def _build_some(build: Callable[[Any], Any], document: Any) -> Any:
    return build(document) if isinstance(document, dict | list) else document


def _build_numbered(build: Callable[[Any], Any], document: Any) -> Any:
    return {int(key): build(one) for key, one in document.items()}


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts JSON's form of a value of this type to the value; `_same` if they are equal."""
    origin, arguments = get_origin(kind), get_args(kind)
    inner = [_builder(one) for one in arguments if one not in (NoneType, Ellipsis)]
    found: Callable[[Any], Any] = getattr(kind, "from_document", _same)
    if found is _same and is_dataclass(kind):
        types = get_type_hints(kind)
        own = {one.name: _builder(types[one.name]) for one in fields(kind) if one.init}
        found = partial(_build_fields, kind, own)
    elif origin in (Union, UnionType):
        found = partial(_build_some, next((one for one in inner if one is not _same), _same))
    elif origin is tuple and Ellipsis not in arguments:
        found = partial(_build_each, inner)
    elif origin in (tuple, list, Sequence):
        found = partial(_build_all, list if origin is list else tuple, inner[0])
    elif origin is dict and arguments[0] is int:
        found = partial(_build_numbered, inner[1])
    return found
