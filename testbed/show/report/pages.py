"""Render self-contained HTML pages from templates, with tables that fit phones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from html.parser import HTMLParser
from typing import Any

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


_ROWS = "thead", "tbody"
_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)


def add_data_labels(html: str) -> str:
    """Add the column's heading as `data-label` to every body cell, so that narrow screens can show tables as lists.

    Tables must not be nested. Everything outside tables is left alone, including drawings.
    """
    return _TABLE.sub(lambda table: _add_labels(table[0]), html)


def _add_labels(table: str) -> str:
    parts, done = [], 0
    for place, label in _Labels(table).found:
        parts += [table[done:place], f' data-label="{escape(label)}"']
        done = place
    return "".join([*parts, table[done:]])


class _Labels(HTMLParser):
    """Finds where labels go in a table: right after the tag name of a cell."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []
        self._headings: list[list[str]] = []
        self._part, self._column, self._in_heading = "", 0, False
        starts = [0]
        for line in table.split("\n"):  # counts lines as the parser does
            starts.append(starts[-1] + len(line) + 1)
        self._starts = starts
        self.feed(table)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _ROWS:
            self._part = tag
        elif tag == "tr":
            self._column = 0
        elif tag == "br" and self._in_heading:
            self._headings[-1].append(" ")
        elif tag in ("th", "td"):
            self._cell(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        if tag == "th":
            self._in_heading = False

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self._headings[-1].append(data)

    def _cell(self, tag: str, attributes: dict[str, str | None]) -> None:
        if self._part == "thead":
            self._headings.append([])
            self._in_heading = True
        elif self._part == "tbody":
            heading = "".join(self._headings[self._column]) if self._column < len(self._headings) else ""
            if heading.strip() and "colspan" not in attributes:
                line, offset = self.getpos()
                place = self._starts[line - 1] + offset + 1 + len(tag)
                self.found.append((place, " ".join(heading.split())))
            self._column += 1
