"""How long control takes, in plain figures: for `config`, which reads them, and for those who wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Control:
    """What goes by between a link that is cut and packets that go another way, in emulated seconds.

    carrier_down_s, carrier_up_s: until the switches at both ends see that a link is cut, or mended. reaction_s: from a
    switch's word that a port has changed until the controller sends the rules that follow. rule_s: until a switch has
    one of them in its table. silence_s: until they see that a link carries nothing though its carrier is up, as those
    do that send each other hellos; None: never.
    """

    carrier_down_s: float = 0.0
    carrier_up_s: float = 0.0
    reaction_s: float = 0.0
    rule_s: float = 0.0
    silence_s: float | None = None


INSTANT = Control()
