"""How long control takes, as a scenario says it. The defaults are those of switches and controllers that were measured.

The sources are named in each field's description and in docs/reference/policies.md.
"""

from __future__ import annotations

from pydantic import Field

from testbed.spec.base_model import StrictModel
from testbed.spec.control_delays import Control
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.value_types import Duration, TimeoutOrNone


class ControlSpec(StrictModel):
    """What goes by between a link that is cut and packets that go another way; 0 s makes a part free."""

    carrier_down_s: Duration = Field(
        default=0.01,
        alias="carrier_down",
        description="Until the switches at both ends of a link that is cut see it; till then what they send there is "
        "lost. 10 ms is what Cisco gives for fibre ports of the Catalyst 6500 (Software Configuration Guide, port "
        "debounce timer); others wait 100 ms (the access ports of Cisco's ACI) or poll every 250 ms (Broadcom's "
        "driver).",
    )
    carrier_up_s: Duration = Field(
        default=0.01,
        alias="carrier_up",
        description="Until they see that it is mended, if they saw that it was cut. The same table speaks of every "
        "change of a link; the retraining of optics, seconds for some, is not in it.",
    )
    reaction_s: Duration = Field(
        default=0.05,
        alias="reaction_time",
        description="From a switch's word that a port is down, or up, until the controller has computed the rules that "
        "follow and sends them. The figure is ours, in the midst of the 10 to 100 ms that ONOS was designed for (Berde "
        "et al., HotSDN 2014).",
    )
    rule_s: Duration = Field(
        default=0.001,
        alias="rule_time",
        description="What a switch needs to put one rule or group into its table, change it or take it out; each "
        "switch does its own, one after the other. Kuzniar et al. (PAM 2015) measured some hundred to about a "
        "thousand a second on hardware switches: this is the quick end.",
    )

    silence_s: TimeoutOrNone = Field(
        default=None,
        alias="silence",
        description="Until the edges at both ends of a link that carries nothing, though its carrier is up, take their "
        "ports out of use: of edges that send each other hellos, interval times multiplier, such as 150 ms for 50 ms "
        "and 3 with BFD (RFC 5880). Without, they never see it.",
    )

    def resolve(self, scale: Scale = UNSCALED) -> Control:
        """As the network that is built has it: time dilation stretches it."""
        return Control(
            carrier_down_s=scale.emulated_s(self.carrier_down_s),
            carrier_up_s=scale.emulated_s(self.carrier_up_s),
            reaction_s=scale.emulated_s(self.reaction_s),
            rule_s=scale.emulated_s(self.rule_s),
            silence_s=None if self.silence_s is None else scale.emulated_s(self.silence_s),
        )
