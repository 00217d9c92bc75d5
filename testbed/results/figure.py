"""Figures of a run by name. Whoever draws registers here: results know no drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import BadInput
from testbed.results.records import JsonObject

Draw = Callable[[Path, JsonObject], str]
"""A run's folder and one of its variants, as its summary has it; makes an SVG document."""


@dataclass(frozen=True)
class Figure:
    """A drawing as the text of an SVG document, which notebooks show by themselves."""

    name: str
    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the SVG document; returns where it is."""
        Path(path).write_text(self.svg, encoding="utf-8")
        return Path(path)


@dataclass(frozen=True)
class Drawn:
    """Who draws a figure. of_variant: whether it is of one variant, not of all."""

    draw: Draw
    of_variant: bool


FIGURES: dict[str, Drawn] = {}


def drawn(name: str) -> Drawn:
    """BadInput."""
    if name not in FIGURES:
        raise BadInput(where="figure", got=repr(name), expected=f"one of {', '.join(FIGURES)}")
    return FIGURES[name]
