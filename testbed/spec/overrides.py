"""Changes to a scenario: presets, comma-separated lists, and the `KEY=VALUE` of `--set`.

Unchanged parts of a scenario, and recently changed ones, are not validated again: a search makes thousands of changes.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from testbed.caches import IdentityCache
from testbed.spec.base_model import StrictModel, look_up, validate
from testbed.spec.catalogue import presets
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.transport import TransportSpec
from testbed.spec.yaml_loader import OVERRIDES, Document, Origin, parse_override, show

PRESETS = tuple(presets())
PRESET = "preset"


def preset_changes(name: object, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a preset sets in a scenario's data, by path; nothing for an unknown preset."""
    entry = presets().get(name) if isinstance(name, str) else None
    for path, change in (entry or {"changes": {}})["changes"].items():
        if "needs" not in change or isinstance(look_up(data, *change["needs"].split(".")), Mapping):
            yield path, copy.deepcopy(change["value"])


def preset_transport(name: str) -> TransportSpec:
    """Return the transport settings of a preset. Raises ConfigError."""
    data = apply_preset({PRESET: name})
    return validate(TransportSpec, Document.of(data["transport"]))


def apply_preset(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill unset keys of a scenario's unvalidated data with the values of its preset."""
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


LISTS = ("algorithms", "hosts")  # lists even if a file does not set them
_OPENING, _CLOSING = "[{(", "]})"


def split_commas(text: str) -> list[str]:
    """Split text at commas outside brackets and quotes."""
    found, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if character == "," and depth == 0 and not quote:
            found.append("")
        else:
            found[-1] += character
    return found


def holds_list(path: str, data: Mapping[str, Any]) -> bool:
    """Return whether the value at a path of a scenario is a list."""
    here: Any = data
    for part in path.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return isinstance(here, list) or path in LISTS


def parse_list_override(override: str, document: Document) -> str:
    """Turn a comma-separated override value into a list if the document has a list there.

    Otherwise raises a ConfigError that suggests a sweep, unless a file of that name exists.
    """
    path, value = parse_override(override)
    parts = [part.strip() for part in split_commas(value)] if isinstance(value, str) else []
    if len(parts) < 2 or Path(str(value)).exists():
        return override
    if holds_list(path, document.data):
        return f"{path}=[{value}]"
    asked = f"{path}={value}"
    quoted = f"'{asked}'" if " " in asked else asked
    expected = f"one value; several are a sweep: testbed sweep SCENARIO {quoted}"
    raise ConfigError([Problem(OVERRIDES, None, path, f"{len(parts)} values, {show(value)}", expected)])


MAX_CACHED_PARTS = 4096  # cached parts of one scenario

Whole = TypeVar("Whole", bound=StrictModel)
ByPart = Mapping[str, Mapping[str, Any]]  # changes by the part that they apply to


def apply_changes(scenario: Whole, changes: Mapping[str, Any], name: str) -> Whole:
    """Return a scenario with changes by path, without its variants and search. A ConfigError names `name`."""
    asked: dict[str, dict[str, Any]] = defaultdict(dict)
    for path, value in changes.items():
        asked[path.partition(".")[0]][path] = value
    cached: _ScenarioParts[Whole] = _scenario_parts.of((scenario,), lambda: _ScenarioParts(scenario))
    changed = None if PRESET in asked else cached.changed(asked)
    if changed is not None:
        return changed
    # validate everything, to locate the errors, or because a preset's value for one part may depend on another
    same = {} if PRESET in asked else {key: own for key, own in cached.parts.items() if key not in asked}
    data = {**_dumped(cached.alone, set(same)), **same}
    document = Document(name, data, {(): Origin(name, None)})
    for path, value in (*preset_changes(changes.get(PRESET), document.data), *changes.items()):
        document.put(path, value)
    return validate(type(scenario), document)


def _dumped(model: StrictModel, without: set[str] | None = None) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=without)


class _ScenarioParts(Generic[Whole]):
    """A scenario's nested models, by key (`parts`), and the scenario without variants and search (`alone`)."""

    def __init__(self, scenario: Whole) -> None:
        self.alone = scenario.model_copy(update={"variants": None, "explore": None})
        self.parts = {key: own for key, own in self.alone if isinstance(own, StrictModel)}
        self._rest = _dumped(self.alone, set(self.parts))
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._known: IdentityCache[StrictModel] = IdentityCache(MAX_CACHED_PARTS)

    def changed(self, asked: ByPart) -> Whole | None:
        """Return the changed scenario; None if more than its parts change, it is invalid, or has a preset."""
        if PRESET in self._rest or not self.parts.keys() >= asked.keys():
            return None
        try:
            made = {part: self._changed_part(part, own) for part, own in asked.items()}
        except (ValidationError, ConfigError):
            return None
        found = self.alone.model_copy(update=made)
        wrong = (*type(found).raw_checks({**self._rest, **self.parts, **made}), *found.checks())
        return None if wrong else found

    def _changed_part(self, part: str, changes: Mapping[str, Any]) -> StrictModel:
        """Return a changed part, from the cache if possible. Raises ValidationError or ConfigError."""
        key = part, repr(sorted(changes.items()))
        return self._known.of((), partial(self._validate_part, part, changes), key)

    def _validate_part(self, part: str, changes: Mapping[str, Any]) -> StrictModel:
        document = Document(part, {part: _dumped(self.parts[part])}, {(): Origin(part, None)})
        for path, value in changes.items():
            document.put(path, value)
        made: StrictModel = self._adapter(part).validate_python(document.data[part])
        return made

    def _adapter(self, part: str) -> TypeAdapter[Any]:
        """Return a validator for a part, with all of its field's forms."""
        if part not in self._adapters:
            info = type(self.alone).model_fields[part]
            form: Any = info.annotation
            for more in info.metadata:
                form = Annotated[form, more]
            self._adapters[part] = TypeAdapter(form)
        return self._adapters[part]


_scenario_parts: IdentityCache[Any] = IdentityCache(4)
