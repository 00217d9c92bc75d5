"""A scenario with other values, by the paths that `--set` takes.

Parts that stay as they are, or are what they were in another one, are not looked at again: a search asks for thousands.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from testbed.config.loading import Document, Location, Origin
from testbed.config.model import Strict, validate
from testbed.config.presets import PRESET, preset_changes
from testbed.remembering import Remembered

MOST = 4096  # parts that are remembered of one scenario


class _Part(NamedTuple):
    """As it was made; origins: where its values are from."""

    own: Strict
    origins: Mapping[Location, Origin]


_Parts = OrderedDict[tuple[str, str], _Part]
_of_scenarios: Remembered[_Parts] = Remembered(4)

Whole = TypeVar("Whole", bound=Strict)


def changed(scenario: Whole, changes: Mapping[str, Any], name: str) -> Whole:
    """As the scenario is, by itself, but for these changes. ConfigError, which names `name`."""
    asked: dict[str, dict[str, Any]] = defaultdict(dict)  # by part
    for path, value in changes.items():
        asked[path.partition(".")[0]][path] = value
    alone = scenario.model_copy(update={"variants": None, "explore": None})
    fields = dict(alone)
    whole = {key: own for key, own in fields.items() if isinstance(own, Strict) and PRESET not in asked}
    parts = _of_scenarios.of((scenario,), OrderedDict)
    apart = whole if fields[PRESET] is None else {}  # what a preset says of one part may go by another
    keys = {part: (part, repr(sorted(own.items()))) for part, own in asked.items() if part in apart}
    known = {part: parts[key] for part, key in keys.items() if key in parts}
    same = {key: own for key, own in whole.items() if key not in asked}
    same |= {part: one.own for part, one in known.items()}
    data = {**alone.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=set(same)), **same}
    document = Document(name, data, {(): Origin(name, None)})
    for path, value in preset_changes(changes.get(PRESET), document.data):
        document.put(path, value)
    for part, own in asked.items():
        if part in known:
            document.origins |= known[part].origins
            continue
        for path, value in own.items():
            document.put(path, value)
    found = validate(type(scenario), document)
    for part, key in keys.items():
        if part not in known:
            origins = {where: origin for where, origin in document.origins.items() if where[:1] == (part,)}
            parts[key] = _Part(getattr(found, part), origins)
        parts.move_to_end(key)
    while len(parts) > MOST:
        parts.popitem(last=False)
    return found
