"""A figure of a run, as notebooks show it. Who draws it is found by name: results know no drawing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
