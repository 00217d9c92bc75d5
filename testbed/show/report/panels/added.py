"""Panels in a report beyond the testbed's own: those of installed packages, and those that are asked for."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from testbed.show.report.panels.base import PANELS
from testbed.show.report.run_data import RunData


@dataclass(frozen=True)
class AddedPanel:
    """One drawing: its heading, with the variant's name where it is of one, and the image."""

    heading: str
    image: Markup


def added_panels(run: RunData, asked: Sequence[str]) -> list[AddedPanel]:
    """Of all installed packages and of these names; those that the run has no records for are left out. PluginError."""
    found = []
    for name in dict.fromkeys((*PANELS.installed, *asked)):
        panel = PANELS.find(name)
        title = panel.title or panel.__name__
        for variant in run.variants if panel.of_variant else run.variants[:1]:
            image = panel.image(name, run, variant)
            if image is not None:
                heading = f"{title}: {variant['name']}" if panel.of_variant else title
                # well-formed, so that it cannot break the page around it
                found.append(AddedPanel(heading, Markup(ET.tostring(image, encoding="unicode"))))
    return found
