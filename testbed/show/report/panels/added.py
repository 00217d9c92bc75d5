"""Additional panels of a report: those of installed packages, and those requested by name."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from testbed.show.report.panels.base import PANELS
from testbed.show.report.run_data import RunData


@dataclass(frozen=True)
class AddedPanel:
    """A drawing with its heading, which names the variant if it shows one."""

    heading: str
    image: Markup


def added_panels(run: RunData, asked: Sequence[str]) -> list[AddedPanel]:
    """Draw the panels of all installed packages and the requested ones; skip those without records.

    Raises PluginError.
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
