"""Checks of links, host load and results. Pure functions; docs/explanation/fidelity.md explains each bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.measure.fidelity.cpu_monitor import MonitorWindow
from testbed.measure.fidelity.probe import RATE_BOUND, LinkMeasurement
from testbed.measure.fidelity.verdict import Finding, check

DELAY_BOUND, DELAY_BOUND_S = 0.02, 0.0005
SCARCE_IDLE = 0.05  # a 100 ms window with a smaller idle share counts as full
FOREIGN_CAUTION = 0.2  # share of the CPU time that the run does not use
LATENESS_SHARE = 0.99
MISSING_UNTRUSTED = 0.001
WITHIN_DELAY = f"within max({DELAY_BOUND:.0%}, {DELAY_BOUND_S * 1e3:g} ms)"
MISSING_FAILURE = f"caution; untrusted above {MISSING_UNTRUSTED:.1%}"
UNWATCHED = Finding(
    "not watched", "The monitor has no readings from the measured steps.", ok=False, bound="watched"
)


@dataclass(frozen=True)
class Conservation:
    """Frame counters of one WAN direction over a whole run.

    Frames leave the sending edge (`entered`), cross into the WAN namespace, enter and leave the link, and arrive at the
    receiving edge. `lost` counts configured losses, `duplicated` copies, and `dropped` drops of the link's queue.
    `overrun` counts frames for which the emulator had no room, and `held` those still in flight.
    """

    name: str
    entered: int
    crossed: int
    taken_in: int
    given_out: int
    arrived: int
    lost: int
    duplicated: int
    dropped: int
    overrun: int
    held: int

    @property
    def missing(self) -> int:
        """The number of frames unaccounted for, whether missing or in excess."""
        gone = self.lost + self.dropped + self.overrun
        return (
            abs(self.entered - self.crossed)
            + abs(self.taken_in + self.duplicated - self.given_out - gone - self.held)
            + abs(self.given_out - self.arrived)
        )


@check(f"within {RATE_BOUND:.0%}")
def rate_accuracy(measurements: Sequence[LinkMeasurement]) -> Finding:
    """Check the rate of every WAN direction, as probed before the run."""
    if not measurements:
        return no_wan()
    worst = max(measurements, key=_rate_offence)
    error = _rate_error(worst)
    sentence = (
        f"Of all WAN links, {worst.name} deviates most from its rate: configured "
        f"{worst.asked.rate_bps / 1e6:.4g} Mbit/s, measured {worst.rate_bps / 1e6:.4g}."
    )
    if unknown := _too_fast_for_the_probe(worst):
        sentence = (
            f"{worst.name} carried all that the probe could send, {worst.rate_bps / 1e6:.4g} Mbit/s; whether it can "
            f"carry {worst.asked.rate_bps / 1e6:.4g} is unknown."
        )
    return Finding(
        f"{error:+.2%}" if math.isfinite(error) else "no packet arrived",
        sentence,
        abs(error) <= RATE_BOUND + worst.rate_noise,
        "caution" if unknown else None,
        bound=f"within {100 * (RATE_BOUND + worst.rate_noise):.2g}%",
    )


@check(WITHIN_DELAY)
def delay_accuracy(measurements: Sequence[LinkMeasurement]) -> Finding:
    """Check the one-way delay of every WAN direction, as probed before the run on the idle network."""
    if not measurements:
        return no_wan()
    worst = max(measurements, key=lambda entry: _bad_first(_delay_error_s(entry) / _delay_bound_s(entry)))
    error_s = _delay_error_s(worst)
    return Finding(
        f"{error_s * 1e3:+.3f} ms" if math.isfinite(error_s) else "no packet arrived",
        f"Of all WAN links, {worst.name} deviates most from its delay: configured "
        f"{worst.asked.delay_s * 1e3:.4g} ms one way, measured {worst.delay_s * 1e3:.3g}.",
        abs(error_s) <= _delay_bound_s(worst),
    )


@check(
    f"at most {{}} of 100 ms windows with under {SCARCE_IDLE:.0%} idle",
    limits=(0.2, 0.5),
    exempt="Computing takes no virtual time, so the cores cannot be full.",
)
def cpu_headroom(window: MonitorWindow) -> Finding:
    """Check that the cores had idle time while steps were measured."""
    if not window.idle:
        return UNWATCHED
    full = sum(idle < SCARCE_IDLE for idle in window.idle) / len(window.idle)
    mean = sum(window.idle) / len(window.idle)
    stolen = f", and the hypervisor took {window.steal:.0%}" if window.steal > 0.01 else ""
    return Finding(
        f"{full:.0%} of windows",
        f"The cores were idle {mean:.0%} of the time on average, and hardly at all in {full:.0%} of all "
        f"100 ms windows{stolen}.",
        value=full + window.steal,
    )


@check(
    "at most {} of the time that the run leaves free",
    limits=(FOREIGN_CAUTION, 0.75),
    exempt="Other programs on this host slow down the run, but not its clock.",
)
def foreign_load(window: MonitorWindow) -> Finding:
    """Check how much of the CPU time that the run leaves free is used by other programs.

    Their share of the total time says little: 10 % is harmless on an idle host, but a lot on a nearly full one.
    """
    if not window.idle:
        return UNWATCHED
    if window.foreign is None:
        return Finding(
            "not known",
            "This kernel does not report the run's own CPU time; cpu_headroom covers all programs together.",
        )
    left = window.foreign + sum(window.idle) / len(window.idle)
    taken = window.foreign / left if left else 0.0
    used = (
        f"Other programs used {window.foreign:.0%} of the cores' time, {taken:.0%} of what the run left free"
    )
    advice = ": stop them and run again." if taken > FOREIGN_CAUTION else "."
    return Finding(f"{taken:.0%}", used + advice, value=taken)


@check(
    "99 % within {}",
    limits=(0.005, 0.020),
    unit="ms",
    exempt="The clock stops while any process has work to do, so nothing wakes up late.",
)
def scheduler_lag(window: MonitorWindow) -> Finding:
    """Check how late a process that does nothing else wakes up."""
    if not window.ticks:
        return UNWATCHED
    lag_s = window.lag_percentile(0.99)
    worst_s = max(window.lags_s, default=0.0)
    return Finding(
        f"{lag_s * 1e3:.2f} ms",
        f"99 % of wake-ups were at most {lag_s * 1e3:.2f} ms late, the worst one {worst_s * 1e3:.1f} ms.",
        value=lag_s,
    )


HOST_CHECKS = (cpu_headroom, foreign_load, scheduler_lag)
"""The checks that fail on a busy machine, each judged on the worst machine."""


@check(
    "99 % within {}",
    limits=(0.001, 0.005),
    unit="ms",
    exempt="Kernel timers fire at the exact nanosecond: the clock waits for them.",
)
def emulator_lateness(counts: Mapping[str, Sequence[int]] | None, bounds_s: Sequence[float] = ()) -> Finding:
    """Check how late the link engine released frames.

    Args:
        counts: A histogram per direction, with one entry for each of `bounds_s` and one for the rest; None for an
            engine inside the kernel.
        bounds_s: Upper bounds of the histogram's entries, in seconds.
    """
    if counts is None:
        return Finding(
            "not applicable", "The kernel's own timers release the frames; delay_accuracy covers them."
        )
    late = {name: _histogram_bound(entry, bounds_s) for name, entry in counts.items()}
    name = max(late, key=lambda key: late[key], default="")
    value = late.get(name, 0.0)
    text = f"{value * 1e3:g} ms" if math.isfinite(value) else f"more than {bounds_s[-1] * 1e3:g} ms"
    frames = sum(sum(entry) for entry in counts.values())
    return Finding(
        f"99 % within {text}",
        f"The link engine released 99 % of {frames} frames within {text} of their due time"
        + (f"; the worst link was {name}." if len(late) > 1 else "."),
        value=value,
    )


@check(
    "at most {} of the time",
    limits=(0.1, 0.3),
    exempt="Whatever delays the link engine delays the clock as well.",
)
def emulator_stalls(late_s: float | None, watched_s: float) -> Finding:
    """Check for what share of the measured steps' time the link engine was behind schedule.

    The share of late frames does not show stalls, since few frames are sent while all ranks wait.

    Args:
        late_s: The sum, over all samples during steps, of the worst lateness since the previous sample; None for an
            engine inside the kernel.
        watched_s: Total time of the measured steps in seconds.
    """
    if late_s is None:
        return Finding("not applicable", "The kernel's own timers release the frames.")
    share = late_s / watched_s if watched_s else 0.0
    return Finding(
        f"{share:.1%} of the time",
        f"The link engine was behind schedule for {late_s:.3g} s of {watched_s:.3g} s of measured steps.",
        value=share,
    )


@check("0 wrong")
def payload_correct(wrong: int, checked: int, expected: int | None = None) -> Finding:
    """Check that every reduced element has the exact value; `expected` is the number of elements, if it is known."""
    sentence = f"{checked} reduced elements were compared with the exact answer, {wrong} were wrong."
    if not checked:
        sentence = "No reduced element was compared with the exact answer."
    elif missed := (expected or checked) - checked:
        sentence += f" The plan has {expected}: {missed} were not checked."
    is_right = wrong == 0 and checked > 0 and checked == (expected or checked)
    return Finding(f"{wrong} wrong", sentence, is_right)


@check("equal")
def wan_bytes_as_computed(expected: int, observed: Sequence[int]) -> Finding:
    """Compare the payload bytes between buildings, as counted by the ranks, with the algorithm's formula."""
    off = max((abs(count - expected) for count in observed), default=0)
    return Finding(
        f"{off} bytes off" if off else "equal",
        f"The algorithm's formula gives {expected} emulated payload bytes per step between buildings; in "
        f"{len(observed)} steps the ranks sent "
        + ("exactly that." if not off else f"up to {off} bytes more or less."),
        off == 0 and bool(observed),
    )


@check("0 frames missing", failure=MISSING_FAILURE)
def conservation(
    links: Sequence[Conservation], edges: Mapping[str, tuple[int, int]], left_out: Sequence[str] = ()
) -> Finding:
    """Check that every frame that entered a WAN link or an edge switch left it or is otherwise accounted for.

    Args:
        links: Counters of the WAN directions.
        edges: Frames into and out of each building's edge switch. By design the switch drops nothing, but its daemon
            drops frames without counting them if it runs out of buffers.
        left_out: Links that events cut or change.
    """
    if left_out and not links and not edges:
        return no_wan(left_out)
    missing = {link.name: link.missing + link.overrun for link in links}
    missing |= {f"the edge switch of {name}": abs(rx - tx) for name, (rx, tx) in edges.items()}
    total = sum(missing.values())
    worst = max(missing, key=lambda name: missing[name])
    frames = sum(link.entered for link in links)
    dropped = sum(link.dropped for link in links)
    return Finding(
        f"{total} missing",
        f"Of {frames} frames that entered the WAN links "
        + (
            f"{total} are missing there or in the edge switches, most on {worst}"
            if total
            else "every one arrived or is accounted for, and the edge switches lost none"
        )
        + f"; the links' own queues dropped {dropped}."
        + left_out_text(left_out),
        value=total,
        limits=(0, MISSING_UNTRUSTED * frames),
    )


def no_wan(left_out: Sequence[str] = ()) -> Finding:
    """Return the finding of a check that does not apply: there are no WAN links, or events affect all of them."""
    sentence = "There are no WAN links." if not left_out else "The scenario's events affect every WAN link."
    return Finding("not applicable", sentence)


def left_out_text(left_out: Sequence[str]) -> str:
    """Return a sentence that names the parts that a check leaves out; empty if there are none."""
    return f" Left out, as events affect them: {', '.join(left_out)}." if left_out else ""


def _rate_error(entry: LinkMeasurement) -> float:
    return entry.rate_bps / entry.asked.rate_bps - 1


def _too_fast_for_the_probe(entry: LinkMeasurement) -> bool:
    """Return whether the measured rate may be too low only because the probe could not send faster."""
    return not entry.saturated and _rate_error(entry) < -RATE_BOUND - entry.rate_noise


def _rate_offence(entry: LinkMeasurement) -> tuple[bool, float]:
    """Return a sort key: a rate that is known to be wrong is worse than one that is unknown."""
    error = _bad_first(_rate_error(entry)) - entry.rate_noise
    return error > RATE_BOUND and not _too_fast_for_the_probe(entry), error


def _delay_error_s(entry: LinkMeasurement) -> float:
    return entry.delay_s - entry.asked.delay_s


def _delay_bound_s(entry: LinkMeasurement) -> float:
    # jitter moves the median of a few packets
    return max(DELAY_BOUND * entry.asked.delay_s, DELAY_BOUND_S) + entry.asked.jitter_s / 2


def _bad_first(value: float) -> float:
    return math.inf if math.isnan(value) else abs(value)


def _histogram_bound(counts: Sequence[int], bounds_s: Sequence[float]) -> float:
    """Return the smallest bound that LATENESS_SHARE of the counts stay within; infinity if only the last entry does."""
    total, seen = sum(counts), 0
    if not total:
        return 0.0
    for count, bound_s in zip(counts, (*bounds_s, math.inf), strict=True):
        seen += count
        if seen >= LATENESS_SHARE * total:
            return bound_s
    return math.inf
