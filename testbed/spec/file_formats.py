"""Configuration files of any kind: detect, load, expand, JSON schema, and the reference of all keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from testbed.spec.base_model import Form, StrictModel, validate
from testbed.spec.catalogue import locate_file
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scenario import Scenario
from testbed.spec.scenario_files import read_scenario
from testbed.spec.topology import TopologySpec
from testbed.spec.yaml_loader import Document, read_document

Kind = Literal["topology", "scenario"]
_MODELS: dict[Kind, type[StrictModel]] = {"topology": TopologySpec, "scenario": Scenario}


def describe_kind(path: Path | str) -> Kind:
    """The kind of a file, told by its keys. ConfigError if it is neither."""
    return _kind(read_document(locate_file(path)))


def _kind(document: Document) -> Kind:
    if "topology" in document.data:
        return "scenario"
    if "buildings" in document.data:
        return "topology"
    keys = f"the keys {', '.join(document.data)}" if document.data else "no keys"
    expected = "the key buildings (a topology) or topology (a scenario)"
    raise ConfigError([Problem(document.file, 1, "", keys, expected)])


def load(path: Path | str, overrides: Sequence[str] = ()) -> StrictModel:
    """A Scenario or TopologySpec, whichever the file holds, with "path=value" overrides. ConfigError."""
    path = locate_file(path)
    document = read_document(path)
    kind = _kind(document)
    if kind == "scenario":
        document = read_scenario(path, overrides)
    else:
        for override in overrides:
            document.override(override)
    return validate(_MODELS[kind], document)


def expand_data(path: Path | str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The fully expanded file as plain data: every default explicit, every quantity with its unit. ConfigError."""
    return load(path, overrides).to_data()


def expand(path: Path | str, overrides: Sequence[str] = ()) -> str:
    """The fully expanded file as YAML; loading that gives the same object again. ConfigError."""
    return load(path, overrides).to_yaml()


def json_schema(kind: Kind) -> dict[str, Any]:
    """JSON Schema of the files of a kind, for editors."""
    return _MODELS[kind].model_json_schema()


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
    places: dict[type[StrictModel], str] = {}
    blocks = [_INTRODUCTION]
    for title, model in (("Topology files", TopologySpec), ("Scenario files", Scenario)):
        places[model] = f"those of {title.lower()}"
        blocks += [f"## {title}", *_keys(model, "", places)]
    return "\n\n".join(blocks) + "\n"


def _keys(model: type[StrictModel], prefix: str, places: dict[type[StrictModel], str]) -> Iterator[str]:
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


def _below(info: FieldInfo) -> tuple[type[StrictModel] | None, str]:
    """The model whose keys come below a field, if any, and what leads to one of several."""
    for kind in (info.annotation, *get_args(info.annotation)):
        if isinstance(kind, type) and issubclass(kind, StrictModel):
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
