"""Why figures are not to be relied on: the worst variants first, the first few in full, how many more there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from testbed.measure.fidelity.verdict import ORDER
from testbed.measure.results.result import InvariantRecord, Variant

MOST_REASONS = 5


class Reason(NamedTuple):
    """An invariant of a variant that does not hold."""

    variant: Variant
    invariant: InvariantRecord


def reasons(variants: Sequence[Variant]) -> tuple[list[Reason], list[Reason]]:
    """Those that are told at once, and those behind them."""
    ranked = sorted(variants, key=lambda variant: -ORDER.index(variant.verdict.status))
    found = [Reason(variant, invariant) for variant in ranked for invariant in variant.verdict.failed]
    return found[:MOST_REASONS], found[MOST_REASONS:]


def counted(more: Sequence[Reason]) -> str:
    """How often each invariant is among them: "serialisation 2 times, cpu_headroom"."""
    names = Counter(reason.invariant.name for reason in more)
    return ", ".join(f"{name} {count} times" if count > 1 else name for name, count in names.items())
