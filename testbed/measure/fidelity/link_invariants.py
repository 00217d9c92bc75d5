"""Invariants of WAN links beside rate, delay and conservation, and of tunnels. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.measure.fidelity.invariants import DELAY_BOUND, DELAY_BOUND_S, Conservation, no_wan, without
from testbed.measure.fidelity.probe import (
    SPREAD_BOUND,
    SPREAD_BOUND_S,
    LinkMeasurement,
    expected_spread_s,
    spread_offence,
)
from testbed.measure.fidelity.verdict import Invariant, graded
from testbed.net.paths.poisson import poisson_tail
from testbed.spec.link_direction import Direction

STALLED_CAUTION, STALLED_UNTRUSTED = 0.1, 0.3
MISSING_BOUND = 0.02  # as much as a probe of rate or delay may be off
EVENT_LATE_S = 0.05  # the kernel takes some 10 ms to take an interface down
TOLD_CHANGES = 8
NAMED_PORTS = 3
LOSS_TAIL = 0.0005  # to either side: one alarm in a thousand clean directions


def jitter_accuracy(measurements: Sequence[LinkMeasurement]) -> Invariant:
    """How much every WAN direction's delay varies, probed before the run on the idle network."""
    bound = f"within a factor of {SPREAD_BOUND:g}, or {SPREAD_BOUND_S * 1e3:g} ms"
    if not measurements:
        return no_wan("jitter_accuracy", bound)
    worst = max(measurements, key=lambda entry: spread_offence(entry.asked, entry.spread_s))
    expected_s = expected_spread_s(worst.asked)
    return Invariant(
        "jitter_accuracy",
        bound=bound,
        measured=f"{worst.spread_s * 1e3:.3g} ms"
        if math.isfinite(worst.spread_s)
        else "nothing came through",
        ok=spread_offence(worst.asked, worst.spread_s) <= 1,
        sentence=f"Of all WAN links, {worst.name} is furthest from its jitter: the middle half of its delays should "
        f"lie within {expected_s * 1e3:.3g} ms, and lies within {worst.spread_s * 1e3:.3g}.",
        severity="caution",
    )


def loss_accuracy(
    links: Sequence[Conservation], asked: Sequence[Direction], left_out: Sequence[str] = ()
) -> Invariant:
    """How many frames of the whole run each WAN direction lost, counted at its two ends, not by the link itself.

    `left_out` are links that events change while frames are counted.
    """
    bound = f"as far off by chance as {2 * LOSS_TAIL:.1%} are; none where none is asked for"
    if not links:
        return no_wan("loss_accuracy", bound, left_out)
    link, direction = min(zip(links, asked, strict=True), key=lambda row: _loss_tail(*row))
    lost, travelled = _lost(link)
    return Invariant(
        "loss_accuracy",
        bound=bound,
        measured=f"{lost} of {travelled} frames",
        ok=_loss_tail(link, direction) >= LOSS_TAIL,
        sentence=f"Of all WAN links, {link.name} is furthest from its loss: of {travelled} frames on its fibre "
        f"{lost} did not arrive, where {travelled * direction.mean_loss:.4g} were to be expected."
        + without(left_out),
    )


def _lost(link: Conservation) -> tuple[int, int]:
    """(frames that did not arrive, frames that were put on the fibre)."""
    travelled = link.taken_in - link.dropped - link.held
    return travelled + link.duplicated - link.arrived, travelled


def _loss_tail(link: Conservation, asked: Direction) -> float:
    """How likely it is that a direction loses as many frames as this one did, or more, if that is too many; or fewer.

    0 where none is possible. Losses come one by one, or in bursts, which widen their number's distribution: Poisson's,
    as few are far from a normal one.
    """
    lost, travelled = _lost(link)
    share = asked.mean_loss
    if not share:
        return 1.0 if not lost else 0.0
    each = (1 - share) * asked.loss_spread  # variance for each that is expected
    return poisson_tail(round(lost / each), travelled * share / each) if each else 1.0


def serialisation(missing: float | None) -> Invariant:
    """Whether every hop has all of a frame before it passes it on.

    missing: by the model, how much longer a step would be if all did, as a share; None where all do.
    """
    bound = f"what is missing makes at most {MISSING_BOUND:.0%} of a step"
    if missing is None:
        words = "Every hop held each frame for its size over the rate, or cut through where that was asked."
        return Invariant("serialisation", bound, "at every hop", True, words)
    return Invariant(
        "serialisation",
        bound=bound,
        measured=f"{missing:+.1%}",
        ok=abs(missing) <= MISSING_BOUND,
        sentence="Hosts' cards and leaf ports let the first frame of an idle link through at once, with this link "
        f"engine; if they held it for its own time, as the WAN links do, a step would be {missing:+.1%} longer by the "
        "model.",
        severity="caution",
    )


def emulator_stalls(late_s: float | None, watched_s: float) -> Invariant:
    """How much of the measured steps the link engine spent behind its time.

    `late_s` is the sum, over the samples taken during them, of the worst lateness since the sample before: None for an
    engine inside the kernel. Few frames are late in a stall, since few are sent while everybody waits: the share of
    frames that were late says nothing of it.
    """
    bound = f"at most {STALLED_CAUTION:.0%} of the time"
    if late_s is None:
        words = "The kernel releases the frames by its own timers."
        return Invariant("emulator_stalls", bound, "not applicable", None, words)
    share = late_s / watched_s if watched_s else 0.0
    return graded(
        "emulator_stalls",
        share,
        STALLED_CAUTION,
        STALLED_UNTRUSTED,
        bound=bound,
        measured=f"{share:.1%} of the time",
        sentence=f"The link engine was behind its time for {late_s:.3g} s of {watched_s:.3g} s of measured steps.",
    )


@dataclass(frozen=True)
class PortDrops:
    """Packets that the queue of a port inside a building dropped while steps were measured.

    place: for people. queue_bytes: its size, emulated. given: whether the topology gives it; else it is the default.
    """

    place: str
    queue_bytes: int
    given: bool
    packets: int


def drops_only_where_modelled(backlog_drops: int, ports: Sequence[PortDrops] = ()) -> Invariant:
    """Whether packets were dropped only by queues that somebody has given a size.

    Not by the kernel itself between two interfaces, where no link or card has a queue, nor by queues inside buildings
    that have their size by default. ports: those that dropped any.
    """
    asked = sum(port.packets for port in ports if port.given)
    others = [port for port in ports if not port.given]
    dropped = sum(port.packets for port in others)
    words = (
        "The kernel handed on every packet between its interfaces, and no queue inside buildings overflowed."
    )
    if asked:
        words = f"Inside buildings only queues whose size the topology gives dropped packets: {asked} in all steps."
    if others:
        named = ", ".join(f"{port.packets} at {port.place}" for port in others[:NAMED_PORTS])
        more = f" and {len(others) - NAMED_PORTS} other ports" if len(others) > NAMED_PORTS else ""
        words = (
            f"Inside buildings queues whose size the topology does not give dropped {dropped} packets in all steps: "
            f"{named}{more}. Give the size that real ones have: queue of nic, clos.leaf or clos.spine."
        )
    if backlog_drops:
        words = (
            f"The kernel dropped {backlog_drops} packets between interfaces because too many were on their way at "
            "once (net.core.netdev_max_backlog): TCP waited for lost packets that no link lost."
        )
    return Invariant(
        "drops_only_where_modelled",
        bound="0 packets",
        measured=f"{backlog_drops + dropped} packets",
        ok=backlog_drops + dropped == 0,
        sentence=words,
        severity="untrusted" if backlog_drops else "caution",
    )


def events_on_time(planned: int, came: int, late_max_s: float) -> Invariant:
    """Whether the scenario's events came, and when they should; real seconds."""
    missed = planned - came
    return Invariant(
        "events_on_time",
        bound=f"all, within {EVENT_LATE_S * 1e3:g} ms",
        measured=f"{came} of {planned}, {late_max_s * 1e3:.3g} ms",
        ok=missed == 0 and late_max_s <= EVENT_LATE_S,
        sentence=f"Of {planned} beginnings and ends of events {came} came while steps were measured, at most "
        f"{late_max_s * 1e3:.3g} ms late." + (" The others lie beyond the last step." if missed else ""),
        severity="caution",
    )


def rules_in_force(repairs: Sequence[str]) -> Invariant:
    """Whether the switches held their rules all the time; `repairs`: what the controller put right."""
    words = "Whenever the controller looked, each switch held its rules and nothing else."
    if repairs:
        words = f"The controller found rules changed by somebody else, and put them right: {repairs[0]}."
    return Invariant(
        "rules_in_force",
        bound="as computed",
        measured="as computed" if not repairs else f"repaired {len(repairs)} times",
        ok=not repairs,
        sentence=words,
    )


def nothing_changed(changes: Sequence[tuple[float, str]], left_out: Sequence[str] = ()) -> Invariant:
    """Whether everything that the kernel holds of the network stayed as it was when the network was checked.

    `changes`: (real seconds after the first step began, what was changed). `left_out`: what events change by design.
    """
    words = "From the check of the network until after the last step nothing that its kernel holds of it was changed."
    if changes:
        shown = "; ".join(f"{what}, seen at {time_s:.3g} s" for time_s, what in changes[:TOLD_CHANGES])
        more = f"; and {len(changes) - TOLD_CHANGES} more" if len(changes) > TOLD_CHANGES else ""
        words = f"Somebody changed the network while it was in use: {shown}{more}."
    return Invariant(
        "nothing_changed",
        bound="no change",
        measured=f"{len(changes) or 'no'} change{'s' * (len(changes) > 1)}",
        ok=not changes,
        sentence=words + without(left_out),
    )


def settings_in_force(name: str, what: str, difference: str | None) -> Invariant:
    """Whether what was set before the run still is after it; `difference` is the first that is not."""
    words = f"What was set of {what} was still in force after the last step."
    return Invariant(
        name,
        bound="as set",
        measured="as set" if difference is None else "changed",
        ok=difference is None,
        sentence=words if difference is None else f"After the last step it was otherwise: {difference}.",
    )


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
