"""Several values where one is given: `--set algorithms=ring,hierarchical` is a list; of what holds one, a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.spec.errors import ConfigError, Problem
from testbed.spec.yaml_loader import OVERRIDES, Document, parse_override, show

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


def with_lists(override: str, document: Document) -> str:
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
