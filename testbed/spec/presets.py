"""Presets of `data/presets.yaml`: many values of a scenario under one name."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from testbed.spec.base_model import look, validate
from testbed.spec.catalogue import presets
from testbed.spec.transport import TransportSpec
from testbed.spec.yaml_loader import Document

PRESETS = tuple(presets())
PRESET = "preset"


def preset_changes(name: object, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a preset sets in a scenario's data, by path; nothing where there is no such preset."""
    entry = presets().get(name) if isinstance(name, str) else None
    for path, change in (entry or {"changes": {}})["changes"].items():
        if "needs" not in change or isinstance(look(data, *change["needs"].split(".")), Mapping):
            yield path, copy.deepcopy(change["value"])


def preset_transport(name: str) -> TransportSpec:
    """What a preset says of how ranks talk to each other. ConfigError."""
    said = with_preset({PRESET: name})
    return validate(TransportSpec, Document.of(said["transport"]))


def with_preset(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A scenario's data, not validated yet, with what its preset says of all that it does not say itself."""
    if PRESET not in data:
        return data
    found = copy.deepcopy(dict(data))
    for path, value in preset_changes(data[PRESET], data):
        *parents, last = path.split(".")
        around: Any = found
        for key in parents:
            around = around.setdefault(key, {}) if isinstance(around, dict) else None
        if isinstance(around, dict):
            around.setdefault(last, value)
    return found
