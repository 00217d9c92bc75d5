"""Delays of the control plane as plain figures, without pydantic, for the programs that wait for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Control:
    """Delays between the failure of a link and the rerouting of packets, in emulated seconds.

    Attributes:
        carrier_down_s: until the switches at both ends detect that a link is cut.
        carrier_up_s: until they detect that it is repaired.
        reaction_s: from a port-status message until the controller sends new rules.
        rule_s: until a switch has installed one rule.
        silence_s: until they detect a link that drops all traffic while its carrier is up, as with hellos; None: never.
    """

    carrier_down_s: float = 0.0
    carrier_up_s: float = 0.0
    reaction_s: float = 0.0
    rule_s: float = 0.0
    silence_s: float | None = None


INSTANT = Control()
