"""Invariants of WAN links (other than rate, delay and conservation), of events and of tunnels. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.measure.fidelity.invariants import (
    DELAY_BOUND,
    DELAY_BOUND_S,
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
from testbed.measure.fidelity.verdict import Invariant, graded
from testbed.net.paths.poisson import poisson_tail
from testbed.spec.link_direction import Direction

STALLED_CAUTION, STALLED_UNTRUSTED = 0.1, 0.3
MISSING_BOUND = 0.02  # the same tolerance as for probes of rate and delay
EVENT_LATE_S = 0.05  # the kernel takes about 10 ms to take an interface down
NAMED_CHANGES = 8
NAMED_PORTS = 3
LOSS_TAIL = 0.0005  # on either side: one false alarm in a thousand directions


def jitter_accuracy(measurements: Sequence[LinkMeasurement]) -> Invariant:
    """Check how much the delay of every WAN direction varies, as probed before the run on the idle network."""
    bound = f"within a factor of {SPREAD_BOUND:g}, or {SPREAD_BOUND_S * 1e3:g} ms"
    if not measurements:
        return no_wan("jitter_accuracy", bound)
    worst = max(measurements, key=lambda entry: spread_offence(entry.asked, entry.spread_s))
    expected_s = expected_spread_s(worst.asked)
    return Invariant(
        "jitter_accuracy",
        bound=bound,
        measured=f"{worst.spread_s * 1e3:.3g} ms" if math.isfinite(worst.spread_s) else "no packet arrived",
        ok=spread_offence(worst.asked, worst.spread_s) <= 1,
        sentence=f"Of all WAN links, {worst.name} deviates most from its jitter: the interquartile range of its delays "
        f"should be {expected_s * 1e3:.3g} ms, measured {worst.spread_s * 1e3:.3g}.",
        severity="caution",
    )


def loss_accuracy(
    links: Sequence[Conservation], asked: Sequence[Direction], left_out: Sequence[str] = ()
) -> Invariant:
    """Check how many frames each WAN direction lost in the whole run, counted at its two ends, not by the link itself.

    `left_out` are links that events change while frames are counted.
    """
    bound = f"within what chance allows in {1 - 2 * LOSS_TAIL:.1%} of cases; none if none is configured"
    if not links:
        return no_wan("loss_accuracy", bound, left_out)
    link, direction = min(zip(links, asked, strict=True), key=lambda row: _loss_tail(*row))
    lost, travelled = _lost(link)
    return Invariant(
        "loss_accuracy",
        bound=bound,
        measured=f"{lost} of {travelled} frames",
        ok=_loss_tail(link, direction) >= LOSS_TAIL,
        sentence=f"Of all WAN links, {link.name} deviates most from its loss: of {travelled} frames on its fibre "
        f"{lost} did not arrive, where {travelled * direction.mean_loss:.4g} were expected."
        + left_out_text(left_out),
    )


def _lost(link: Conservation) -> tuple[int, int]:
    """Return the frames that did not arrive, and the frames put on the fibre."""
    travelled = link.taken_in - link.dropped - link.held
    return travelled + link.duplicated - link.arrived, travelled


def _loss_tail(link: Conservation, asked: Direction) -> float:
    """Return the tail probability of the observed number of losses, upper or lower; 0 if no loss is configured.

    The distribution is Poisson's, as small numbers are far from normal. Losses in bursts widen it.
    """
    lost, travelled = _lost(link)
    share = asked.mean_loss
    if not share:
        return 1.0 if not lost else 0.0
    each = (1 - share) * asked.loss_spread  # variance per expected loss
    return poisson_tail(round(lost / each), travelled * share / each) if each else 1.0


def serialisation(missing: float | None) -> Invariant:
    """Check that every hop receives a whole frame before it forwards it.

    `missing` is the relative amount by which the model predicts a longer step if all hops did; None if all do.
    """
    bound = f"what is missing makes at most {MISSING_BOUND:.0%} of a step"
    if missing is None:
        sentence = "Every hop held each frame for its serialisation time, or cut through where configured."
        return Invariant("serialisation", bound, "at every hop", True, sentence)
    return Invariant(
        "serialisation",
        bound=bound,
        measured=f"{missing:+.1%}",
        ok=abs(missing) <= MISSING_BOUND,
        sentence="With this link engine, hosts' NICs and leaf ports let the first frame on an idle link through at "
        f"once. If they held it for its serialisation time, as WAN links do, the model predicts a step {missing:+.1%} "
        "longer.",
        severity="caution",
    )


def emulator_stalls(late_s: float | None, watched_s: float) -> Invariant:
    """Check for how much of the measured steps the link engine was behind schedule.

    The share of late frames does not show stalls, as few frames are sent while all ranks wait.

    Args:
        late_s: The sum, over all samples during steps, of the worst lateness since the previous sample; None for an
            engine inside the kernel.
        watched_s: Total time of the measured steps in seconds.
    """
    bound = f"at most {STALLED_CAUTION:.0%} of the time"
    if late_s is None:
        sentence = "The kernel's own timers release the frames."
        return Invariant("emulator_stalls", bound, "not applicable", None, sentence)
    share = late_s / watched_s if watched_s else 0.0
    return graded(
        "emulator_stalls",
        share,
        STALLED_CAUTION,
        STALLED_UNTRUSTED,
        bound=bound,
        measured=f"{share:.1%} of the time",
        sentence=f"The link engine was behind schedule for {late_s:.3g} s of {watched_s:.3g} s of measured steps.",
    )


@dataclass(frozen=True)
class PortDrops:
    """Packets dropped by the queue of a port inside a building while steps were measured.

    `place` names the port for people, `queue_bytes` is its emulated size. `given` says whether the topology sets that
    size; otherwise it is the default.
    """

    place: str
    queue_bytes: int
    given: bool
    packets: int


def drops_only_where_modelled(backlog_drops: int, ports: Sequence[PortDrops] = ()) -> Invariant:
    """Check that packets were dropped only by queues with a size set in the topology.

    Drops are not allowed in the kernel's backlog between two interfaces, which models no device, nor in queues inside
    buildings with the default size. `ports` are those that dropped packets.
    """
    modelled = sum(port.packets for port in ports if port.given)
    others = [port for port in ports if not port.given]
    dropped = sum(port.packets for port in others)
    sentence = (
        "The kernel passed on every packet between its interfaces, and no queue inside buildings overflowed."
    )
    if modelled:
        sentence = (
            f"Inside buildings, only queues sized in the topology dropped packets: {modelled} in all steps."
        )
    if others:
        named = ", ".join(f"{port.packets} at {port.place}" for port in others[:NAMED_PORTS])
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
    return Invariant(
        "drops_only_where_modelled",
        bound="0 packets",
        measured=f"{backlog_drops + dropped} packets",
        ok=backlog_drops + dropped == 0,
        sentence=sentence,
        severity="untrusted" if backlog_drops else "caution",
    )


def events_on_time(planned: int, came: int, late_max_s: float) -> Invariant:
    """Check that the scenario's events took place, and on time; `late_max_s` is in real seconds."""
    missed = planned - came
    return Invariant(
        "events_on_time",
        bound=f"all, within {EVENT_LATE_S * 1e3:g} ms",
        measured=f"{came} of {planned}, {late_max_s * 1e3:.3g} ms",
        ok=missed == 0 and late_max_s <= EVENT_LATE_S,
        sentence=f"Of {planned} starts and ends of events {came} took place while steps were measured, at most "
        f"{late_max_s * 1e3:.3g} ms late." + (" The others were due after the last step." if missed else ""),
        severity="caution",
    )


def rules_in_force(repairs: Sequence[str]) -> Invariant:
    """Check that the switches kept their rules throughout; `repairs` lists what the controller had to repair."""
    sentence = "At every check by the controller, each switch held its rules and nothing else."
    if repairs:
        sentence = f"The controller found rules changed by another program and restored them: {repairs[0]}."
    return Invariant(
        "rules_in_force",
        bound="as computed",
        measured="as computed" if not repairs else f"repaired {len(repairs)} times",
        ok=not repairs,
        sentence=sentence,
    )


def nothing_changed(changes: Sequence[tuple[float, str]], left_out: Sequence[str] = ()) -> Invariant:
    """Check that the network's state in the kernel stayed as it was when the network was checked.

    `changes` are (real seconds after the start of the first step, description). `left_out` is what events change.
    """
    sentence = (
        "The network's state in the kernel did not change between its check and the end of the last step."
    )
    if changes:
        shown = "; ".join(f"{change}, seen at {time_s:.3g} s" for time_s, change in changes[:NAMED_CHANGES])
        more = f"; and {len(changes) - NAMED_CHANGES} more" if len(changes) > NAMED_CHANGES else ""
        sentence = f"Another program changed the network while it was in use: {shown}{more}."
    return Invariant(
        "nothing_changed",
        bound="no change",
        measured=f"{len(changes) or 'no'} change{'s' * (len(changes) > 1)}",
        ok=not changes,
        sentence=sentence + left_out_text(left_out),
    )


def settings_in_force(name: str, what: str, difference: str | None) -> Invariant:
    """Check that settings made before the run are still in force after it; `difference` is the first that is not."""
    sentence = f"The settings of {what} were still in force after the last step."
    return Invariant(
        name,
        bound="as set",
        measured="as set" if difference is None else "changed",
        ok=difference is None,
        sentence=sentence if difference is None else f"Changed after the last step: {difference}.",
    )


RATE_TO_SPARE = 1.2  # times the peak demand on a tunnel
CLOCK_CAUTION_S, CLOCK_UNTRUSTED_S = 0.0005, 0.005


@dataclass(frozen=True)
class Tunnel:
    """A tunnel to a building on another machine, over a whole run.

    Attributes:
        machine, building: What it connects.
        round_trip_s, slow_round_trip_s: Median and 95th percentile for small frames, before the run.
        rate_bps: Rate before the run, in the slower direction.
        needed_bps: Peak demand of the network.
        least_delay_s: Smallest delay of the WAN links to the building.
        sent, arrived: Frames sent into the tunnel at both ends, and received from it.
        clock_s: Largest possible clock difference between the machines, as ranks see it, before or after the run.
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


def tunnel_rate(tunnels: Sequence[Tunnel]) -> Invariant:
    """Check that tunnels can carry the peak demand of the network."""
    worst = min(tunnels, key=lambda tunnel: tunnel.rate_bps / tunnel.needed_bps)
    enough = worst.rate_bps / worst.needed_bps
    return Invariant(
        "tunnel_rate",
        bound=f"at least {RATE_TO_SPARE:g} times the peak demand",
        measured=f"{enough:.3g} times",
        ok=enough >= RATE_TO_SPARE,
        severity="caution" if enough >= 1 else "untrusted",
        sentence=f"{_capital(worst.name)} carried {worst.rate_bps / 1e6:.4g} Mbit/s; NICs and WAN links there can "
        f"demand {worst.needed_bps / 1e6:.4g}.",
    )


def tunnel_delay(tunnels: Sequence[Tunnel]) -> Invariant:
    """Check how much tunnels add to the delay of the WAN links behind them."""
    worst = max(tunnels, key=lambda tunnel: _added_s(tunnel) / _delay_bound_s(tunnel))
    return Invariant(
        "tunnel_delay",
        bound=f"within max({DELAY_BOUND:.0%}, {DELAY_BOUND_S * 1e3:g} ms)",
        measured=f"+{_added_s(worst) * 1e3:.3f} ms" if math.isfinite(worst.round_trip_s) else "no reply",
        ok=_added_s(worst) <= _delay_bound_s(worst),
        sentence=f"{_capital(worst.name)} adds {_added_s(worst) * 1e3:.3f} ms one way to the "
        f"{worst.least_delay_s * 1e3:.4g} ms of its WAN links; the 95th percentile of its round trips is "
        f"{worst.slow_round_trip_s * 1e3:.3f} ms.",
    )


def tunnel_loss(tunnels: Sequence[Tunnel]) -> Invariant:
    """Check that all frames sent into a tunnel arrived, over the whole run."""
    lost = {tunnel.name: tunnel.sent - tunnel.arrived for tunnel in tunnels}
    name = max(lost, key=lambda name: abs(lost[name]))
    return Invariant(
        "tunnel_loss",
        bound="0 frames",
        measured=f"{lost[name]} frames",
        ok=lost[name] == 0,
        sentence=f"Of {sum(tunnel.sent for tunnel in tunnels)} frames sent into tunnels "
        + (f"{abs(lost[name])} were lost in {name}." if lost[name] else "all arrived."),
    )


def clocks_agree(tunnels: Sequence[Tunnel]) -> Invariant:
    """Check the difference between the clocks of the machines that ranks time their steps with."""
    worst = max(tunnels, key=lambda tunnel: tunnel.clock_s)
    return graded(
        "clocks_agree",
        worst.clock_s,
        CLOCK_CAUTION_S,
        CLOCK_UNTRUSTED_S,
        bound=f"within {CLOCK_CAUTION_S * 1e3:g} ms",
        measured=f"{worst.clock_s * 1e3:.3f} ms",
        sentence=f"The clocks of this machine and {worst.machine} differed by at most {worst.clock_s * 1e3:.3f} ms.",
    )


def _added_s(tunnel: Tunnel) -> float:
    return tunnel.round_trip_s / 2


def _delay_bound_s(tunnel: Tunnel) -> float:
    return max(DELAY_BOUND * tunnel.least_delay_s, DELAY_BOUND_S)


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]
