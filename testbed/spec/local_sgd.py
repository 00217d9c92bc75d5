"""How seldom, and in how many bits, replicas of a training job put their weights together, as a scenario says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from testbed.spec.base_model import Finding, Form, Strict
from testbed.spec.value_types import Count, CountOrZero

BITS = (32, 16, 8, 4)
REDUCED_BITS = 16  # and more: of types that can be added up on their way


def _parse_bits(value: object) -> int:
    if type(value) is not int or value not in BITS:
        raise ValueError(f"one of: {', '.join(map(str, BITS))}")
    return value


_BITS = Form(_parse_bits, {"enum": list(BITS)})


class OuterSpec(Strict):
    """Local SGD, DiLoCo (arXiv:2311.08105), Streaming DiLoCo (arXiv:2501.18512): bytes and steps, whichever it is.

    Replicas train by themselves, and what their weights have changed is averaged now and then, for an outer optimizer
    on every rank. What that computes takes no time, and is the same on all.
    """

    every: Count = Field(description="Training steps from one exchange of a parameter to its next.")
    parts: Count = Field(
        default=1,
        description="The parameters are cut in so many equal parts, which take turns at even distances: a divisor of "
        "`every`.",
    )
    overlap: CountOrZero = Field(
        default=0,
        description="Training steps that go on while a part is exchanged, at most `every` / `parts`; 0: the next one "
        "waits for it.",
    )
    bits: Annotated[int, _BITS] = Field(
        default=32,
        description="Of a number that is exchanged. 32 and 16 are all-reduced; 8 and 4 cannot be added up on their "
        "way: each replica gathers all others'.",
    )

    def checks(self) -> Iterator[Finding]:
        """Parts come at even distances, each before its next turn."""
        if self.every % self.parts:
            yield Finding(("parts",), str(self.parts), f"a divisor of every ({self.every})")
        elif self.overlap > self.period:
            expected = f"0 to {self.period}: every over parts, from one part to the next"
            yield Finding(("overlap",), str(self.overlap), expected)

    @property
    def period(self) -> int:
        """Training steps from one part's exchange to the next one's."""
        return self.every // self.parts
