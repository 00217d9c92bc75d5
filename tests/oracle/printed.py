"""The figures that a command printed of a run, and its sentences of comparison, held against raw files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from tests.oracle.arithmetic import median, ratio_interval
from tests.oracle.checks import Checks
from tests.oracle.page import CAUSES, Shown, Variants
from tests.oracle.variant import MeasuredVariant

_ROW = re.compile(
    r"(?P<name>\S+)\s+(?P<median>[\d.]+ \w+)\s+(?P<compute>[\d.]+ \w+)\s+(?P<exposed>[\d.]+ \w+)"
    r"\s+(?P<bytes>[\d.]+ \w*B) (?P<mark>\S+(?: %)?)\s"
)
_SECOND = re.compile(
    r"(?P<ranks>\d+) ranks, n=(?P<n>\d+)"
    r"\s+(?P<least>[\d.]+ \w+)-(?P<most>[\d.]+ \w+)\s+\((?P<expected>[\d.]+ \w*B)\)"
)


def check_printed(text: str, variants: Variants, shown: Mapping[str, Any], checks: Checks) -> None:
    """The table on a terminal, the rates below it, and the sentences that compare."""
    own, seen = Shown(checks, "terminal"), []
    lines = text.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        first, second = _ROW.match(line), _SECOND.match(below.strip())
        if first is None or second is None or first["name"] not in variants:
            continue
        name = first["name"]
        one, entry = variants[name], shown[name]
        seen.append(name)
        own.time(f"{name}: step time median", first["median"], median(one.times_s))
        own.time(f"{name}: computing", first["compute"], one.compute_s)
        own.time(f"{name}: exposed communication", first["exposed"], one.exposed_s)
        own.size(
            f"{name}: WAN bytes observed",
            first["bytes"],
            median([one.moved(step)[1] for step in one.whole_steps]),
        )
        checks.equal(f"{name}: ranks (terminal)", int(second["ranks"]), one.ranks)
        checks.equal(f"{name}: number of steps (terminal)", int(second["n"]), len(one.steps))
        own.time(f"{name}: step time min", second["least"], min(one.times_s))
        own.time(f"{name}: step time max", second["most"], max(one.times_s))
        own.size(f"{name}: WAN bytes expected", second["expected"], entry["wan_bytes"]["expected"])
    # longer names are folded where the terminal is narrow
    short = [name for name in variants if len(name) <= 12]
    checks.true(
        "all: table (terminal)", set(short) <= set(seen), f"has no rows that the oracle can read of {short}"
    )
    whole = " ".join(text.split())  # lines are wrapped where the terminal ends
    for name, one in variants.items():
        rates = re.search(
            rf"(?<!\S){re.escape(name)}: ([\d,.]+) tokens/s, ([\d,.]+) sequences/s, MFU ([\d.]+ %)", whole
        )
        if rates and one.training is not None:
            said = shown[name]["rates"]
            own.per_second(f"{name}: tokens/s", rates[1], said["tokens_per_s"])
            own.per_second(f"{name}: sequences/s", rates[2], said["sequences_per_s"])
            own.percent(f"{name}: MFU", rates[3], said["mfu"])
        stalls = re.search(
            rf"(?<!\S){re.escape(name)}: [^:]*?, over ([\d.]+ \w+) with all stalls(?:, (\d+) of its steps)?",
            whole,
        )
        if stalls:
            partial = sum(share < 1 for share in one.committed)
            own.time(f"{name}: elapsed time", stalls[1], _elapsed_s(one, shown))
            checks.equal(f"{name}: partial steps (terminal)", int(stalls[2] or 0), partial)
        predicted = re.search(rf"[ ,]{re.escape(name)} ([\d.]+ \w+) \(([+-]?[\d.]+ %)\)", whole)
        if predicted and shown[name].get("predicted"):
            step_s = shown[name]["predicted"]["step_time_s"]
            own.time(f"{name}: predicted step time", predicted[1], step_s)
            own.ratio(f"{name}: error of the model", predicted[2], step_s / median(one.times_s) - 1, 1)
        _stalls_and_losses(whole, one, shown[name], own)
    check_comparisons(whole, variants, shown, own)


def _stalls_and_losses(text: str, one: MeasuredVariant, entry: Mapping[str, Any], own: Shown) -> None:
    """What replicas that came and went left of the time, and what became of packets on the way."""
    name = re.escape(one.name)
    if effective := re.search(rf"(?<!\S){name}: effective time ([\d.]+)% of ([\d.]+ \w+)", text):
        own.ratio(f"{one.name}: effective", f"{effective[1]} %", entry["replication"]["effective"], 1)
        own.time(f"{one.name}: elapsed time", effective[2], entry["replication"]["elapsed_s"])
    said = re.search(
        rf"(?<!\S){name}: of ([\d,]+) packets on WAN links ((?:[\d,]+ [a-z ]+(?:, )?)+) in all steps; "
        r"most, ([\d,]+),",
        text,
    )
    if said is None:
        return
    own.count(f"{one.name}: packets", said[1], sum(use.packets("packets") for use in one.links.values()))
    counts = {cause: sum(use.packets(cause) for use in one.links.values()) for cause in CAUSES.values()}
    words = {"drops": "dropped by queues", "losses": "lost at random", "cut_losses": "lost as links were cut"}
    for cause, phrase in words.items():
        found = re.search(rf"([\d,]+) {phrase}", said[2])
        own.count(f"{one.name}: {cause}", found[1] if found else "0", counts[cause])
    most = max(sum(use.packets(cause) for cause in words) for use in one.links.values())
    own.count(f"{one.name}: packets lost on one link", said[3], most)


_INTERVAL = r"(?:; trial by trial ([\d.]+)x to ([\d.]+)x at 95 % confidence)?"


def check_comparisons(text: str, variants: Variants, shown: Mapping[str, Any], own: Shown) -> None:
    """How much more one variant does than another in the same time, and between which bounds, trial by trial."""
    for best, other in permutations(variants, 2):
        quick, slow = variants[best], variants[other]
        names = re.escape(best), re.escape(other)
        what = f"{best}, {other}: speed-up"
        ratio = quick.done_steps / _elapsed_s(quick, shown) * _elapsed_s(slow, shown) / slow.done_steps
        if said := re.search(
            rf"(?<!\S){names[0]} is ([\d.]+)x faster than {names[1]} \(([\d.]+ %) less time"
            rf"(?:, by the median step ([\d.]+)x)?{_INTERVAL}\)",
            text,
        ):
            own.ratio(what, said[1], ratio)
            own.percent(f"{what} in percent", said[2], 1 - 1 / ratio)
            if said[3] is not None:
                own.ratio(f"{what} by the median step", said[3], median(slow.times_s) / median(quick.times_s))
            _interval(what, said[4], said[5], quick.times_s, slow.times_s, own)
        if said := re.search(
            rf"(?<!\S){names[0]} does ([\d.]+)x the work of {names[1]} in the same time: "
            rf"([\d.,]+) against ([\d.,]+) (tokens|steps)/s(?:, stalls included|  ?\([^;)]*{_INTERVAL}\))",
            text,
        ):
            each = [
                one.training.tokens if said[4] == "tokens" and one.training is not None else 1.0
                for one in (quick, slow)
            ]
            rates = [
                size * one.done_steps / _elapsed_s(one, shown)
                for size, one in zip(each, (quick, slow), strict=True)
            ]
            own.ratio(what, said[1], rates[0] / rates[1])
            own.per_second(f"{best}: {said[4]}/s compared", said[2], rates[0])
            own.per_second(f"{other}: {said[4]}/s compared", said[3], rates[1])
            quick_s, slow_s = (
                [time_s / size for time_s in one.times_s]
                for size, one in zip(each, (quick, slow), strict=True)
            )
            _interval(what, said[5], said[6], quick_s, slow_s, own)


def _interval(
    what: str, low: str | None, high: str | None, quick: Sequence[float], slow: Sequence[float], own: Shown
) -> None:
    if low is not None and high is not None:
        bounds = ratio_interval(slow, quick)
        own.ratio(f"{what}, from", low, bounds[0])
        own.ratio(f"{what}, to", high, bounds[1])


def _elapsed_s(one: MeasuredVariant, shown: Mapping[str, Any]) -> float:
    """All of the time: where replicas come and go, until the last commit."""
    replication = shown[one.name].get("replication")
    return sum(one.times_s) if replication is None else float(replication["elapsed_s"])
