"""The figures that a command printed of a run, and its sentences of comparison, held against raw files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import permutations
from typing import Any

from tests.oracle.arithmetic import median, ratio_interval
from tests.oracle.checks import Checks
from tests.oracle.page import Shown, Variants

_ROW = re.compile(
    r"(?P<name>\S+)\s+(?P<median>[\d.]+ \w+)\s+(?P<compute>[\d.]+ \w+)\s+(?P<exposed>[\d.]+ \w+)"
    r"\s+(?P<bytes>[\d.]+ \w*B) (?P<mark>\S+(?: %)?)\s"
)
_SECOND = re.compile(
    r"(?P<ranks>\d+) ranks, n=(?P<n>\d+)\s+(?P<least>[\d.]+ \w+)-(?P<most>[\d.]+ \w+)\s+\((?P<expected>[\d.]+ \w*B)\)"
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
            f"{name}: WAN bytes observed", first["bytes"], median([one.moved(step)[1] for step in one.steps])
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
        predicted = re.search(rf"[ ,]{re.escape(name)} ([\d.]+ \w+) \(([+-]?[\d.]+ %)\)", whole)
        if predicted and shown[name].get("predicted"):
            step_s = shown[name]["predicted"]["step_time_s"]
            own.time(f"{name}: predicted step time", predicted[1], step_s)
            own.ratio(f"{name}: error of the model", predicted[2], step_s / median(one.times_s) - 1, 1)
    check_comparisons(whole, variants, own)


def check_comparisons(text: str, variants: Variants, own: Shown) -> None:
    """How many times as quick one variant is as another, and between which bounds, trial by trial."""
    for quick, slow in permutations(variants, 2):
        said = re.search(
            rf"(?<!\S){re.escape(quick)} is ([\d.]+)x faster than {re.escape(slow)} \(([\d.]+ %) less time"
            r"(?:; trial by trial ([\d.]+)x to ([\d.]+)x at 95 % confidence)?\)",
            text,
        )
        if said is None:
            continue
        fast, late = variants[quick].times_s, variants[slow].times_s
        what = f"{quick}, {slow}: speed-up"
        own.ratio(what, said[1], median(late) / median(fast))
        own.percent(f"{what} in percent", said[2], 1 - median(fast) / median(late))
        if said[3] is not None:
            low, high = ratio_interval(late, fast)
            own.ratio(f"{what}, from", said[3], low)
            own.ratio(f"{what}, to", said[4], high)
