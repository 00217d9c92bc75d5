"""Pauses of links: no raw file has them, so they are held against what else they have to agree with."""

from __future__ import annotations

import re

from tests.oracle.checks import Checks
from tests.oracle.html_page import Page
from tests.oracle.page import Shown, Variants
from tests.oracle.raw import Record
from tests.oracle.variant import MeasuredVariant


def check_pauses(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """Hold what the pausing links of a variant say against each other and against what the WAN's links carried."""
    for row in shown["pauses"]:
        what = f"{own.name}: pauses of {row['link']} {row['direction']}"
        stood, share = row["pauses"] > 0, row["paused_share"]
        holds = (share > 0) == stood and 0 <= share < 1
        checks.true(f"{what}: time", holds, f"{row['pauses']} pauses for {share:.1%} of the time")
        full = row["buffer_peak_bytes"] <= row["buffer_bytes"] or row["dropped"]
        checks.true(
            f"{what}: buffer", bool(full), f"held {row['buffer_peak_bytes']} of {row['buffer_bytes']} bytes"
        )
        for link, readings in own.run.links.items():
            if (
                len(own.parts) > 1
                or link[3] != row["direction"]
                or f"{link[0]}-{link[1]}-{link[2]}" != row["link"]
            ):
                continue
            use = own.links[link]
            step_s = own.run.seconds(sum(step.time_s for step in own.steps))
            # between the first and the last reading the sender stood for this share, and sends nothing while it stands
            span_s = own.run.seconds(readings[-1]["time_s"] - readings[0]["time_s"])
            most = use.rate_bps * min(step_s, (1 - share) * span_s) / 8
            carried = sum(use.each["bytes"])
            checks.true(
                f"{what}: bytes beside it", carried <= most, f"carried {carried} bytes, at most {most}"
            )


def check_shown_pauses(page: Page, printed: str, variants: Variants, shown: Record, checks: Checks) -> None:
    """Hold the page's table and the terminal's sentence against the summary."""
    own, text = Shown(checks, "page"), " ".join(printed.split())
    for table in page.named("Link", "Pauses", "Paused"):
        for row in table.records():
            name, (link, direction) = row["Variant"][0], row["Link"][0].rsplit(", ", 1)
            found = next(
                one
                for one in shown[name]["pauses"]
                if one["link"] == link and one["direction"] == direction.replace(" ", "_")
            )
            what = f"{name}: pauses of {link}"
            own.count(f"{what}: number", row["Pauses"][0], found["pauses"])
            own.ratio(f"{what}: time", row["Paused"][0], found["paused_share"], 1)
            own.size(f"{what}: most", row["Held at most"][0], found["buffer_peak_bytes"])
            own.size(f"{what}: buffer", row["Buffer"][0], found["buffer_bytes"])
            own.count(f"{what}: dropped", row["Dropped"][0], found["dropped"])
    for name in variants:
        rows = shown[name].get("pauses", ())
        said = re.search(
            rf"(?<!\S){re.escape(name)}: (\d+) pauses; the sender of \S+, \S+ to \S+ was paused longest, (\d+)%",
            text,
        )
        if said:
            there = Shown(checks, "terminal")
            there.count(f"{name}: pauses", said[1], sum(row["pauses"] for row in rows))
            there.ratio(f"{name}: longest pause", f"{said[2]} %", max(row["paused_share"] for row in rows), 0)
