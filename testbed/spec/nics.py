"""Network cards of hosts, as a file says them."""

from __future__ import annotations

from pydantic import Field

from testbed.spec.base_model import Strict
from testbed.spec.pause import PauseSpec
from testbed.spec.value_types import DelayOrZero, Queue, Rate


class NicSpec(Strict):
    """Network card of a host."""

    rate_bps: Rate = Field(
        alias="rate", description="Rate of the card, and of the switch port it is plugged into."
    )
    delay_s: DelayOrZero = Field(
        default=0.0, alias="delay", description="Between the host and its switch, one way."
    )
    queue_bytes: Queue = Field(
        default="auto",
        alias="queue",
        description="Buffer of the switch port that the card is plugged into; auto: 1 ms at `rate`, at least 64 "
        "packets. What the host itself cannot send yet waits in its memory.",
    )
    pause: PauseSpec | None = Field(
        default=None, description="The switch pauses the host before it overflows; never, if left out."
    )
