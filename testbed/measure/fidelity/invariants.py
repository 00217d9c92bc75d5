"""Invariants of links, host load and results. Pure functions; docs/explanation/fidelity.md explains each bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.measure.fidelity.cpu_monitor import MonitorWindow
from testbed.measure.fidelity.probe import RATE_BOUND, LinkMeasurement
from testbed.measure.fidelity.verdict import Invariant, graded

DELAY_BOUND, DELAY_BOUND_S = 0.02, 0.0005
SCARCE_IDLE = 0.05  # a 100 ms window with a smaller idle share counts as full
FULL_WINDOWS_CAUTION, FULL_WINDOWS_UNTRUSTED = 0.2, 0.5
FOREIGN_CAUTION, FOREIGN_UNTRUSTED = 0.2, 0.75  # of the time that the run does not use
LAG_CAUTION_S, LAG_UNTRUSTED_S = 0.005, 0.020
LATENESS_CAUTION_S, LATENESS_UNTRUSTED_S = 0.001, 0.005
LATENESS_SHARE = 0.99
MISSING_UNTRUSTED = 0.001


@dataclass(frozen=True)
class Conservation:
    """Frame counters of one WAN direction over a whole run.

    Frames leave the sending edge (`entered`), cross into the WAN namespace, are taken in and given out by the link, and
    arrive at the receiving edge. `lost` are losses by configuration, `duplicated` are copies, `dropped` are drops of
    the link's queue, `overrun` are frames for which the emulator had no room, and `held` are still in flight.
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
        """Frames unaccounted for, whether missing or in excess."""
        gone = self.lost + self.dropped + self.overrun
        return (
            abs(self.entered - self.crossed)
            + abs(self.taken_in + self.duplicated - self.given_out - gone - self.held)
            + abs(self.given_out - self.arrived)
        )


def rate_accuracy(measurements: Sequence[LinkMeasurement]) -> Invariant:
    """Check the rate of every WAN direction, as probed before the run."""
    if not measurements:
        return no_wan("rate_accuracy", f"within {RATE_BOUND:.0%}")
    worst = max(measurements, key=_rate_offence)
    bound = f"within {100 * (RATE_BOUND + worst.rate_noise):.2g}%"
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
    return Invariant(
        "rate_accuracy",
        bound=bound,
        measured=f"{error:+.2%}" if math.isfinite(error) else "no packet arrived",
        ok=abs(error) <= RATE_BOUND + worst.rate_noise,
        sentence=sentence,
        severity="caution" if unknown else "untrusted",
    )


def delay_accuracy(measurements: Sequence[LinkMeasurement]) -> Invariant:
    """Check the one-way delay of every WAN direction, as probed before the run on the idle network."""
    if not measurements:
        return no_wan("delay_accuracy", f"within max({DELAY_BOUND:.0%}, {DELAY_BOUND_S * 1e3:g} ms)")
    worst = max(measurements, key=lambda entry: _bad_first(_delay_error_s(entry) / _delay_bound_s(entry)))
    error_s, bound_s = _delay_error_s(worst), _delay_bound_s(worst)
    return Invariant(
        "delay_accuracy",
        bound=f"within max({DELAY_BOUND:.0%}, {DELAY_BOUND_S * 1e3:g} ms)",
        measured=f"{error_s * 1e3:+.3f} ms" if math.isfinite(error_s) else "no packet arrived",
        ok=abs(error_s) <= bound_s,
        sentence=f"Of all WAN links, {worst.name} deviates most from its delay: configured "
        f"{worst.asked.delay_s * 1e3:.4g} ms one way, measured {worst.delay_s * 1e3:.3g}.",
    )


def cpu_headroom(window: MonitorWindow) -> Invariant:
    """Check that the cores had idle time while steps were measured."""
    if not window.idle:
        return _unwatched("cpu_headroom")
    full = sum(idle < SCARCE_IDLE for idle in window.idle) / len(window.idle)
    mean = sum(window.idle) / len(window.idle)
    stolen = f", and the hypervisor took {window.steal:.0%}" if window.steal > 0.01 else ""
    return graded(
        "cpu_headroom",
        full + window.steal,
        FULL_WINDOWS_CAUTION,
        FULL_WINDOWS_UNTRUSTED,
        bound=f"at most {FULL_WINDOWS_CAUTION:.0%} of 100 ms windows with under {SCARCE_IDLE:.0%} idle",
        measured=f"{full:.0%} of windows",
        sentence=f"The cores were idle {mean:.0%} of the time on average, and hardly at all in {full:.0%} of all "
        f"100 ms windows{stolen}.",
    )


def foreign_load(window: MonitorWindow) -> Invariant:
    """Check how much of the CPU time that the run leaves free is used by other programs.

    Their share of the total time says little: a tenth is harmless on an idle host, and a lot on a nearly full one.
    """
    if not window.idle:
        return _unwatched("foreign_load")
    bound = f"at most {FOREIGN_CAUTION:.0%} of the time that the run leaves free"
    if window.foreign is None:
        sentence = (
            "This kernel does not report the run's own CPU time; cpu_headroom covers all programs together."
        )
        return Invariant("foreign_load", bound, "not known", None, sentence)
    left = window.foreign + sum(window.idle) / len(window.idle)
    taken = window.foreign / left if left else 0.0
    used = (
        f"Other programs used {window.foreign:.0%} of the cores' time, {taken:.0%} of what the run left free"
    )
    return graded(
        "foreign_load",
        taken,
        FOREIGN_CAUTION,
        FOREIGN_UNTRUSTED,
        bound=bound,
        measured=f"{taken:.0%}",
        sentence=used + ("." if taken <= FOREIGN_CAUTION else ": stop them and run again."),
    )


def scheduler_lag(window: MonitorWindow) -> Invariant:
    """Check how late a process wakes up that does nothing else."""
    if not window.ticks:
        return _unwatched("scheduler_lag")
    lag_s = window.lag_percentile(0.99)
    worst_s = max(window.lags_s, default=0.0)
    return graded(
        "scheduler_lag",
        lag_s,
        LAG_CAUTION_S,
        LAG_UNTRUSTED_S,
        bound=f"99 % within {LAG_CAUTION_S * 1e3:g} ms",
        measured=f"{lag_s * 1e3:.2f} ms",
        sentence=f"99 % of wake-ups were at most {lag_s * 1e3:.2f} ms late, the worst one {worst_s * 1e3:.1f} ms.",
    )


def emulator_lateness(
    counts: Mapping[str, Sequence[int]] | None, bounds_s: Sequence[float] = ()
) -> Invariant:
    """Check how late the link engine released frames.

    Args:
        counts: A histogram per direction, one entry for each of `bounds_s` and one for the rest; None for an engine
            inside the kernel.
        bounds_s: Upper bounds of the histogram's entries, in seconds.
    """
    bound = f"99 % within {LATENESS_CAUTION_S * 1e3:g} ms"
    if counts is None:
        return Invariant(
            "emulator_lateness",
            bound,
            "not applicable",
            None,
            "The kernel's own timers release the frames; delay_accuracy covers them.",
        )
    late = {name: _histogram_bound(entry, bounds_s) for name, entry in counts.items()}
    name = max(late, key=lambda key: late[key], default="")
    value = late.get(name, 0.0)
    text = f"{value * 1e3:g} ms" if math.isfinite(value) else f"more than {bounds_s[-1] * 1e3:g} ms"
    frames = sum(sum(entry) for entry in counts.values())
    return graded(
        "emulator_lateness",
        value,
        LATENESS_CAUTION_S,
        LATENESS_UNTRUSTED_S,
        bound=bound,
        measured=f"99 % within {text}",
        sentence=f"The link engine released 99 % of {frames} frames within {text} of their due time"
        + (f"; the worst link was {name}." if len(late) > 1 else "."),
    )


def by_construction(name: str) -> Invariant:
    """Return an invariant that cannot fail under the virtual clock, where nothing in the guest is ever late."""
    reasons = {
        "cpu_headroom": "Computing takes no virtual time, so the cores cannot be full.",
        "foreign_load": "Other programs on this host slow down the run, but not its clock.",
        "scheduler_lag": "The clock stops while any process has work to do, so nothing wakes up late.",
        "emulator_lateness": "Kernel timers fire at the exact nanosecond: the clock waits for them.",
        "emulator_stalls": "Whatever delays the link engine delays the clock as well.",
    }
    return Invariant(name, "none needed", "cannot fail", None, reasons[name])


def payload_correct(wrong: int, checked: int, expected: int | None = None) -> Invariant:
    """Check that every reduced element has the exact value; `expected` is their number, if it is known."""
    sentence = f"{checked} reduced elements were compared with the exact answer, {wrong} were wrong."
    if not checked:
        sentence = "No reduced element was compared with the exact answer."
    elif missed := (expected or checked) - checked:
        sentence += f" The plan has {expected}: {missed} were not checked."
    return Invariant(
        "payload_correct",
        bound="0 wrong",
        measured=f"{wrong} wrong",
        ok=wrong == 0 and checked > 0 and checked == (expected or checked),
        sentence=sentence,
    )


def wan_bytes_as_computed(expected: int, observed: Sequence[int]) -> Invariant:
    """Compare the payload bytes between buildings, as counted by the ranks, with the algorithm's formula."""
    off = max((abs(count - expected) for count in observed), default=0)
    return Invariant(
        "wan_bytes_as_computed",
        bound="equal",
        measured=f"{off} bytes off" if off else "equal",
        ok=off == 0 and bool(observed),
        sentence=f"The algorithm's formula gives {expected} emulated payload bytes per step between buildings; in "
        f"{len(observed)} steps the ranks sent "
        + ("exactly that." if not off else f"up to {off} bytes more or less."),
    )


def conservation(
    links: Sequence[Conservation], edges: Mapping[str, tuple[int, int]], left_out: Sequence[str] = ()
) -> Invariant:
    """Check that every frame that entered a WAN link or an edge switch left it or is accounted for.

    Args:
        links: Counters of the WAN directions.
        edges: Frames into and out of each building's edge switch. By design it drops nothing, but its daemon drops
            frames if it runs out of buffers, and does not count them.
        left_out: Links that events cut or change.
    """
    if left_out and not links and not edges:
        return no_wan("conservation", "0 frames missing", left_out)
    missing = {link.name: link.missing + link.overrun for link in links}
    missing |= {f"the edge switch of {name}": abs(rx - tx) for name, (rx, tx) in edges.items()}
    total = sum(missing.values())
    worst = max(missing, key=lambda name: missing[name])
    frames = sum(link.entered for link in links)
    dropped = sum(link.dropped for link in links)
    return graded(
        "conservation",
        total,
        0,
        MISSING_UNTRUSTED * frames,
        bound="0 frames missing",
        measured=f"{total} missing",
        sentence=f"Of {frames} frames that entered the WAN links "
        + (
            f"{total} are missing there or in the edge switches, most on {worst}"
            if total
            else "every one arrived or is accounted for, and the edge switches lost none"
        )
        + f"; the links' own queues dropped {dropped}."
        + left_out_text(left_out),
    )


def _unwatched(name: str) -> Invariant:
    sentence = "The monitor has no readings from the measured steps."
    return Invariant(name, "watched", "not watched", ok=False, sentence=sentence)


def no_wan(name: str, bound: str, left_out: Sequence[str] = ()) -> Invariant:
    """Return an invariant that does not apply: there are no WAN links, or events affect all of them."""
    sentence = "There are no WAN links." if not left_out else "The scenario's events affect every WAN link."
    return Invariant(name, bound, "not applicable", None, sentence)


def left_out_text(left_out: Sequence[str]) -> str:
    """Return a sentence that names what a check leaves out; empty if nothing."""
    return f" Left out, as events affect them: {', '.join(left_out)}." if left_out else ""


def _rate_error(entry: LinkMeasurement) -> float:
    return entry.rate_bps / entry.asked.rate_bps - 1


def _too_fast_for_the_probe(entry: LinkMeasurement) -> bool:
    """Return whether the rate may be too low only because the probe could not send faster."""
    return not entry.saturated and _rate_error(entry) < -RATE_BOUND - entry.rate_noise


def _rate_offence(entry: LinkMeasurement) -> tuple[bool, float]:
    """Return a sort key: what is known to be wrong is worse than what is unknown."""
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
    """Return the smallest bound that LATENESS_SHARE of the counts meet; infinity if only the last entry does."""
    total, seen = sum(counts), 0
    if not total:
        return 0.0
    for count, bound_s in zip(counts, (*bounds_s, math.inf), strict=True):
        seen += count
        if seen >= LATENESS_SHARE * total:
            return bound_s
    return math.inf
