"""Report sections for the page and the terminal: lost packets, pauses, replicas, failed invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from testbed.measure.fidelity.verdict import ORDER, Invariant
from testbed.measure.results.link_summary import LinkUse, PausedLink
from testbed.measure.results.records import JsonObject, LinkKey
from testbed.measure.results.result import Variant
from testbed.show.report.charts import draw_time_axis, variant_css
from testbed.show.report.svg import CHART_WIDTH, Axis, Drawing
from testbed.spec.units import size_text, time_text

MOST_PORTS = 16  # rows per variant
CAUSES = {
    "drops": "dropped by queues",
    "losses": "lost at random",
    "cut_losses": "lost as links were cut",
}


def describe_losses(variant: Variant) -> str:
    """Describe how many packets were lost in all measured steps, and where most were lost; empty if none."""
    return " ".join(filter(None, (_wan_words(variant), _building_words(variant))))


def port_rows(variants: Sequence[Variant]) -> list[JsonObject]:
    """Return, per variant, the ports inside buildings that dropped the most packets."""
    return [
        {"variant": variant.name, **port.model_dump()}
        for variant in variants
        for port in variant.port_drops[:MOST_PORTS]
    ]


def _wan_words(variant: Variant) -> str:
    counts = {cause: sum(getattr(link, cause) for link in variant.wan_links) for cause in CAUSES}
    losses = [f"{counts[cause]:,} {words}" for cause, words in CAUSES.items() if counts[cause]]
    if not losses:
        return ""
    worst = max(variant.wan_links, key=_lost)
    packets = sum(step.packets for link in variant.wan_links for step in link.steps)
    link = LinkKey.of(worst.model_dump())
    here, there = link.source, link.target
    return (
        f"{variant.name}: of {packets:,} packets on WAN links {', '.join(losses)} in all steps; "
        f"most, {_lost(worst):,}, from {here} to {there}, plane {worst.plane}."
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


MOST = 16  # rows per variant


def describe_pauses(variant: Variant) -> str:
    """Describe how many pauses there were, and which sender was paused longest; empty without pause frames."""
    if not variant.pauses:
        return ""
    pauses = sum(link.pauses for link in variant.pauses)
    if not pauses:
        return f"{variant.name}: no switch sent a pause."
    longest = max(variant.pauses, key=lambda link: link.paused_share)
    return (
        f"{variant.name}: {pauses} pauses; the sender of {_sender(longest)} was paused longest, "
        f"{longest.paused_share:.0%} of the time."
    )


def pause_rows(variants: Sequence[Variant]) -> list[JsonObject]:
    """Return, per variant, the links that were paused, longest first."""
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


_LABEL_ROOM = 118
_TOP, _ROW, _BAR, _AXIS_ROOM = 6, 46, 32, 26


def describe_replication(variant: Variant) -> list[str]:
    """Describe each replica loss, and the total cost; empty if replicas do not change."""
    found = variant.replication
    if found is None:
        return []
    words = []
    for loss in found.losses:
        parts = [f"replica {loss.replica} lost after {time_text(loss.time_s)}"]
        if loss.detected_s is not None:
            parts.append(f"known {time_text(loss.detected_s)} later")
        parts.append(f"stall {time_text(loss.stall_s)}")
        parts.append(f"{loss.steps_lost} steps lost")
        if loss.catch_up_s is not None and loss.catch_up_bytes:
            parts.append(f"state of {size_text(loss.catch_up_bytes)} in {time_text(loss.catch_up_s)}")
        full = "not all back" if loss.full_s is None else f"all back after {time_text(loss.full_s)}"
        words.append(f"{variant.name}: {', '.join([*parts, full])}.")
    words.append(f"{variant.name}: effective time {found.effective:.1%} of {time_text(found.elapsed_s)}.")
    return words


def replicas_chart(variants: Sequence[JsonObject], width: float = CHART_WIDTH) -> Markup | None:
    """Draw, per variant, a bar from commit to commit, as high as the share of replicas in that step."""
    own = [
        (index, variant, variant["replication"])
        for index, variant in enumerate(variants)
        if variant.get("replication")
    ]
    if not own:
        return None
    height = _TOP + _ROW * len(own) + _AXIS_ROOM
    drawing = Drawing(width, height, "When steps were committed, and how many replicas were in them")
    axis = Axis(0.0, max(found["elapsed_s"] for _, _, found in own), _LABEL_ROOM, width - 24)
    draw_time_axis(drawing, axis, _TOP, height - _AXIS_ROOM, about=6 if width >= CHART_WIDTH else 3)
    for row, (index, variant, found) in enumerate(own):
        bottom = _TOP + row * _ROW + _BAR + 6
        drawing.text(0, bottom - 8, variant["name"], "row-label", room=_LABEL_ROOM - 10)
        group = drawing.group(variant_css(index, variant))
        before_s = 0.0
        for commit in found["commits"]:
            left, right = axis(before_s), axis(commit["time_s"])
            high = _BAR * commit["replicas"] / found["replicas"]
            words = f"trial {commit['trial']}: {commit['replicas']} of {found['replicas']} replicas, "
            words += f"committed after {time_text(commit['time_s'])}"
            bar = drawing.group("", words, group)
            drawing.rect(left + 0.5, bottom - high, right - left - 1, high, "bar", parent=bar)
            before_s = commit["time_s"]
        for loss in found["losses"]:
            x = axis(loss["time_s"])
            marked = drawing.group("event", f"replica {loss['replica']} lost: {loss['why']}")
            drawing.line((x, bottom + 4), (x, bottom - _BAR - 4), "event-line", parent=marked)
    return drawing.markup()


MOST_REASONS = 5


class Reason(NamedTuple):
    """A failed invariant of a variant."""

    variant: Variant
    invariant: Invariant


def reasons(variants: Sequence[Variant]) -> tuple[list[Reason], list[Reason]]:
    """Return the reasons to show immediately, and the others."""
    ranked = sorted(variants, key=lambda variant: -ORDER.index(variant.verdict.status))
    found = [Reason(variant, invariant) for variant in ranked for invariant in variant.verdict.failed]
    return found[:MOST_REASONS], found[MOST_REASONS:]


def count_by_invariant(more: Sequence[Reason]) -> str:
    """Return how often each invariant occurs, such as "serialisation 2 times, cpu_headroom"."""
    names = Counter(reason.invariant.name for reason in more)
    return ", ".join(f"{name} {count} times" if count > 1 else name for name, count in names.items())
