"""A report's page as its readers have it: tables with their cells, drawings with their words, paragraphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

Cell = list[str]
"""The words of a cell, in pieces: what is set apart in it is a piece of its own."""


@dataclass
class Table:
    """Headings of columns, and rows of cells; heading: what stands above it."""

    heading: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)

    def records(self) -> list[dict[str, Cell]]:
        """Rows by their columns' headings."""
        return [
            dict(zip(self.columns, row, strict=True)) for row in self.rows if len(row) == len(self.columns)
        ]


@dataclass
class Drawing:
    """What a drawing says: labels that are seen, and titles that show when one points at a mark."""

    label: str
    texts: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """Reads a whole page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self.drawings: list[Drawing] = []
        self.paragraphs: list[str] = []
        self.title = ""
        self._heading = ""
        self._words: list[str] = []
        self._part = ""
        self._row: list[Cell] | None = None
        self._cell: Cell | None = None
        self.feed(html[html.index("<main>") :])

    def named(self, *columns: str) -> list[Table]:
        """Tables that have all these columns."""
        return [table for table in self.tables if set(columns) <= set(table.columns)]

    def drawn(self, start: str) -> list[Drawing]:
        """Drawings whose label begins so."""
        return [drawing for drawing in self.drawings if drawing.label.startswith(start)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append(Table(self._heading))
        elif tag in ("thead", "tbody"):
            self._part = tag
        elif tag == "tr":
            self._row = []
        elif tag in ("th", "td") and self._row is not None:
            self._cell = [""]
        elif tag == "br" and self._cell is not None:
            self._cell[-1] += " "
        elif tag in ("small", "span") and self._cell is not None:
            self._cell.append("")
        elif tag == "svg":
            self.drawings.append(Drawing(dict(attrs).get("aria-label") or ""))
        elif tag in ("h1", "h2", "h3", "p", "li", "text", "title"):
            self._words = []

    def handle_endtag(self, tag: str) -> None:
        said = " ".join("".join(self._words).split())
        if tag in ("th", "td") and self._cell is not None and self._row is not None:
            self._row.append([part for piece in self._cell if (part := " ".join(piece.split()))])
            self._cell = None
        elif tag == "tr" and self._row is not None and self.tables:
            if self._part == "thead":
                self.tables[-1].columns = [" ".join(cell) for cell in self._row]
            else:
                self.tables[-1].rows.append(self._row)
            self._row = None
        elif tag in ("small", "span") and self._cell is not None:
            self._cell.append("")
        elif tag == "div" and not self.title:
            self.title = said  # the scenario, and its verdict
        elif tag in ("h2", "h3"):
            self._heading = said
        elif tag in ("p", "li"):
            self.paragraphs.append(said)
        elif tag in ("text", "title") and self.drawings:
            (self.drawings[-1].texts if tag == "text" else self.drawings[-1].titles).append(said)

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell[-1] += data
        else:
            self._words.append(data)
