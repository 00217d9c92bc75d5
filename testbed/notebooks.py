"""Results as HTML for notebooks: tables without scripts or styles, which adopt the notebook's colours."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    before: Iterable[str] = (),
    after: Iterable[str] = (),
) -> str:
    """Return a table with names in the first column and figures in the others, with paragraphs before and after it."""
    head = "".join(
        f'<th style="text-align: {_side(n)}">{escape(text)}</th>' for n, text in enumerate(headings)
    )
    body = "".join(f"<tr>{''.join(_cell(n, text) for n, text in enumerate(row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div>{_paragraphs(before)}{table}{_paragraphs(after)}</div>"


def html_image(svg: str, words: str) -> str:
    """Return an SVG as an image, isolated from the page's styles; `words` is its alternative text."""
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(words)}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'


def _cell(column: int, text: str) -> str:
    return f'<td style="text-align: {_side(column)}">{escape(text)}</td>'


def _side(column: int) -> str:
    return "right" if column else "left"


def _paragraphs(sentences: Iterable[str]) -> str:
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
