"""Packets that did not arrive, by cause: in a sentence, and as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.measure.results.link_result import LinkUse
from testbed.measure.results.link_use import link_ends
from testbed.measure.results.records import JsonObject
from testbed.measure.results.result import Variant

MOST_PORTS = 16  # rows of a variant
CAUSES = {
    "drops": "dropped by queues",
    "losses": "lost at random",
    "cut_losses": "lost as links were cut",
}


def lost_words(variant: Variant) -> str:
    """How many packets did not arrive in all measured steps, and where most were lost; empty where all arrived."""
    return " ".join(filter(None, (_wan_words(variant), _building_words(variant))))


def port_rows(variants: Sequence[Variant]) -> list[JsonObject]:
    """Of each variant the ports inside buildings that dropped most."""
    return [
        {"variant": variant.name, **port.model_dump()}
        for variant in variants
        for port in variant.port_drops[:MOST_PORTS]
    ]


def _wan_words(variant: Variant) -> str:
    counts = {cause: sum(getattr(link, cause) for link in variant.wan_links) for cause in CAUSES}
    said = [f"{counts[cause]:,} {words}" for cause, words in CAUSES.items() if counts[cause]]
    if not said:
        return ""
    worst = max(variant.wan_links, key=_lost)
    packets = sum(step.packets for link in variant.wan_links for step in link.steps)
    here, there = link_ends(worst.model_dump())
    return (
        f"{variant.name}: of {packets:,} packets on WAN links {', '.join(said)} in all steps; most, {_lost(worst):,}, "
        f"from {here} to {there}, plane {worst.plane}."
    )


def _building_words(variant: Variant) -> str:
    if not variant.port_drops:
        return ""
    worst = variant.port_drops[0]
    total = sum(port.drops for port in variant.port_drops)
    return (
        f"{variant.name}: queues inside buildings dropped {total:,} packets in all steps; most, {worst.drops:,}, "
        f"at {worst.place}."
    )


def _lost(link: LinkUse) -> int:
    return sum(getattr(link, cause) for cause in CAUSES)
