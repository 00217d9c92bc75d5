"""What goes on within a rank that stands for several accelerators, as a scenario says it."""

from __future__ import annotations

from pydantic import Field

from testbed.spec.base_model import Strict
from testbed.spec.value_types import Count, Duration, RateOrNone


class WithinRankSpec(Strict):
    """What a rank's accelerators send each other takes time, by a formula: no network carries it.

    Those joined by links of their own (scale-up) are one tier; where a rank stands for more, the network between these
    domains is the other, at the rate of an accelerator's share of the rank's card. Latencies are NCCL's of a hop of a
    ring under its Simple protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat` and `baseLat`).
    """

    scale_up: Count | None = Field(
        default=None,
        description="Accelerators joined by links of their own; default: the accelerator's (8 of H100).",
    )
    scale_up_rate_bps: RateOrNone = Field(
        default=None,
        alias="scale_up_rate",
        description="Of each accelerator's links to those, one way; default: the accelerator's (3.6 Tbit/s of H100).",
    )
    scale_up_latency_s: Duration = Field(
        default=3.4e-6, alias="scale_up_latency", description="Of a hop between two of those."
    )
    scale_out_latency_s: Duration = Field(
        default=9.6e-6, alias="scale_out_latency", description="Of a hop between two domains."
    )
    launch_s: Duration = Field(
        default=8.4e-6, alias="launch", description="Of each collective, whatever its size."
    )
