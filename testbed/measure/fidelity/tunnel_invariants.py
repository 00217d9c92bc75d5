"""Invariants of a network that spans machines: their tunnels, their clocks. Pure; bounds:
docs/explanation/fidelity.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.measure.fidelity.invariants import DELAY_BOUND, DELAY_BOUND_S
from testbed.measure.fidelity.verdict import Invariant, graded

RATE_TO_SPARE = 1.2  # times what the network can ever ask of a tunnel
CLOCK_CAUTION_S, CLOCK_UNTRUSTED_S = 0.0005, 0.005


@dataclass(frozen=True)
class Tunnel:
    """A tunnel to a building on another machine, over a whole run.

    round_trip_s, slow_round_trip_s: median and 95th percentile of small frames, before the run. rate_bps: the lesser of
    both ways, before it. needed_bps: what the network can ever ask of it. least_delay_s: of the WAN links that lead to
    the building. sent, arrived: frames that went in at either end, and came out. clock_s: how far apart the machines'
    clocks may be, as ranks see them, before the run or after it.
    """

    machine: str
    building: str
    round_trip_s: float
    slow_round_trip_s: float
    rate_bps: float
    needed_bps: float
    least_delay_s: float
    sent: int
    arrived: int
    clock_s: float

    @property
    def name(self) -> str:
        """For people."""
        return f"the tunnel to {self.building} on {self.machine}"


def tunnel_rate(tunnels: Sequence[Tunnel]) -> Invariant:
    """Whether tunnels carry what the network can ask of them."""
    worst = min(tunnels, key=lambda tunnel: tunnel.rate_bps / tunnel.needed_bps)
    enough = worst.rate_bps / worst.needed_bps
    return Invariant(
        "tunnel_rate",
        bound=f"at least {RATE_TO_SPARE:g} times what the network can ask of it",
        measured=f"{enough:.3g} times",
        ok=enough >= RATE_TO_SPARE,
        severity="caution" if enough >= 1 else "untrusted",
        sentence=f"{_capital(worst.name)} carried {worst.rate_bps / 1e6:.4g} Mbit/s; cards and WAN links there come to "
        f"{worst.needed_bps / 1e6:.4g}.",
    )


def tunnel_delay(tunnels: Sequence[Tunnel]) -> Invariant:
    """What tunnels add to the delay of the WAN links behind them."""
    worst = max(tunnels, key=lambda tunnel: _added_s(tunnel) / _delay_bound_s(tunnel))
    return Invariant(
        "tunnel_delay",
        bound=f"within max({DELAY_BOUND:.0%}, {DELAY_BOUND_S * 1e3:g} ms)",
        measured=f"+{_added_s(worst) * 1e3:.3f} ms"
        if math.isfinite(worst.round_trip_s)
        else "nothing came back",
        ok=_added_s(worst) <= _delay_bound_s(worst),
        sentence=f"{_capital(worst.name)} adds {_added_s(worst) * 1e3:.3f} ms one way to the "
        f"{worst.least_delay_s * 1e3:.4g} ms of its WAN; of 20 frames one was back only after "
        f"{worst.slow_round_trip_s * 1e3:.3f} ms.",
    )


def tunnel_loss(tunnels: Sequence[Tunnel]) -> Invariant:
    """Whether all frames that went into a tunnel came out of it, over the whole run."""
    lost = {tunnel.name: tunnel.sent - tunnel.arrived for tunnel in tunnels}
    name = max(lost, key=lambda name: abs(lost[name]))
    return Invariant(
        "tunnel_loss",
        bound="0 frames",
        measured=f"{lost[name]} frames",
        ok=lost[name] == 0,
        sentence=f"Of {sum(tunnel.sent for tunnel in tunnels)} frames that went into tunnels "
        + (f"{abs(lost[name])} were lost in {name}." if lost[name] else "all came out."),
    )


def clocks_agree(tunnels: Sequence[Tunnel]) -> Invariant:
    """How far apart the clocks are that ranks on different machines time their steps by."""
    worst = max(tunnels, key=lambda tunnel: tunnel.clock_s)
    return graded(
        "clocks_agree",
        worst.clock_s,
        CLOCK_CAUTION_S,
        CLOCK_UNTRUSTED_S,
        bound=f"within {CLOCK_CAUTION_S * 1e3:g} ms",
        measured=f"{worst.clock_s * 1e3:.3f} ms",
        sentence=f"Clocks on this machine and on {worst.machine} were apart by at most {worst.clock_s * 1e3:.3f} ms.",
    )


def _added_s(tunnel: Tunnel) -> float:
    return tunnel.round_trip_s / 2


def _delay_bound_s(tunnel: Tunnel) -> float:
    return max(DELAY_BOUND * tunnel.least_delay_s, DELAY_BOUND_S)


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]
