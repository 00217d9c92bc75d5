"""Collectives and their algorithms, as files name them: those that register, and FILE.py:NAME."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.errors import did_you_mean
from testbed.plugins import OWN_FILE, Registry, registry
from testbed.spec.base_model import Form
from testbed.spec.value_types import named

AUTO = "auto"

COLLECTIVE = named("collectives")


def algorithms_of(collective: str) -> Registry[Any]:
    """The registry of a collective's algorithms; PluginError where a file's collective does not load."""
    found: Registry[Any] = registry("collectives").find(collective).algorithms
    return found


def names_of(collectives: Sequence[str]) -> tuple[str, ...]:
    """What may be named for one of these collectives, FILE.py:NAME aside."""
    return (*dict.fromkeys(name for one in collectives for name in algorithms_of(one)), AUTO)


def expected_algorithm(value: object, collectives: Sequence[str]) -> str | None:
    """What should stand in place of an algorithm's name, for any of these collectives; None where it will do."""
    known = names_of(collectives)
    if value in known:
        return None
    if isinstance(value, str) and OWN_FILE.fullmatch(value):
        return algorithms_of(collectives[0]).expected(value)
    return f"FILE.py:NAME or an algorithm: {did_you_mean(value, known)}"


def algorithm(*collectives: str) -> Form:
    """The name of an algorithm of any of these collectives, or auto, or FILE.py:NAME."""

    def parse(value: object) -> str:
        if (expected := expected_algorithm(value, collectives)) is not None:
            raise ValueError(expected)
        return str(value)

    return Form(parse, lambda: algorithm_schema(collectives))


def algorithm_schema(collectives: Sequence[str]) -> dict[str, Any]:
    """Of such a name."""
    own = {"type": "string", "pattern": OWN_FILE.pattern}
    return {"anyOf": [{"enum": list(names_of(collectives))}, own]}
