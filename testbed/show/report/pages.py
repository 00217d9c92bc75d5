"""Renderer of self-contained HTML pages from templates, with tables that fit phones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from markupsafe import Markup

from testbed.show.report.variant_text import deviation_text
from testbed.spec.units import (
    per_second_text,
    percent_text,
    rate_text,
    signed_percent_text,
    size_text,
    time_text,
)


def render_page(template: str, content: Mapping[str, Any]) -> str:
    """Render one of the templates in `templates/` to HTML."""
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
    return add_data_labels(environment.get_template(template).render(content))


_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL = re.compile(r"(<t[hd]\b)([^>]*>)")


def add_data_labels(html: str) -> str:
    """Add the column's heading as `data-label` to every body cell, so that narrow screens can show tables as lists.

    Tables must not be nested. Everything outside tables stays unchanged, including drawings.
    """
    return _TABLE.sub(lambda table: _label_table(table[0]), html)


def _label_table(table: str) -> str:
    head, begin, body = table.partition("<tbody")
    headings = [Markup(text.replace("<br>", " ")).striptags() for text in _HEADING.findall(head)]

    def label_row(row: re.Match[str]) -> str:
        unused = iter(headings)

        def label_cell(cell: re.Match[str]) -> str:
            heading = next(unused, "")
            if not heading or "colspan" in cell[2]:
                return cell[0]
            return f'{cell[1]} data-label="{escape(heading)}"{cell[2]}'

        return _CELL.sub(label_cell, row[0])

    return f"{head}{begin}{_ROW.sub(label_row, body)}"
