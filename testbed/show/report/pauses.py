"""Links whose far ends paused the sender: in a sentence, and as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.measure.results.pause_result import PausedLink
from testbed.measure.results.records import JsonObject
from testbed.measure.results.result import Variant

MOST = 16  # rows of a variant


def pause_words(variant: Variant) -> str:
    """How many pauses there were, and who stood longest; empty where nobody pauses."""
    if not variant.pauses:
        return ""
    pauses = sum(link.pauses for link in variant.pauses)
    if not pauses:
        return f"{variant.name}: no switch paused anybody."
    longest = max(variant.pauses, key=lambda link: link.paused_share)
    return (
        f"{variant.name}: {pauses} pauses; the sender of {_sender(longest)} stood longest, "
        f"{longest.paused_share:.0%} of the time."
    )


def pause_rows(variants: Sequence[Variant]) -> list[JsonObject]:
    """Of each variant the links that were paused, the longest first."""
    rows: list[JsonObject] = []
    for variant in variants:
        paused = [link for link in variant.pauses if link.pauses]
        paused.sort(key=lambda link: (-link.paused_share, link.link, link.direction))
        rows += [
            {"variant": variant.name, "way": _sender(link), **link.model_dump()} for link in paused[:MOST]
        ]
    return rows


def _sender(link: PausedLink) -> str:
    return f"{link.link}, {link.direction.replace('_', ' ')}"
