"""Other values for a scenario: presets, comma-separated lists, and the `KEY=VALUE` of `--set`.

Parts of a scenario that do not change, or equal those of an earlier one, are not validated again: a search asks for
thousands.
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
    """What a preset sets in a scenario's data, by path; nothing where there is no such preset."""
    entry = presets().get(name) if isinstance(name, str) else None
    for path, change in (entry or {"changes": {}})["changes"].items():
        if "needs" not in change or isinstance(look_up(data, *change["needs"].split(".")), Mapping):
            yield path, copy.deepcopy(change["value"])


def preset_transport(name: str) -> TransportSpec:
    """What a preset says of how ranks talk to each other. ConfigError."""
    said = apply_preset({PRESET: name})
    return validate(TransportSpec, Document.of(said["transport"]))


def apply_preset(data: Mapping[str, Any]) -> Mapping[str, Any]:
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


LISTS = ("algorithms", "hosts")  # also where a file has none
_OPENING, _CLOSING = "[{(", "]})"


def split_commas(text: str) -> list[str]:
    """At commas outside of brackets and quotes."""
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
    """Whether a scenario has a list there."""
    here: Any = data
    for part in path.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return isinstance(here, list) or path in LISTS


def parse_list_override(override: str, document: Document) -> str:
    """An override whose value is of several, separated by commas, as a list where the document holds one.

    Elsewhere ConfigError, which names the sweep that is likely meant; a file whose name has a comma is a value.
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


MOST = 4096  # parts that are remembered of one scenario

Whole = TypeVar("Whole", bound=StrictModel)
ByPart = Mapping[str, Mapping[str, Any]]  # changes by the part that they are in


def apply_changes(scenario: Whole, changes: Mapping[str, Any], name: str) -> Whole:
    """As the scenario is, by itself, but for these changes. ConfigError, which names `name`."""
    asked: dict[str, dict[str, Any]] = defaultdict(dict)
    for path, value in changes.items():
        asked[path.partition(".")[0]][path] = value
    of: _Parts[Whole] = _of_scenarios.of((scenario,), lambda: _Parts(scenario))
    found = None if PRESET in asked else of.changed(asked)
    if found is not None:
        return found
    # all of it anew, to say what is wrong and where; or as what a preset says of one part may go by another
    same = {} if PRESET in asked else {key: own for key, own in of.parts.items() if key not in asked}
    data = {**_dumped(of.alone, set(same)), **same}
    document = Document(name, data, {(): Origin(name, None)})
    for path, value in (*preset_changes(changes.get(PRESET), document.data), *changes.items()):
        document.put(path, value)
    return validate(type(scenario), document)


def _dumped(model: StrictModel, without: set[str] | None = None) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=without)


class _Parts(Generic[Whole]):
    """What a scenario is made of. alone: the scenario without others in it; parts: models that it has, by key."""

    def __init__(self, scenario: Whole) -> None:
        self.alone = scenario.model_copy(update={"variants": None, "explore": None})
        self.parts = {key: own for key, own in self.alone if isinstance(own, StrictModel)}
        self._rest = _dumped(self.alone, set(self.parts))
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._known: IdentityCache[StrictModel] = IdentityCache(MOST)

    def changed(self, asked: ByPart) -> Whole | None:
        """None where other things change than values in parts, something is wrong, or a preset says more."""
        if PRESET in self._rest or not self.parts.keys() >= asked.keys():
            return None
        try:
            made = {part: self._made(part, own) for part, own in asked.items()}
        except (ValidationError, ConfigError):
            return None
        found = self.alone.model_copy(update=made)
        wrong = (*type(found).raw_checks({**self._rest, **self.parts, **made}), *found.checks())
        return None if wrong else found

    def _made(self, part: str, changes: Mapping[str, Any]) -> StrictModel:
        """ValidationError, ConfigError."""
        return self._known.of((), partial(self._make, part, changes), (part, repr(sorted(changes.items()))))

    def _make(self, part: str, changes: Mapping[str, Any]) -> StrictModel:
        document = Document(part, {part: _dumped(self.parts[part])}, {(): Origin(part, None)})
        for path, value in changes.items():
            document.put(path, value)
        made: StrictModel = self._adapter(part).validate_python(document.data[part])
        return made

    def _adapter(self, part: str) -> TypeAdapter[Any]:
        """Takes what files may say of a part."""
        if part not in self._adapters:
            info = type(self.alone).model_fields[part]
            form: Any = info.annotation
            for more in info.metadata:
                form = Annotated[form, more]
            self._adapters[part] = TypeAdapter(form)
        return self._adapters[part]


_of_scenarios: IdentityCache[Any] = IdentityCache(4)
