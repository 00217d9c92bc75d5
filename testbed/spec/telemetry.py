"""Telemetry settings of a scenario: readings of links and sockets, captures and dumps, in addition to samples."""

from __future__ import annotations

from typing import Annotated

from testbed.spec.base_model import StrictModel, ValueFormat
from testbed.spec.units import format_duration, parse_duration
from testbed.spec.value_types import Timeout, choice, word_or_list

SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.001, 1.0


def _parse_interval(value: object) -> float:
    try:
        interval_s = parse_duration(value)
    except ValueError:
        interval_s = 0.0
    if not SHORTEST_INTERVAL_S <= interval_s <= LONGEST_INTERVAL_S:
        raise ValueError("a duration from 1 ms to 1 s")
    return interval_s


_INTERVAL = ValueFormat(_parse_interval, {"type": "string", "examples": ["100 ms"]}, format_duration)
_LINKS = word_or_list(
    ("all",),
    {"type": "string"},
    lambda links: all(isinstance(link, str) for link in links),
    "a list of WAN links such as [east-west-0]",
)
WHEN_SLOW, ALWAYS = DUMP_POLICIES = ("when_slow", "always")


class TelemetrySpec(StrictModel):
    """Telemetry recorded while steps are measured, in addition to the ranks' own times."""

    interval_s: Annotated[float, _INTERVAL] = 0.1
    """Time between two readings of every WAN link's counters: rate, queue, drops, marks."""
    capture: Annotated[str | tuple[str, ...], _LINKS] = ()
    """WAN links to capture to pcapng files, one file per direction, such as [east-west-0]; or all."""
    flight_recorder: Annotated[str, choice("a setting", DUMP_POLICIES)] = WHEN_SLOW
    """When to keep the flight recorder dumps of every rank in the run directory: always, or when_slow, which keeps them
    if steps took 10 % longer than the model predicts or if the scenario injects a fault. A run that fails always keeps
    them.
    """
    stalled_after_s: Timeout = 10.0
    """When to diagnose a stall: once consecutive steps of at least five times their variant's median have together
    taken this much longer than usual. The ranks' operations are then dumped and diagnosed while the run continues. A
    certain diagnosis is printed at once, an uncertain one after another half of this time.
    """
