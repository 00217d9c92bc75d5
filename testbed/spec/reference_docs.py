"""Write docs/reference/configuration.md, all keys, from the models: `python -m testbed.spec reference`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from testbed.spec.base_model import Form, Strict
from testbed.spec.scenario import Scenario
from testbed.spec.topology import TopologySpec

_INTRODUCTION = """\
# Configuration reference

Made from the code by `python -m testbed.spec reference > docs/reference/configuration.md`; a test keeps it current.

Topologies and scenarios are YAML files; a scenario has the key `topology`, a topology the key `buildings`. Keys that
are not listed here are refused. Quantities are written with their unit. `testbed check FILE` prints a file with
every default filled in, `testbed schema topology` and `testbed schema scenario` print JSON Schema for editors, and
`--set PATH=VALUE` changes one value of a scenario: `--set trials=3`, `--set topology.wan.0.delay="5 ms"`,
`--set algorithms=[ring]`."""


class _Shape(NamedTuple):
    """How the values of a field are introduced, and what leads from it to the keys of one of them."""

    label: str
    step: str


_ONE = _Shape("Value", "")
_SEVERAL: dict[Any, _Shape] = {dict: _Shape("Each name", ".NAME"), tuple: _Shape("A list, each item", "[]")}


def reference() -> str:
    """The whole document, in Markdown."""
    places: dict[type[Strict], str] = {}
    blocks = [_INTRODUCTION]
    for title, model in (("Topology files", TopologySpec), ("Scenario files", Scenario)):
        places[model] = f"those of {title.lower()}"
        blocks += [f"## {title}", *_keys(model, "", places)]
    return "\n\n".join(blocks) + "\n"


def _keys(model: type[Strict], prefix: str, places: dict[type[Strict], str]) -> Iterator[str]:
    """A heading and a paragraph for each key of a model and of the models below it, each model once."""
    for name, info in model.model_fields.items():
        path = prefix + (info.alias or name)
        below, step = _below(info)
        facts = [str(info.description)]
        if form := _form(info):
            facts.append(f"{_SEVERAL.get(get_origin(info.annotation), _ONE).label}: {_expected(form)}.")
        default = model.written_default(name)
        if info.is_required():
            facts.append("Required.")
        elif default not in (None, {}):
            facts.append(f"Default: `{_inline(default)}`.")
        if below in places:
            facts.append(f"Its keys are {places[below]}.")
        yield f"### `{path}`"
        yield "\n".join(facts)
        if below is not None and below not in places:
            places[below] = f"those of `{path}`"
            yield from _keys(below, f"{path}{step}.", places)


def _below(info: FieldInfo) -> tuple[type[Strict] | None, str]:
    """The model whose keys come below a field, if any, and what leads to one of several."""
    for kind in (info.annotation, *get_args(info.annotation)):
        if isinstance(kind, type) and issubclass(kind, Strict):
            return kind, _SEVERAL.get(get_origin(info.annotation), _ONE).step
    return None, ""


def _form(info: FieldInfo) -> Form | None:
    """How a field's value, or each item of its list, is written."""
    of_items = [note for kind in get_args(info.annotation) for note in getattr(kind, "__metadata__", ())]
    return next((note for note in (*info.metadata, *of_items) if isinstance(note, Form)), None)


def _expected(form: Form) -> str:
    """What a form says to a value that it can never take."""
    try:
        form.parse(object())
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{form} takes anything")


def _inline(value: Any) -> str:
    """Plain data on one line, as YAML has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_inline(held)}" for key, held in value.items()) + "}"
    return f"[{', '.join(map(_inline, value))}]" if isinstance(value, (list, tuple)) else str(value)
