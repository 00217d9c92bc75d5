"""Pages from templates: one HTML file each that needs nothing else, neither network nor script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.show.report.compare import deviation_text
from testbed.show.report.formatting import (
    per_second_text,
    percent_text,
    rate_text,
    signed_percent_text,
    size_text,
    time_text,
)
from testbed.show.report.tables import labelled


def render_page(template: str, content: Mapping[str, Any]) -> str:
    """The HTML of one of the templates in `templates/`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape  # noqa: PLC0415 (slow)

    environment = Environment(
        loader=PackageLoader("testbed.show.report"),
        autoescape=select_autoescape(("j2", "html")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        duration=time_text,
        size=size_text,
        rate=rate_text,
        percent=percent_text,
        signed=signed_percent_text,
        per_second=per_second_text,
        deviation=deviation_text,
    )
    return labelled(environment.get_template(template).render(content))
