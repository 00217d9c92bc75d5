"""What a panel is: a drawing of a run, or of one of its variants."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from abc import ABC, abstractmethod
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from markupsafe import Markup

from testbed.errors import BadInput
from testbed.measure.results.records import JsonObject
from testbed.plugins import Registry, attribute_errors, derived_from
from testbed.show.report.run_data import RunData, load_run
from testbed.show.report.svg import standalone


class Panel(ABC):
    """A drawing, as `Result.figure` gives it by its name or as FILE.py:NAME."""

    of_variant: ClassVar[bool] = False
    """Whether it is of one variant, not of all."""

    title: ClassVar[str] = ""
    """Its heading in the report; the class's name where there is none."""

    @staticmethod
    @abstractmethod
    def draw(run: RunData, variant: JsonObject) -> Markup | None:
        """An SVG image, such as `testbed.show.report.svg.Drawing` makes; None where the run has no records for it."""

    @classmethod
    def image(cls, name: str, run: RunData, variant: JsonObject) -> ET.Element | None:
        """What it draws, which is well-formed XML; None where the run has no records for it. PluginError."""
        source = Path(getattr(sys.modules[cls.__module__], "__file__", None) or cls.__module__)
        with attribute_errors(f"panel {name}", source):
            markup = cls.draw(run, variant)
            return ET.fromstring(markup) if markup else None

    @classmethod
    def document(cls, name: str, folder: Path, variant: JsonObject) -> str:
        """The image of a run's folder as a document that stands alone. BadInput, BadResult, PluginError."""
        image = cls.image(name, load_run(folder), variant)
        if image is None:
            raise BadInput(where="figure", got=repr(name), expected="one that the run has records for")
        style = files("testbed.show.report").joinpath("templates/drawing.css").read_text(encoding="utf-8")
        return standalone(image, style)


PANELS: Registry[type[Panel]] = Registry(
    "panel", "testbed.show.report.panels", "testbed.report_panels", derived_from(Panel)
)
"""All that have a name. Each registers where it stands: `@PANELS.register("timeline")`."""
