"""Bundled data: models, accelerators, placements and presets (`data/`), and named scenarios and topologies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

Entry = Mapping[str, Any]


@cache
def models() -> Mapping[str, Entry]:
    """Return published models by name: source, parameters, family, dimensions."""
    return _read("models")


@cache
def accelerators() -> Mapping[str, Entry]:
    """Return accelerators by name.

    Keys: name, source, peak (flop/s by type), memory (bytes), memory_bandwidth (bytes/s), utilisation, scale_up,
    scale_up_bandwidth (bytes/s), gemm_half_rows, power (W), hourly (US dollars).
    """
    return _read("accelerators")


@cache
def placements() -> Mapping[str, Entry]:
    """Return placements by name: source, order of the dimensions of parallelism, outermost first."""
    return _read("placements")


@cache
def baselines() -> Mapping[str, Entry]:
    """Return baselines by name: source, changes to a scenario by path."""
    return _read("baselines")


@cache
def presets() -> Mapping[str, Entry]:
    """Return presets by name: source, and for each path of a scenario value, source, and condition (needs)."""
    return _read("presets")


@cache
def model_errors() -> Mapping[str, Entry]:
    """Return the step model's errors by kind of search: words, points (median and worst error, count, source)."""
    return _read("model_errors")


def _read(name: str) -> Mapping[str, Entry]:
    content: Mapping[str, Entry] = yaml.safe_load(files("testbed").joinpath(f"data/{name}.yaml").read_text())
    return content


PACKAGE = Path(__file__).parents[1]
# inside the package in a wheel, next to it in a checkout
SHIPPED_FOLDER = PACKAGE / "shipped" if (PACKAGE / "shipped").is_dir() else PACKAGE.parent
KINDS = ("scenarios", "topologies")


def locate_file(given: Path | str, kinds: Sequence[str] = KINDS) -> Path:
    """Return the file for a path, or for the name of a bundled file of the first kind that has it.

    Anything else is returned unchanged.
    """
    path = Path(given)
    if path.suffix != ".yaml" and not path.is_absolute() and not path.exists():
        for kind in kinds:
            file = SHIPPED_FOLDER / kind / f"{path}.yaml"
            if file.is_file():
                return file
    return path


def shipped(kind: str) -> dict[str, Path]:
    """Return all bundled files of a kind (scenarios, topologies) by name."""
    return dict(_named(SHIPPED_FOLDER / kind))


def _named(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*.yaml")):
        yield str(file.relative_to(folder).with_suffix("")), file
