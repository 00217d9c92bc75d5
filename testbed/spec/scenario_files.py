"""Scenario files: insert their topology's file, and resolve the paths of other files that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.plugins import resolve_file_names
from testbed.spec.base_model import look_up
from testbed.spec.catalogue import locate_file
from testbed.spec.errors import ConfigError
from testbed.spec.overrides import PRESET, parse_list_override, preset_changes
from testbed.spec.topology import read_topology
from testbed.spec.yaml_loader import OVERRIDES, Document, parse_override, read_document, show

FILE_PATHS = (
    "workload.schedule.file",
    "workload.tuning",
    "workload.trace",
    "workload.chakra",
    "workload.inference.trace",
)


def read_scenario(source: Path | str | Mapping[str, Any], overrides: Sequence[str] = ()) -> Document:
    """Read a scenario, insert its topology's file, and apply overrides. Raises ConfigError.

    Args:
        source: a file, or its content, whose file names are then relative to the current folder.
        overrides: "path=value" strings.
    """
    given = isinstance(source, Mapping)
    path = Path() if isinstance(source, Mapping) else locate_file(source)
    document = Document.of(source) if isinstance(source, Mapping) else read_document(path)
    folder = path.parent
    if "buildings" in document.data and "topology" not in document.data:
        raise ConfigError(
            [document.problem(("buildings",), "a topology file", "a scenario file, with topology")]
        )
    parts = [override for override in overrides if parse_override(override)[0] != "topology"]
    for override in overrides:
        if override not in parts:
            document.override(override)
    _resolve_paths(document.data, folder)
    topology = document.data.get("topology")
    if isinstance(topology, str):
        from_command_line = not given and document.origins[("topology",)].file == OVERRIDES
        file = locate_file(topology, ("topologies",)) if from_command_line else folder / topology
        if not file.is_file():
            expected = f"a topology file; there is no {file}"
            raise ConfigError([document.problem(("topology",), show(topology), expected)])
        document.graft("topology", read_topology(file))
    named = [override for override in parts if parse_override(override)[0] == PRESET]
    for override in named:  # first, so that other overrides win
        for path_set, value in preset_changes(parse_override(override)[1], document.data):
            document.put(path_set, value)
    for override in parts:
        document.override(parse_list_override(override, document))
    _resolve_paths(document.data, Path())
    return document


def _resolve_paths(data: dict[str, Any], folder: Path) -> None:
    """Make file names of a scenario absolute, relative to `folder`."""
    data.update(resolve_file_names(data, folder))
    variants = data.get("variants")
    changes = (
        [change for change in variants.values() if isinstance(change, dict)]
        if isinstance(variants, dict)
        else []
    )
    for where in (data, *changes):
        for path in FILE_PATHS:
            *parents, key = path.split(".")
            for joined in range(1, len(parents) + 1):  # a path in a variant may stop at a mapping
                holder = look_up(where, ".".join(parents[:joined]), *parents[joined:])
                _resolve_path(holder, key, folder)
            _resolve_path(where, path, folder)
        failures = where.get("failures")
        for failure in failures if isinstance(failures, list) else ():
            _resolve_path(failure, "trace", folder)


def _resolve_path(data: Any, key: str, folder: Path) -> None:
    """Make one file name absolute, in data that is not validated yet."""
    if isinstance(data, dict) and isinstance(data.get(key), str):
        data[key] = str((folder / data[key]).resolve())
