"""Checks of WAN links (other than rate, delay and conservation), of events and of tunnels. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from testbed.measure.fidelity.invariants import (
    DELAY_BOUND,
    DELAY_BOUND_S,
    WITHIN_DELAY,
    Conservation,
    left_out_text,
    no_wan,
)
from testbed.measure.fidelity.probe import (
    SPREAD_BOUND,
    SPREAD_BOUND_S,
    LinkMeasurement,
    expected_spread_s,
    spread_offence,
)
from testbed.measure.fidelity.verdict import Finding, check
from testbed.measure.result_model import ResultModel
from testbed.net.paths.poisson import poisson_tail
from testbed.spec.link_direction import Direction

MISSING_BOUND = 0.02  # the same tolerance as for probes of rate and delay
EVENT_LATE_S = 0.05  # the kernel takes about 10 ms to take an interface down
NAMED_CHANGES = 8
NAMED_PORTS = 3
LOSS_TAIL = 0.0005  # on each side, which gives one false alarm in a thousand directions


@check(f"within a factor of {SPREAD_BOUND:g}, or {SPREAD_BOUND_S * 1e3:g} ms", "caution")
def jitter_accuracy(measurements: Sequence[LinkMeasurement]) -> Finding:
    """Check how much the delay of every WAN direction varies, as probed before the run on the idle network."""
    if not measurements:
        return no_wan()
    worst = max(measurements, key=lambda entry: spread_offence(entry.asked, entry.spread_s))
    return Finding(
        f"{worst.spread_s * 1e3:.3g} ms" if math.isfinite(worst.spread_s) else "no packet arrived",
        f"Of all WAN links, {worst.name} deviates most from its jitter: the interquartile range of its delays "
        f"should be {expected_spread_s(worst.asked) * 1e3:.3g} ms, measured {worst.spread_s * 1e3:.3g}.",
        spread_offence(worst.asked, worst.spread_s) <= 1,
    )


@check(f"within what chance allows in {1 - 2 * LOSS_TAIL:.1%} of cases; none if none is configured")
def loss_accuracy(
    links: Sequence[Conservation], asked: Sequence[Direction], left_out: Sequence[str] = ()
) -> Finding:
    """Check how many frames each WAN direction lost in the whole run; its two ends count them, not the link itself.

    `left_out` are links that events change while frames are counted.
    """
    if not links:
        return no_wan(left_out)
    link, direction = min(zip(links, asked, strict=True), key=lambda row: _loss_tail(*row))
    lost, travelled = _lost(link)
    return Finding(
        f"{lost} of {travelled} frames",
        f"Of all WAN links, {link.name} deviates most from its loss: of {travelled} frames on its fibre "
        f"{lost} did not arrive, where {travelled * direction.mean_loss:.4g} were expected."
        + left_out_text(left_out),
        _loss_tail(link, direction) >= LOSS_TAIL,
    )


def _lost(link: Conservation) -> tuple[int, int]:
    """Return the number of frames that did not arrive, and the number put on the fibre."""
    travelled = link.taken_in - link.dropped - link.held
    return travelled + link.duplicated - link.arrived, travelled


def _loss_tail(link: Conservation, asked: Direction) -> float:
    """Return the upper or lower tail probability of the observed number of losses; 0 if no loss is configured.

    The distribution is Poisson's, since small counts are far from normally distributed. Burst losses widen it.
    """
    lost, travelled = _lost(link)
    share = asked.mean_loss
    if not share:
        return 1.0 if not lost else 0.0
    each = (1 - share) * asked.loss_spread  # variance per expected loss
    return poisson_tail(round(lost / each), travelled * share / each) if each else 1.0


@check(f"what is missing makes at most {MISSING_BOUND:.0%} of a step", "caution")
def serialisation(missing: float | None) -> Finding:
    """Check that every hop receives a whole frame before it forwards it.

    `missing` is the relative amount by which the model's step would be longer if every hop did this; None if every hop
    does.
    """
    if missing is None:
        sentence = "Every hop held each frame for its serialisation time, or cut through where configured."
        return Finding("at every hop", sentence, ok=True)
    return Finding(
        f"{missing:+.1%}",
        "With this link engine, hosts' NICs and leaf ports let the first frame on an idle link through at "
        f"once. If they held it for its serialisation time, as WAN links do, the model predicts a step {missing:+.1%} "
        "longer.",
        abs(missing) <= MISSING_BOUND,
    )


class DroppingPort(ResultModel):
    """A switch port inside a building, or a host's NIC, whose queue dropped packets during measured steps."""

    place: str
    queue_bytes: int
    given: bool = Field(description="Whether the topology sets the queue size; otherwise it is the default.")
    drops: int = Field(description="Packets dropped over all steps; for a NIC, over the whole run.")


@check("0 packets", failure="caution; untrusted if the kernel's backlog overflowed")
def drops_only_where_modelled(backlog_drops: int, ports: Sequence[DroppingPort] = ()) -> Finding:
    """Check that packets were dropped only by queues with a size set in the topology.

    Drops are not allowed in the kernel's backlog between two interfaces, which models no device, nor in queues of the
    default size inside buildings. `ports` are the ports that dropped packets.
    """
    modelled = sum(port.drops for port in ports if port.given)
    others = [port for port in ports if not port.given]
    dropped = sum(port.drops for port in others)
    sentence = (
        "The kernel passed on every packet between its interfaces, and no queue inside buildings overflowed."
    )
    if modelled:
        sentence = (
            f"Inside buildings, only queues sized in the topology dropped packets: {modelled} in all steps."
        )
    if others:
        named = ", ".join(f"{port.drops} at {port.place}" for port in others[:NAMED_PORTS])
        rest = len(others) - NAMED_PORTS
        more = f" and {rest} other port{'s' * (rest > 1)}" if rest > 0 else ""
        sentence = (
            f"Inside buildings, queues not sized in the topology dropped {dropped} packets in all steps: "
            f"{named}{more}. Set the size that the real devices have: queue of nic, clos.leaf or clos.spine."
        )
    if backlog_drops:
        sentence = (
            f"The kernel dropped {backlog_drops} packets between interfaces because too many were in flight at once "
            "(net.core.netdev_max_backlog): TCP had to recover from losses that no link caused."
        )
    total = backlog_drops + dropped
    return Finding(f"{total} packets", sentence, total == 0, "untrusted" if backlog_drops else "caution")


@check(f"all, within {EVENT_LATE_S * 1e3:g} ms", "caution")
def events_on_time(planned: int, came: int, late_max_s: float) -> Finding:
    """Check that the scenario's events took place and were on time; `late_max_s` is in real seconds."""
    missed = planned - came
    return Finding(
        f"{came} of {planned}, {late_max_s * 1e3:.3g} ms",
        f"Of {planned} starts and ends of events {came} took place while steps were measured, at most "
        f"{late_max_s * 1e3:.3g} ms late." + (" The others were due after the last step." if missed else ""),
        missed == 0 and late_max_s <= EVENT_LATE_S,
    )


@check("as computed")
def rules_in_force(repairs: Sequence[str]) -> Finding:
    """Check that the switches kept their rules throughout; `repairs` lists what the controller had to repair."""
    if repairs:
        sentence = f"The controller found rules changed by another program and restored them: {repairs[0]}."
        return Finding(f"repaired {len(repairs)} times", sentence, ok=False)
    sentence = "At every check by the controller, each switch held its rules and nothing else."
    return Finding("as computed", sentence, ok=True)


@check("no change")
def nothing_changed(changes: Sequence[tuple[float, str]], left_out: Sequence[str] = ()) -> Finding:
    """Check that the network's state in the kernel stayed as it was when the network was checked.

    `changes` has pairs of real seconds after the start of the first step and a description. `left_out` names the parts
    that events change.
    """
    sentence = (
        "The network's state in the kernel did not change between its check and the end of the last step."
    )
    if changes:
        shown = "; ".join(f"{change}, seen at {time_s:.3g} s" for time_s, change in changes[:NAMED_CHANGES])
        more = f"; and {len(changes) - NAMED_CHANGES} more" if len(changes) > NAMED_CHANGES else ""
        sentence = f"Another program changed the network while it was in use: {shown}{more}."
    measured = f"{len(changes) or 'no'} change{'s' * (len(changes) > 1)}"
    return Finding(measured, sentence + left_out_text(left_out), not changes)


@check("as set")
def settings_in_force(difference: str | None) -> Finding:
    """Check that the network's settings are still in force after the run; `difference` is the first that is not."""
    return _still_set("the network", difference)


@check("as set")
def offload_state(difference: str | None) -> Finding:
    """Check that the offload settings are still in force after the run; `difference` is the first that is not."""
    return _still_set("offloads", difference)


def _still_set(what: str, difference: str | None) -> Finding:
    if difference is not None:
        return Finding("changed", f"Changed after the last step: {difference}.", ok=False)
    return Finding("as set", f"The settings of {what} were still in force after the last step.", ok=True)


RATE_TO_SPARE = 1.2  # multiple of the peak demand on a tunnel


@dataclass(frozen=True)
class Tunnel:
    """A tunnel to a building on another machine, over a whole run.

    Attributes:
        machine, building: The machine and building that it connects.
        round_trip_s, slow_round_trip_s: Median and 95th percentile of the round-trip time of small frames, before the
            run.
        rate_bps: Rate before the run, in the slower direction.
        needed_bps: Peak demand of the network.
        least_delay_s: Smallest delay of the WAN links to the building.
        sent, arrived: Number of frames sent into the tunnel at both ends, and number received from it.
        clock_s: Largest possible clock difference between the machines as ranks see it, before or after the run.
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
        """The tunnel's name in messages."""
        return f"the tunnel to {self.building} on {self.machine}"


@check(
    f"at least {RATE_TO_SPARE:g} times the peak demand", failure="caution; untrusted below the peak demand"
)
def tunnel_rate(tunnels: Sequence[Tunnel]) -> Finding:
    """Check that tunnels can carry the peak demand of the network."""
    worst = min(tunnels, key=lambda tunnel: tunnel.rate_bps / tunnel.needed_bps)
    enough = worst.rate_bps / worst.needed_bps
    return Finding(
        f"{enough:.3g} times",
        f"{_capital(worst.name)} carried {worst.rate_bps / 1e6:.4g} Mbit/s; NICs and WAN links there can "
        f"demand {worst.needed_bps / 1e6:.4g}.",
        enough >= RATE_TO_SPARE,
        "caution" if enough >= 1 else "untrusted",
    )


@check(WITHIN_DELAY)
def tunnel_delay(tunnels: Sequence[Tunnel]) -> Finding:
    """Check how much tunnels add to the delay of the WAN links behind them."""
    worst = max(tunnels, key=lambda tunnel: _added_s(tunnel) / _delay_bound_s(tunnel))
    return Finding(
        f"+{_added_s(worst) * 1e3:.3f} ms" if math.isfinite(worst.round_trip_s) else "no reply",
        f"{_capital(worst.name)} adds {_added_s(worst) * 1e3:.3f} ms one way to the "
        f"{worst.least_delay_s * 1e3:.4g} ms of its WAN links; the 95th percentile of its round trips is "
        f"{worst.slow_round_trip_s * 1e3:.3f} ms.",
        _added_s(worst) <= _delay_bound_s(worst),
    )


@check("0 frames")
def tunnel_loss(tunnels: Sequence[Tunnel]) -> Finding:
    """Check that every frame sent into a tunnel during the run arrived."""
    lost = {tunnel.name: tunnel.sent - tunnel.arrived for tunnel in tunnels}
    name = max(lost, key=lambda name: abs(lost[name]))
    return Finding(
        f"{lost[name]} frames",
        f"Of {sum(tunnel.sent for tunnel in tunnels)} frames sent into tunnels "
        + (f"{abs(lost[name])} were lost in {name}." if lost[name] else "all arrived."),
        lost[name] == 0,
    )


@check("within {}", limits=(0.0005, 0.005), unit="ms")
def clocks_agree(tunnels: Sequence[Tunnel]) -> Finding:
    """Check the difference between the machines' clocks, which ranks use to time their steps."""
    worst = max(tunnels, key=lambda tunnel: tunnel.clock_s)
    return Finding(
        f"{worst.clock_s * 1e3:.3f} ms",
        f"The clocks of this machine and {worst.machine} differed by at most {worst.clock_s * 1e3:.3f} ms.",
        value=worst.clock_s,
    )


TUNNEL_CHECKS = (tunnel_rate, tunnel_delay, tunnel_loss, clocks_agree)
"""The checks of a network that spans machines."""


def _added_s(tunnel: Tunnel) -> float:
    return tunnel.round_trip_s / 2


def _delay_bound_s(tunnel: Tunnel) -> float:
    return max(DELAY_BOUND * tunnel.least_delay_s, DELAY_BOUND_S)


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]
