"""Links whose far end pauses the sender: thresholds and buffers, as written in a file and as they are built."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import Field

from testbed.spec.base_model import Finding, Strict
from testbed.spec.link_direction import PAUSE_FRAME_BYTES, Pause
from testbed.spec.scale import Scale
from testbed.spec.units import format_duration, format_rate, format_size
from testbed.spec.value_types import Queue

# What a switch takes to notice, and a sender to act: the link engine's timers are whole microseconds.
ANSWER_S = 2e-6
HYSTERESIS_FRAMES = 2


class PauseSpec(Strict):
    """When the switch at the far end of a link stops who sends there, after IEEE 802.1Qbb with one priority.

    It counts what came by the link and still waits in its queues. What its queues hold is then limited by this alone.
    """

    xoff_bytes: Queue = Field(
        default="auto", alias="xoff", description="Above it the sender is paused; auto: `xon` and two frames."
    )
    xon_bytes: Queue = Field(
        default="auto",
        alias="xon",
        description="At it, or below, the sender goes on; auto: two frames below `xoff`, or where neither is given "
        "what keeps the link busy until more comes: its rate times the way there and back, and three frames.",
    )
    headroom_bytes: Queue = Field(
        default="auto",
        alias="headroom",
        description="Room beyond `xoff` for what still comes; auto, and at least: the rate times the way there and "
        "back, and three frames.",
    )

    def checks(self) -> Iterator[Finding]:
        """The sender goes on no earlier than it was stopped."""
        if self.xon_bytes != "auto" and self.xoff_bytes != "auto" and self.xon_bytes > self.xoff_bytes:
            yield Finding(
                ("xon",), format_size(self.xon_bytes), f"at most xoff ({format_size(self.xoff_bytes)})"
            )

    def findings(self, rate_bps: float, back_bps: float, way_s: float, frame_bytes: int) -> Iterator[Finding]:
        """Whether the headroom holds what a link still brings; `way_s`: there and back."""
        needed = turnaround_bytes(rate_bps, back_bps, way_s, frame_bytes)
        if self.headroom_bytes != "auto" and self.headroom_bytes < needed:
            expected = (
                f"auto, or at least {format_size(needed)}: what {format_rate(rate_bps)} brings in the "
                f"{format_duration(way_s)} there and back after a pause is sent, and three frames"
            )
            yield Finding(("headroom",), format_size(self.headroom_bytes), expected)

    def resolve(
        self, rate_bps: float, back_bps: float, way_s: float, frame_bytes: int, scale: Scale
    ) -> Pause:
        """The final figures. Rates and `way_s`, there and back, are emulated; frames are never scaled."""
        needed = turnaround_bytes(rate_bps, back_bps, way_s, frame_bytes)
        apart = HYSTERESIS_FRAMES * frame_bytes
        xoff, xon, headroom = (
            None if size == "auto" else round(scale.emulated_bytes(size))
            for size in (self.xoff_bytes, self.xon_bytes, self.headroom_bytes)
        )
        if xon is None:
            xon = needed if xoff is None else max(0, xoff - apart)
        if xoff is None:
            xoff = xon + apart
        return Pause(xoff, xon, max(needed, headroom or 0))


def turnaround_bytes(rate_bps: float, back_bps: float, way_s: float, frame_bytes: int) -> int:
    """What a link still brings after a pause is sent back, at most: also what keeps it busy after a resume is.

    The frame with which the threshold is passed; until the pause arrives the rate times the way there and back
    (`way_s`) with a frame that is under way on the way back, and the pause's own; the frame that the sender has just
    begun. Rates and `way_s` are of the network that is built.
    """
    waits_s = (frame_bytes + PAUSE_FRAME_BYTES) * 8 / back_bps
    return math.ceil(rate_bps / 8 * (way_s + waits_s + ANSWER_S) + 2 * frame_bytes)
