"""A scenario with other values, by the paths that `--set` takes.

Parts that stay as they are, or are what they were in another one, are not looked at again: a search asks for thousands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from testbed.caches import IdentityCache
from testbed.spec.base_model import Strict, validate
from testbed.spec.errors import ConfigError
from testbed.spec.presets import PRESET, preset_changes
from testbed.spec.yaml_loader import Document, Origin

MOST = 4096  # parts that are remembered of one scenario

Whole = TypeVar("Whole", bound=Strict)
ByPart = Mapping[str, Mapping[str, Any]]  # changes by the part that they are in


def changed(scenario: Whole, changes: Mapping[str, Any], name: str) -> Whole:
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


def _dumped(model: Strict, without: set[str] | None = None) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=without)


class _Parts(Generic[Whole]):
    """What a scenario is made of. alone: the scenario without others in it; parts: models that it has, by key."""

    def __init__(self, scenario: Whole) -> None:
        self.alone = scenario.model_copy(update={"variants": None, "explore": None})
        self.parts = {key: own for key, own in self.alone if isinstance(own, Strict)}
        self._rest = _dumped(self.alone, set(self.parts))
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._known: IdentityCache[Strict] = IdentityCache(MOST)

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

    def _made(self, part: str, changes: Mapping[str, Any]) -> Strict:
        """ValidationError, ConfigError."""
        return self._known.of((), partial(self._make, part, changes), (part, repr(sorted(changes.items()))))

    def _make(self, part: str, changes: Mapping[str, Any]) -> Strict:
        document = Document(part, {part: _dumped(self.parts[part])}, {(): Origin(part, None)})
        for path, value in changes.items():
            document.put(path, value)
        made: Strict = self._adapter(part).validate_python(document.data[part])
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
