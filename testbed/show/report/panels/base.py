"""The panel interface (a drawing of a run or of one of its variants), and the panels added to a report."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from markupsafe import Markup

from testbed.errors import BadInput
from testbed.measure.results.records import JsonObject
from testbed.plugins import Registry, attribute_errors, derived_from
from testbed.show.report.run_data import RunData, load_run
from testbed.show.report.svg import svg_document


class Panel(ABC):
    """A drawing that `Result.figure` returns by name or as FILE.py:NAME."""

    of_variant: ClassVar[bool] = False
    """Whether it shows one variant, not all."""

    title: ClassVar[str] = ""
    """Heading in the report; the class name by default."""

    @staticmethod
    @abstractmethod
    def draw(run: RunData, variant: JsonObject) -> Markup | None:
        """Return an SVG image, such as a `testbed.show.report.svg.Drawing`; None if the run lacks the records."""

    @classmethod
    def image(cls, name: str, run: RunData, variant: JsonObject) -> ET.Element | None:
        """Draw and check that the result is well-formed XML; None if the run lacks the records.

        PluginError is raised if a panel fails.
        """
        source = Path(getattr(sys.modules[cls.__module__], "__file__", None) or cls.__module__)
        with attribute_errors(f"panel {name}", source):
            markup = cls.draw(run, variant)
            return ET.fromstring(markup) if markup else None

    @classmethod
    def document(cls, name: str, folder: Path, variant: JsonObject) -> str:
        """Return the image of a run directory as an SVG document; may raise BadInput, BadResult or PluginError."""
        image = cls.image(name, load_run(folder), variant)
        if image is None:
            raise BadInput(where="figure", got=repr(name), expected="one that the run has records for")
        style = files("testbed.show.report").joinpath("templates/drawing.css").read_text(encoding="utf-8")
        return svg_document(image, style)


PANELS: Registry[type[Panel]] = Registry(
    "panel", "testbed.show.report.panels", "testbed.report_panels", derived_from(Panel)
)
"""Registry of named panels; each registers where it is defined: `@PANELS.register("timeline")`."""


@dataclass(frozen=True)
class AddedPanel:
    """A drawing with its heading, which names the variant if it shows one."""

    heading: str
    image: Markup


def added_panels(run: RunData, asked: Sequence[str]) -> list[AddedPanel]:
    """Draw the panels of all installed packages and the requested ones; skip those without records.

    PluginError is raised if a panel fails.
    """
    found = []
    for name in dict.fromkeys((*PANELS.installed, *asked)):
        panel = PANELS.find(name)
        title = panel.title or panel.__name__
        for variant in run.variants if panel.of_variant else run.variants[:1]:
            image = panel.image(name, run, variant)
            if image is not None:
                heading = f"{title}: {variant['name']}" if panel.of_variant else title
                # well-formed, so it cannot break the page
                found.append(AddedPanel(heading, Markup(ET.tostring(image, encoding="unicode"))))
    return found
