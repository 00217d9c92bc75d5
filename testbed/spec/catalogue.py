"""Bundled data: models, accelerators, placements and presets (`data/`), and named scenarios and topologies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

Entry = Mapping[str, Any]


def _catalogue(name: str) -> Callable[[], Mapping[str, Entry]]:
    """Return a function that returns the entries of a file in `data/` by name."""

    @cache
    def read() -> Mapping[str, Entry]:
        content: Mapping[str, Entry] = yaml.safe_load(
            files("testbed").joinpath(f"data/{name}.yaml").read_text()
        )
        return content

    return read


models = _catalogue("models")
"""Published models: source, parameters, family, dimensions."""
accelerators = _catalogue("accelerators")
"""Accelerators: name, source, peak (flop/s by type), memory (bytes), memory_bandwidth (bytes/s), utilisation,
scale_up, scale_up_bandwidth (bytes/s), gemm_half_rows, power (W), hourly (US dollars).
"""
placements = _catalogue("placements")
"""Placements: source, order of the dimensions of parallelism, outermost first."""
baselines = _catalogue("baselines")
"""Baselines: source, changes to a scenario by path."""
presets = _catalogue("presets")
"""Presets: source, and for each path of a scenario value, source, and condition (needs)."""
model_errors = _catalogue("model_errors")
"""The step model's errors by kind of search: words, points (median and worst error, count, source)."""

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
    folder = SHIPPED_FOLDER / kind
    return {str(file.relative_to(folder).with_suffix("")): file for file in sorted(folder.rglob("*.yaml"))}
