"""The figures on a report's page, held against raw files at the precision shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.oracle.arithmetic import jain, median, nearest_rank
from tests.oracle.checks import Checks
from tests.oracle.html_page import Cell, Page
from tests.oracle.quantities import shows
from tests.oracle.variant import Link, MeasuredVariant

Variants = Mapping[str, MeasuredVariant]


class Shown:
    """Holds texts against values, by the way in which each kind of quantity is rounded for people."""

    def __init__(self, checks: Checks, place: str) -> None:
        self._checks, self._place = checks, place

    def time(self, what: str, text: str, seconds: float) -> None:
        """Four digits."""
        self._hold(what, text, seconds, shows(text, seconds, digits=4))

    def size(self, what: str, text: str, size_bytes: float) -> None:
        """Three digits, or whole bytes."""
        held = shows(text, size_bytes, digits=3) or (shows(text, size_bytes, decimals=0) and "B" in text)
        self._hold(what, text, size_bytes, held)

    def count(self, what: str, text: str, number: float) -> None:
        """A whole number, which interpolation may have rounded either way."""
        self._hold(what, text, number, shows(text, number, decimals=0))

    def per_second(self, what: str, text: str, number: float) -> None:
        """Four digits."""
        self._hold(what, text, number, shows(text, number, digits=4))

    def digits(self, what: str, text: str, number: float) -> None:
        """Three digits."""
        self._hold(what, text, number, shows(text, number, digits=3))

    def percent(self, what: str, text: str, share: float) -> None:
        """One decimal, or two digits of a share below a thousandth."""
        held = shows(text, share, decimals=1) if abs(share) >= 0.001 else shows(text, share, digits=2)
        self._hold(what, text, share, held or shows(text, share, decimals=1))

    def ratio(self, what: str, text: str, number: float, decimals: int = 2) -> None:
        """So many decimals."""
        self._hold(what, text, number, shows(text, number, decimals=decimals))

    def _hold(self, what: str, text: str, value: float, held: bool) -> None:
        self._checks.true(f"{what} ({self._place})", held, f"shows {text!r}, the oracle has {value!r}")


def check_page(page: Page, variants: Variants, shown: Mapping[str, Any], checks: Checks) -> None:
    """All tables and drawings of a page. shown: each variant's entry in `summary.json`, for what no raw file tells."""
    own = Shown(checks, "page")
    _headline(page, variants, shown, own, checks)
    for table in page.named("Planes", "Balance"):
        for row in table.records():
            _queue(row, variants, own)
    for table in page.named("Shortest round trip"):
        for row in table.records():
            _connection(row, variants, own)
    for drawing in page.drawn("Step times of each variant"):
        checks.equal("all: drawn steps", *_sorted(_steps_drawn(drawing.titles, variants, own), variants))
    for drawing in page.drawn("Compute and exposed communication"):
        for title in drawing.titles:
            _split(title, variants, own)
    for drawing in page.drawn("Share of each WAN direction's capacity"):
        _bars(drawing.titles, variants, own)
    for drawing in page.drawn("Utilisation of each WAN direction along the run"):
        _along(drawing.texts, variants, own)
    for drawing in page.drawn("Buildings and WAN links"):
        name = drawing.label.rpartition(" in ")[2]
        for title in drawing.titles:
            _network(title, variants[name], own)


def _sorted(found: Sequence[str], variants: Variants) -> tuple[list[str], list[str]]:
    return sorted(found), sorted(name for name, one in variants.items() for _ in one.steps)


def _headline(page: Page, variants: Variants, shown: Mapping[str, Any], own: Shown, checks: Checks) -> None:
    (table,) = page.named("Variant", "Step time", "Limited by")
    names = []
    for row in table.records():
        name = row["Variant"][0]
        names.append(name)
        one, entry = variants[name], shown[name]
        partial = sum(share < 1 for share in one.committed)
        words = f"{one.ranks} ranks, {len(one.steps)} steps"
        words += f", {partial} without all replicas" if partial else ""
        checks.equal(f"{name}: ranks and steps (page)", row["Variant"][1], words)
        _step_time(name, row["Step time"], one, own)
        if cell := row.get("Tokens/s"):
            rates = entry["rates"]  # which are held against raw files by themselves
            own.per_second(f"{name}: tokens/s", cell[0], rates["tokens_per_s"])
            own.per_second(
                f"{name}: sequences/s", cell[1].removesuffix(" sequences/s"), rates["sequences_per_s"]
            )
            own.percent(f"{name}: MFU", cell[2].removeprefix("MFU "), rates["mfu"])
            for piece in cell[3:]:
                if piece.startswith("over "):
                    said = piece.removeprefix("over ").removesuffix(" with stalls")
                    own.time(f"{name}: elapsed time", said, entry["work"]["elapsed_s"])
        if cell := row["Predicted"]:
            own.time(f"{name}: predicted step time", cell[0], entry["predicted"]["step_time_s"])
            error = entry["predicted"]["step_time_s"] / median(one.times_s) - 1
            own.ratio(f"{name}: error of the model", cell[1], error, 1)
        own.time(f"{name}: computing", row["Compute"][0], one.compute_s)
        own.time(f"{name}: exposed communication", row["Exposed communication"][0], one.exposed_s)
        cell = row["WAN bytes per step"]
        own.size(
            f"{name}: WAN bytes observed", cell[0], median([one.moved(step)[1] for step in one.whole_steps])
        )
        own.size(
            f"{name}: WAN bytes expected", cell[1].removeprefix("expected "), entry["wan_bytes"]["expected"]
        )
        same = abs(entry["wan_bytes"]["observed"] - entry["wan_bytes"]["expected"])
        same_words = same <= 1e-6 * max(entry["wan_bytes"]["expected"], 1)
        checks.equal(f"{name}: mark of equal bytes (page)", cell[2] == "✓", same_words)
        checks.equal(f"{name}: limited by (page)", " ".join(row["Limited by"]), entry["limited_by"])
    checks.equal("all: variants (page)", names, list(variants))


def _step_time(name: str, cell: Cell, one: MeasuredVariant, own: Shown) -> None:
    own.time(f"{name}: step time median", cell[0], median(one.times_s))
    least, _, most = cell[1].partition(" to ")
    own.time(f"{name}: step time min", least, min(one.times_s))
    own.time(f"{name}: step time max", most, max(one.times_s))
    own.time(
        f"{name}: step time p95", cell[2].removeprefix("95th percentile "), nearest_rank(one.times_s, 0.95)
    )


CAUSES = {"Dropped": "drops", "Lost": "losses", "Lost to cuts": "cut_losses", "Marked": "marks"}


def _queue(row: Mapping[str, Cell], variants: Variants, own: Shown) -> None:
    """All planes between two buildings in one direction."""
    name, here, there = (row[column][0] for column in ("Variant", "From", "To"))
    uses = [
        use
        for (a, b, _, direction), use in variants[name].links.items()
        if (here, there) == ((a, b) if direction == "a_to_b" else (b, a))
    ]
    what = f"{name}: link {here} to {there}"
    own.count(f"{what}: planes", row["Planes"][0], len(uses))
    own.ratio(f"{what}: balance", row["Balance"][0], jain([use.utilisation for use in uses]), 3)
    own.size(f"{what}: longest queue", row["Longest queue"][0], max(use.queue_peak_bytes for use in uses))
    for column, cause in CAUSES.items():
        own.count(f"{what}: {cause}", row[column][0], sum(use.packets(cause) for use in uses))


def _connection(row: Mapping[str, Cell], variants: Variants, own: Shown) -> None:
    name, *ends = (row[column][0] for column in ("Variant", "From", "To"))
    one, key = variants[name], (ends[0], ends[1])
    what, trips = f"{name}: connections {ends[0]} to {ends[1]}", one.round_trips_s(key)
    own.count(f"{what}: number", row["Connections"][0], len(one.sockets[key]))
    own.time(f"{what}: round trip min", row["Shortest round trip"][0], min(trips))
    own.time(f"{what}: round trip median", row["Median"][0], median(trips))
    own.time(f"{what}: round trip max", row["Longest"][0], max(trips))
    said = re.match(r"\d+", row["Retransmitted"][0])
    own.count(f"{what}: retransmits", said[0] if said else "", one.counted(key, "retransmits") or 0)


def _steps_drawn(titles: Sequence[str], variants: Variants, own: Shown) -> list[str]:
    """Points follow the mark of their variant's median; the names of variants, one for each point."""
    found, name = [], ""
    for title in titles:
        if point := re.fullmatch(r"step (\d+): (.+)", title):
            own.time(f"{name}: step time", point[2], variants[name].times_s[int(point[1])])
            found.append(name)
        elif whole := re.fullmatch(r"(.+): (\d+) steps, median (.+)", title):
            name = whole[1]
            own.count(f"{name}: number of steps", whole[2], len(variants[name].steps))
            own.time(f"{name}: step time median", whole[3], median(variants[name].times_s))
    return found


def _split(title: str, variants: Variants, own: Shown) -> None:
    if found := re.fullmatch(r"(.+), (compute|exposed): (.+) · (.+)", title):
        one = variants[found[1]]
        value = one.compute_s if found[2] == "compute" else one.exposed_s
        own.time(f"{found[1]}: {found[2]} drawn", found[3], value)
        total = one.compute_s + one.exposed_s
        own.percent(f"{found[1]}: share of {found[2]} drawn", found[4], value / total if total else 0.0)


def _bars(titles: Sequence[str], variants: Variants, own: Shown) -> None:
    """Of each direction a bar for each variant, in the order of the links."""
    links = list(dict.fromkeys(link for one in variants.values() for link in one.links))
    bars = [(link, name) for link in links for name, one in variants.items() if link in one.links]
    for (link, name), title in zip(bars, titles, strict=True):
        use, what = variants[name].links[link], f"{name}: link {link[0]} {link[1]} {link[2]} {link[3]}"
        said = title.removeprefix(f"{name}: ").removesuffix(" per step")
        share, _, size = said.partition(" · ")
        own.percent(f"{what}: utilisation", share, use.utilisation)
        if size:
            own.size(f"{what}: bytes", size, round(use.bytes))


MOST_POINTS = 600
"""Of a link along a run; of more readings some are left out."""


def _along(texts: Sequence[str], variants: Variants, own: Shown) -> None:
    """The highest use of each direction between two readings along the whole run, and all packets dropped."""
    peaks = [text.removeprefix("peak ") for text in texts if text.startswith("peak ")]
    said = [text.split() for text in texts if text.endswith((" drops", " lost"))]
    counted = []
    one = next(iter(variants.values()))
    turns = [(step, each) for each in variants.values() for step in each.steps]

    def rate_bps(time_s: float, link: Link) -> float:
        """Of the variant whose step is nearest in time."""
        _, own = min(turns, key=lambda turn: max(turn[0].start_s - time_s, time_s - turn[0].end_s, 0.0))
        return own.rates.get(link, 0.0)

    for (link, every), peak in zip(one.run.links.items(), peaks, strict=True):
        readings = [
            entry for entry in every if not entry.get("edge")
        ]  # from one to the next is next to no time
        kept = readings[:: -(-len(readings) // MOST_POINTS)]
        used = [
            one.run.bytes(after["bytes"] - before["bytes"])
            * 8
            / (one.run.seconds(after["time_s"] - before["time_s"]) * rate)
            for before, after in pairwise(kept)
            if after["time_s"] > before["time_s"]
            and (rate := rate_bps((before["time_s"] + after["time_s"]) / 2, link))
        ]
        own.percent(f"link {' '.join(map(str, link))}: peak drawn", peak, max(used))
        last = readings[-1]
        for count in (last["losses"] + last["cut_losses"], last["drops"]):
            counted += [count] if count else []
    for (text, _), count in zip(said, counted, strict=True):
        own.count("all: packets drawn", text, count)


_LINK = re.compile(
    r"(\S+) → (\S+), (?:plane (\d+): )?(\S+ \S+) · .*?\. ?(?:Emulated: .*?\. )?"
    r"(\S+ \S+) per step, (\S+ %) of the capacity\."
)


def _network(title: str, one: MeasuredVariant, own: Shown) -> None:
    """What the drawing of the network says of its links when one points at them."""
    for found in _LINK.finditer(title):
        here, there, plane = found[1], found[2], int(found[3] or 0)
        use = one.links.get((here, there, plane, "a_to_b")) or one.links.get((there, here, plane, "b_to_a"))
        if use is None:
            continue
        what = f"{one.name}: link {here} to {there}, plane {plane}"
        own.per_second(f"{what}: rate", found[4], use.rate_bps)
        own.size(f"{what}: bytes", found[5], round(use.bytes))
        own.percent(f"{what}: utilisation", found[6], use.utilisation)
