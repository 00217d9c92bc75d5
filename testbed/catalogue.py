"""Published models, accelerators, placements, baselines and presets, as the data files in `data/` say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

Entry = Mapping[str, Any]


@cache
def models() -> Mapping[str, Entry]:
    """By name: source, parameters, family, dimensions."""
    return _read("models")


@cache
def accelerators() -> Mapping[str, Entry]:
    """By name: name, source, peak (flop/s by type), memory (bytes), memory_bandwidth (bytes/s), utilisation, scale_up,
    scale_up_bandwidth (bytes/s), gemm_half_rows, power (W), hourly (US dollars)."""
    return _read("accelerators")


@cache
def placements() -> Mapping[str, Entry]:
    """By name: source, order of the dimensions of parallelism, outermost first."""
    return _read("placements")


@cache
def baselines() -> Mapping[str, Entry]:
    """By name: source, changes of a scenario by path."""
    return _read("baselines")


@cache
def presets() -> Mapping[str, Entry]:
    """By name: source, and by path of a scenario's values what each is (value), whence (source), where (needs)."""
    return _read("presets")


def _read(name: str) -> Mapping[str, Entry]:
    content: Mapping[str, Entry] = yaml.safe_load(files("testbed").joinpath(f"data/{name}.yaml").read_text())
    return content
