"""Tables that phones can show: each cell is told its column's heading, which the style sheet puts before it there."""

from __future__ import annotations

from html import escape
from html.parser import HTMLParser

_ROWS = "thead", "tbody"


def labelled(html: str) -> str:
    """The same page, with `data-label` at every cell of a table's body whose column has a heading."""
    labels = _Labels(html)
    parts, done = [], 0
    for place, label in labels.found:
        parts += [html[done:place], f' data-label="{escape(label)}"']
        done = place
    return "".join([*parts, html[done:]])


class _Labels(HTMLParser):
    """Where in a page which label belongs: after the name of a cell's tag. Tables are not within tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []
        self._headings: list[list[str]] = []
        self._part, self._column, self._reads = "", 0, False
        starts = [0]
        for line in html.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._headings, self._part = [], ""
        elif tag in _ROWS:
            self._part = tag
        elif tag == "tr":
            self._column = 0
        elif tag == "br" and self._reads:
            self._headings[-1].append(" ")
        elif tag in ("th", "td"):
            self._cell(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._part = ""
        elif tag == "th":
            self._reads = False

    def handle_data(self, data: str) -> None:
        if self._reads:
            self._headings[-1].append(data)

    def _cell(self, tag: str, attributes: dict[str, str | None]) -> None:
        if self._part == "thead":
            self._headings.append([])
            self._reads = True
        elif self._part == "tbody":
            words = "".join(self._headings[self._column]) if self._column < len(self._headings) else ""
            if words.strip() and "colspan" not in attributes:
                line, offset = self.getpos()
                place = self._starts[line - 1] + offset + 1 + len(tag)
                self.found.append((place, " ".join(words.split())))
            self._column += 1
