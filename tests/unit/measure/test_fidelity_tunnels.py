"""What the verdict says of tunnels between machines."""

from __future__ import annotations

from dataclasses import replace

from testbed.measure.fidelity.link_invariants import (
    Tunnel,
    clocks_agree,
    tunnel_delay,
    tunnel_loss,
    tunnel_rate,
)

GOOD = Tunnel("b", "west", 60e-6, 200e-6, 2e9, 140e6, 0.0025, 1000, 1000, 50e-6)


def test_a_tunnel_with_room_to_spare_holds_all_bounds() -> None:
    for check in (tunnel_rate, tunnel_delay, tunnel_loss, clocks_agree):
        found = check([GOOD])
        assert found.ok, found
        assert found.sentence.endswith(".")


def test_the_worst_of_several_is_named() -> None:
    slow = replace(GOOD, machine="c", building="north", rate_bps=150e6)
    found = tunnel_rate([GOOD, slow])
    assert (found.ok, found.severity) == (False, "caution")
    assert (
        found.sentence
        == "The tunnel to north on c carried 150 Mbit/s; NICs and WAN links there can demand 140."
    )
    assert tunnel_rate([GOOD, replace(slow, rate_bps=130e6)]).severity == "untrusted"


def test_delay_is_held_against_the_shortest_link_behind_the_tunnel() -> None:
    assert tunnel_delay([replace(GOOD, round_trip_s=0.0009)]).ok
    assert not tunnel_delay([replace(GOOD, round_trip_s=0.0012)]).ok  # 0.6 ms one way, on 2.5 ms
    assert tunnel_delay([replace(GOOD, round_trip_s=0.0012, least_delay_s=0.040)]).ok
    nothing = tunnel_delay([replace(GOOD, round_trip_s=float("inf"))])
    assert (nothing.ok, nothing.measured) == (False, "no reply")


def test_a_lost_frame_is_one_too_many() -> None:
    found = tunnel_loss([GOOD, replace(GOOD, building="north", arrived=999)])
    assert found.ok is False
    assert found.sentence == "Of 2000 frames sent into tunnels 1 were lost in the tunnel to north on b."


def test_clocks_have_two_bounds() -> None:
    assert clocks_agree([replace(GOOD, clock_s=0.001)]).severity == "caution"
    assert clocks_agree([replace(GOOD, clock_s=0.006)]).severity == "untrusted"
