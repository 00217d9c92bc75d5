"""Delays of the control plane in a scenario. The defaults follow published figures of real switches and controllers.

Sources are in each field's description and in docs/reference/policies.md.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from testbed.spec.base_model import StrictModel
from testbed.spec.control_delays import Control
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.value_types import Duration, TimeoutOrNone


class ControlSpec(StrictModel):
    """Delays between the failure of a link and the rerouting of packets; 0 s removes one."""

    carrier_down_s: Duration = 0.01
    """Time until the switches at both ends detect that a link is cut; until then, packets that they send are lost. 10
    ms is Cisco's value for fibre ports of the Catalyst 6500 (Software Configuration Guide, port debounce timer); others
    wait 100 ms (access ports of Cisco ACI) or poll every 250 ms (Broadcom's driver).
    """
    carrier_up_s: Duration = 0.01
    """Time until the switches detect that a link is repaired, if they had detected the cut. The same table covers every
    change of a link; retraining of optics, which can take seconds, is not included.
    """
    reaction_s: Duration = Field(default=0.05, alias="reaction_time")
    """Time from a switch's port-status message until the controller has computed the new rules and sends them. The
    default is our choice, within the 10 to 100 ms that ONOS was designed for (Berde et al., HotSDN 2014).
    """
    rule_s: Duration = Field(default=0.001, alias="rule_time")
    """Time in which a switch adds, changes or deletes one rule or group in its table; it handles them one at a time.
    Kuzniar et al. (PAM 2015) measured some hundred to about a thousand per second on hardware switches; the default is
    the fast end.
    """

    silence_s: TimeoutOrNone = None
    """Time until the edges at both ends of a link that drops all traffic while its carrier is up take their ports out
    of use. For edges that exchange hellos it is interval times multiplier, such as 150 ms for 50 ms and 3 with BFD (RFC
    5880). Default: they never detect it.
    """

    def resolve(self, scale: Scale = UNSCALED) -> Control:
        """Return the emulated delays, stretched by time dilation."""
        delays: dict[str, Any] = {name: own and scale.emulated_s(own) for name, own in self}
        return Control(**delays)
