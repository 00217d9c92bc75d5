"""What holds frames back where they come in, and what a card that is not well adds."""

from __future__ import annotations

from testbed.net.links.ingress import IngressDelay, add_ingress_delays, ingress_change_commands
from testbed.net.links.setup import Setup

WELL = IngressDelay(8e6, "10.3.0.0/16")
ILL = IngressDelay(8e6, "10.3.0.0/16", delay_s=0.002, loss=0.01)


def test_a_card_that_is_not_well_holds_all_frames() -> None:
    setup = Setup()
    add_ingress_delays(setup, {"p0": ILL})
    assert not any("10.3.0.0/16" in command for command in setup.tc)
    assert (WELL.bypass_network, ILL.bypass_network) == ("10.3.0.0/16", None)


def test_what_cuts_through_is_held_while_the_card_is_not_well() -> None:
    ill, held = ingress_change_commands("p0", ILL, WELL)
    assert "delay 2000.000us loss random 1.00000000% rate 1000000bps" in ill
    assert held == "filter del dev p0 parent ffff: pref 10"
    well, passed = ingress_change_commands("p0", WELL, ILL)
    assert well.endswith("netem limit 1000000 rate 1000000bps")
    assert passed.startswith(
        "filter add dev p0 parent ffff: protocol ip pref 10 u32 match ip dst 10.3.0.0/16"
    )
    assert len(ingress_change_commands("p0", ILL, IngressDelay(8e6, "10.3.0.0/16", loss=0.5))) == 1
