"""The figures that a command printed of a run, and its sentences of comparison, held against raw files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import permutations
from typing import Any

from tests.oracle.arithmetic import median, ratio_interval
from tests.oracle.checks import Checks
from tests.oracle.page import Shown, Variants
from tests.oracle.variant import MeasuredVariant

_ROW = re.compile(
    r"(?P<name>\S+)\s+(?P<median>[\d.]+ \w+)\s+(?P<compute>[\d.]+ \w+)\s+(?P<exposed>[\d.]+ \w+)"
    r"\s+(?P<bytes>[\d.]+ \w*B) (?P<mark>\S+(?: %)?)\s"
)
_SECOND = re.compile(
    r"(?P<ranks>\d+) ranks, n=(?P<n>\d+)(?: \((?P<partial>\d+) partial\))?"
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
        checks.equal(
            f"{name}: partial steps (terminal)", int(second["partial"] or 0), one.done(entry).partial
        )
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
        predicted = re.search(rf"[ ,]{re.escape(name)} ([\d.]+ \w+) \(([+-]?[\d.]+ %)\)", whole)
        if predicted and shown[name].get("predicted"):
            step_s = shown[name]["predicted"]["step_time_s"]
            own.time(f"{name}: predicted step time", predicted[1], step_s)
            own.ratio(f"{name}: error of the model", predicted[2], step_s / median(one.times_s) - 1, 1)
    check_comparisons(whole, variants, shown, own)


def check_comparisons(text: str, variants: Variants, shown: Mapping[str, Any], own: Shown) -> None:
    """How much more one variant does than another in the same time, and between which bounds, trial by trial."""
    per_s = {name: _per_second(one, shown[name]) for name, one in variants.items()}
    for best, other in permutations(variants, 2):
        ratio = per_s[best] / per_s[other]
        what = f"{best}, {other}: speed-up"
        faster = re.search(
            rf"(?<!\S){re.escape(best)} is ([\d.]+)x faster than {re.escape(other)} \(([\d.]+ %) less time"
            r"(?:, by the median step ([\d.]+)x)?",
            text,
        )
        if faster is not None:
            own.ratio(what, faster[1], ratio)
            own.percent(f"{what} in percent", faster[2], 1 - 1 / ratio)
            if faster[3] is not None:
                medians = median(variants[other].times_s) / median(variants[best].times_s)
                own.ratio(f"{what} by medians", faster[3], medians)
        more = re.search(
            rf"(?<!\S){re.escape(best)} does ([\d.]+)x the work of {re.escape(other)} in the same time: "
            r"([\d,.]+) against ([\d,.]+) (?:tokens|steps)/s",
            text,
        )
        if more is not None:
            own.ratio(what, more[1], ratio)
            own.per_second(f"{what}, one", more[2], per_s[best])
            own.per_second(f"{what}, other", more[3], per_s[other])
        said = faster or more
        sure = said and re.match(
            r"[^.()]*(?: \([^()]*)?; trial by trial ([\d.]+)x to ([\d.]+)x at 95 % confidence\)",
            text[said.end() :],
        )
        if sure:
            sizes = [_per_step(variants[name], shown[name]) for name in (best, other)]
            here, there = (
                [seconds / size for seconds in variants[name].times_s]
                for name, size in zip((best, other), sizes, strict=True)
            )
            low, high = ratio_interval(there, here)
            own.ratio(f"{what}, from", sure[1], low)
            own.ratio(f"{what}, to", sure[2], high)


def _per_step(one: MeasuredVariant, entry: Mapping[str, Any]) -> float:
    """Tokens of a whole step, where they are counted; else one."""
    if one.training is not None:
        return one.training.tokens
    return float(entry["work"].get("tokens") or entry["work"]["steps"]) / float(entry["work"]["steps"])


def _per_second(one: MeasuredVariant, entry: Mapping[str, Any]) -> float:
    done = one.done(entry)
    return _per_step(one, entry) * done.steps / done.elapsed_s
