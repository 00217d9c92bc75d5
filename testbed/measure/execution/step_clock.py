"""When the launchers of the ranks heard of each step's start and end: a clock that is not the ranks' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class StepClock:
    """Keeps what launchers' events say of steps' starts and ends, by the number of the step."""

    def __init__(self) -> None:
        self.starts: dict[int, tuple[float, float]] = {}
        """The start that rank 0 announced, and when its launcher heard of it, seconds of CLOCK_MONOTONIC."""
        self.ends: dict[int, dict[int, float]] = {}
        """When each rank's launcher heard that the rank had ended the step, by rank."""

    def hear(self, event: Mapping[str, Any]) -> None:
        """Note one of a launcher's events, if it is about a step."""
        if event["event"] == "step" and "heard_s" in event:
            self.starts[event["index"]] = event["start_s"], event["heard_s"]
        elif event["event"] == "ended":
            heard_s = {int(rank): time_s for rank, time_s in event["heard_s"].items()}
            self.ends.setdefault(event["index"], {}).update(heard_s)
