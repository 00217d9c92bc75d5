"""A list of comparisons: what was held, and what differed."""

from __future__ import annotations

import math
from collections import Counter

EXACT = 1e-9
"""Relative difference of the same sum, taken in another order."""


class Checks:
    """Collects comparisons of shown figures with the oracle's own."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.differences: list[str] = []

    def same(self, what: str, shown: float | None, own: float | None, within: float = EXACT) -> None:
        """Hold a figure against the oracle's own value, within a relative tolerance."""
        if shown is None or own is None:
            self._note(what, shown == own, f"shows {shown}, the oracle has {own}")
            return
        close = math.isclose(shown, own, rel_tol=within, abs_tol=1e-12)
        self._note(what, close, f"shows {shown!r}, the oracle has {own!r}")

    def near(self, what: str, shown: float, own: float, within: float) -> None:
        """Hold a figure against the oracle's own value, within an absolute tolerance."""
        self._note(what, abs(shown - own) <= within, f"shows {shown!r}, the oracle has {own!r} +- {within:g}")

    def equal(self, what: str, shown: object, own: object) -> None:
        """Hold anything else against the oracle's own."""
        self._note(what, shown == own, f"shows {shown!r}, the oracle has {own!r}")

    def true(self, what: str, holds: bool, otherwise: str) -> None:
        """Hold a relation."""
        self._note(what, holds, otherwise)

    def _note(self, what: str, holds: bool, otherwise: str) -> None:
        self.held[what.rpartition(": ")[2]] += 1
        if not holds:
            self.differences.append(f"{what}: {otherwise}")
