"""Published models, accelerators, placements, baselines, presets, the model's errors: the data files in `data/`."""

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


@cache
def model_errors() -> Mapping[str, Entry]:
    """By kind of search: what it is in words, points (median and worst error, how many were measured, source)."""
    return _read("model_errors")


def _read(name: str) -> Mapping[str, Entry]:
    content: Mapping[str, Entry] = yaml.safe_load(files("testbed").joinpath(f"data/{name}.yaml").read_text())
    return content
