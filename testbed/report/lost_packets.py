"""Packets that did not arrive, by cause, in sentences for a terminal."""

from __future__ import annotations

from testbed.results.link_use import link_ends
from testbed.results.result import LinkUse, Variant

CAUSES = {
    "drops": "dropped by queues",
    "losses": "lost at random",
    "cut_losses": "lost as links were cut",
}


def lost_words(variant: Variant) -> str:
    """How many packets the WAN did not bring over in all measured steps, and where most; empty where it brought all."""
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


def _lost(link: LinkUse) -> int:
    return sum(getattr(link, cause) for cause in CAUSES)
