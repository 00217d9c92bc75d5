"""What can be done with any configuration file, whichever kind it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from testbed.spec.base_model import Strict, validate
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scenario import Scenario
from testbed.spec.scenario_files import read_scenario
from testbed.spec.shipped import located
from testbed.spec.topology import TopologySpec
from testbed.spec.yaml_loader import Document, read_document

Kind = Literal["topology", "scenario"]
_MODELS: dict[Kind, type[Strict]] = {"topology": TopologySpec, "scenario": Scenario}


def describe_kind(path: Path | str) -> Kind:
    """The kind of a file, told by its keys. ConfigError if it is neither."""
    return _kind(read_document(located(path)))


def _kind(document: Document) -> Kind:
    if "topology" in document.data:
        return "scenario"
    if "buildings" in document.data:
        return "topology"
    keys = f"the keys {', '.join(document.data)}" if document.data else "no keys"
    expected = "the key buildings (a topology) or topology (a scenario)"
    raise ConfigError([Problem(document.file, 1, "", keys, expected)])


def load(path: Path | str, overrides: Sequence[str] = ()) -> Strict:
    """A Scenario or TopologySpec, whichever the file holds, with "path=value" overrides. ConfigError."""
    path = located(path)
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
