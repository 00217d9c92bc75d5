"""Signals that arrive while something must not be left half done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from testbed.processes import defer_signals


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """The signals that have taken effect."""
    found: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        found.append(number)

    former = signal.signal(signal.SIGTERM, note)
    yield found
    signal.signal(signal.SIGTERM, former)


def test_a_signal_takes_effect_after_the_block_and_not_within(caught: list[int]) -> None:
    with defer_signals():
        signal.raise_signal(signal.SIGTERM)
        assert caught == []
    assert caught == [signal.SIGTERM]


def test_it_takes_effect_even_where_the_block_fails(caught: list[int]) -> None:
    def fail() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("half done")

    with pytest.raises(ValueError, match="half done"):
        fail()
    assert caught == [signal.SIGTERM]
