"""From measured data to invariants. Pure; docs/explanation/fidelity.md says why each bound is what it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.measure.fidelity.cpu_monitor import MonitorWindow
from testbed.measure.fidelity.probe import RATE_BOUND, LinkMeasurement
from testbed.measure.fidelity.verdict import Invariant, graded

DELAY_BOUND, DELAY_BOUND_S = 0.02, 0.0005
SCARCE_IDLE = 0.05  # a 100 ms window with less of its time idle counts as full
FULL_WINDOWS_CAUTION, FULL_WINDOWS_UNTRUSTED = 0.2, 0.5
FOREIGN_CAUTION, FOREIGN_UNTRUSTED = 0.2, 0.75  # of the time that the run leaves to others or idle
LAG_CAUTION_S, LAG_UNTRUSTED_S = 0.005, 0.020
LATENESS_CAUTION_S, LATENESS_UNTRUSTED_S = 0.001, 0.005
LATENESS_SHARE = 0.99
MISSING_UNTRUSTED = 0.001


@dataclass(frozen=True)
class Conservation:
    """One WAN direction's frames over a whole run.

    They left the near edge (`entered`), crossed into the WAN namespace, were taken in by the link, given out, and
    arrived at the far edge. `lost` were lost on purpose, `duplicated` made twice, `dropped` by the link's own queue, as
    real ones are, `overrun` lost for want of room in the emulator; `held` are still under way.
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
        """Frames that nobody accounts for, gone or come from nowhere."""
        gone = self.lost + self.dropped + self.overrun
        return (
            abs(self.entered - self.crossed)
            + abs(self.taken_in + self.duplicated - self.given_out - gone - self.held)
            + abs(self.given_out - self.arrived)
        )


def rate_accuracy(measurements: Sequence[LinkMeasurement]) -> Invariant:
    """Every WAN direction's rate, probed before the run."""
    if not measurements:
        return no_wan("rate_accuracy", f"within {RATE_BOUND:.0%}")
    worst = max(measurements, key=_rate_offence)
    bound = f"within {100 * (RATE_BOUND + worst.rate_noise):.2g}%"
    error = _rate_error(worst)
    sentence = (
        f"Of all WAN links, {worst.name} is furthest from its rate: asked for "
        f"{worst.asked.rate_bps / 1e6:.4g} Mbit/s, measured {worst.rate_bps / 1e6:.4g}."
    )
    if unknown := _too_fast_for_the_probe(worst):
        sentence = (
            f"{worst.name} carried all that the probe could send, {worst.rate_bps / 1e6:.4g} Mbit/s; whether it "
            f"carries {worst.asked.rate_bps / 1e6:.4g} is not known."
        )
    return Invariant(
        "rate_accuracy",
        bound=bound,
        measured=f"{error:+.2%}" if math.isfinite(error) else "nothing came through",
        ok=abs(error) <= RATE_BOUND + worst.rate_noise,
        sentence=sentence,
        severity="caution" if unknown else "untrusted",
    )


def delay_accuracy(measurements: Sequence[LinkMeasurement]) -> Invariant:
    """Every WAN direction's one-way delay on an idle network, probed before the run."""
    if not measurements:
        return no_wan("delay_accuracy", f"within max({DELAY_BOUND:.0%}, {DELAY_BOUND_S * 1e3:g} ms)")
    worst = max(measurements, key=lambda entry: _bad_first(_delay_error_s(entry) / _delay_bound_s(entry)))
    error_s, bound_s = _delay_error_s(worst), _delay_bound_s(worst)
    return Invariant(
        "delay_accuracy",
        bound=f"within max({DELAY_BOUND:.0%}, {DELAY_BOUND_S * 1e3:g} ms)",
        measured=f"{error_s * 1e3:+.3f} ms" if math.isfinite(error_s) else "nothing came through",
        ok=abs(error_s) <= bound_s,
        sentence=f"Of all WAN links, {worst.name} is furthest from its delay: asked for "
        f"{worst.asked.delay_s * 1e3:.4g} ms one way, measured {worst.delay_s * 1e3:.3g}.",
    )


def cpu_headroom(window: MonitorWindow) -> Invariant:
    """Whether the cores had idle time to spare while steps were measured."""
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
        sentence=f"The cores were idle {mean:.0%} of the time on average, and in {full:.0%} of all 100 ms windows "
        f"hardly at all{stolen}.",
    )


def foreign_load(window: MonitorWindow) -> Invariant:
    """How much of what the run leaves of the cores other programs take.

    Their share of all time says little: a tenth is nothing on an idle machine, and a lot on one that is nearly full.
    """
    if not window.idle:
        return _unwatched("foreign_load")
    bound = f"at most {FOREIGN_CAUTION:.0%} of what the run leaves"
    if window.foreign is None:
        words = "This kernel does not tell the run's own work from that of other programs; cpu_headroom sees both."
        return Invariant("foreign_load", bound, "not known", None, words)
    left = window.foreign + sum(window.idle) / len(window.idle)
    taken = window.foreign / left if left else 0.0
    found = (
        f"Other programs took {window.foreign:.0%} of the cores' time, {taken:.0%} of what the run left of it"
    )
    return graded(
        "foreign_load",
        taken,
        FOREIGN_CAUTION,
        FOREIGN_UNTRUSTED,
        bound=bound,
        measured=f"{taken:.0%}",
        sentence=found + ("." if taken <= FOREIGN_CAUTION else ": end them and run again."),
    )


def scheduler_lag(window: MonitorWindow) -> Invariant:
    """How late a process that only wants to wake up does so."""
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
        sentence=f"99 % of wake-ups came within {lag_s * 1e3:.2f} ms of their time, the latest "
        f"{worst_s * 1e3:.1f} ms late.",
    )


def emulator_lateness(
    counts: Mapping[str, Sequence[int]] | None, bounds_s: Sequence[float] = ()
) -> Invariant:
    """How late the link engine released frames; per direction a histogram over `bounds_s` (last entry: the rest).

    `counts` is None for an engine inside the kernel.
    """
    bound = f"99 % within {LATENESS_CAUTION_S * 1e3:g} ms"
    if counts is None:
        return Invariant(
            "emulator_lateness",
            bound,
            "not applicable",
            None,
            "The kernel releases the frames by its own timers; delay_accuracy covers them.",
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
        sentence=f"Of {frames} frames the link engine released 99 % within {text} of their time"
        + (f", at worst on {name}." if len(late) > 1 else "."),
    )


def by_construction(name: str) -> Invariant:
    """One that cannot fail under the virtual clock: nothing in the guest is ever late, whatever the host does."""
    words = {
        "cpu_headroom": "Computing takes no virtual time, so the cores cannot be full.",
        "foreign_load": "Other programs of this machine slow the run down, not its clock.",
        "scheduler_lag": "The clock stands still while anything has work to do, so nothing wakes up late.",
        "emulator_lateness": "The kernel's timers fire at their nanosecond: the clock waits for them.",
        "emulator_stalls": "Whatever holds the link engine up holds the clock up, too.",
    }
    return Invariant(name, "none needed", "cannot fail", None, words[name])


def payload_correct(wrong: int, checked: int, expected: int | None = None) -> Invariant:
    """Every element of every reduction against the exact answer; expected: how many there are, where that is known."""
    sentence = f"{checked} reduced elements were compared with the exact answer, {wrong} were wrong."
    if not checked:
        sentence = "No reduced element was compared with the exact answer."
    elif missed := (expected or checked) - checked:
        sentence += f" By the plan there are {expected}: {missed} were not looked at."
    return Invariant(
        "payload_correct",
        bound="0 wrong",
        measured=f"{wrong} wrong",
        ok=wrong == 0 and checked > 0 and checked == (expected or checked),
        sentence=sentence,
    )


def wan_bytes_as_computed(expected: int, observed: Sequence[int]) -> Invariant:
    """Payload bytes between buildings, counted by the ranks, against the algorithm's formula."""
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
    """Every frame that entered a WAN link or an edge switch left it, or is accounted for.

    `edges` has frames into and out of each building's edge switch: it drops nothing by design, but can for want of
    room in its daemon, and does not count that itself. `left_out` are links that events cut or change.
    """
    if left_out and not links and not edges:
        return no_wan("conservation", "0 frames missing", left_out)
    missing = {link.name: link.missing + link.overrun for link in links}
    missing |= {
        f"the edge switch of {name}": abs(went_in - came_out) for name, (went_in, came_out) in edges.items()
    }
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
            f"{total} are missing here or in the edge switches, most on {worst}"
            if total
            else "every one arrived or is accounted for, and the edge switches lost none"
        )
        + f"; the links' own queues dropped {dropped}."
        + without(left_out),
    )


def _unwatched(name: str) -> Invariant:
    words = "The monitor saw nothing of the measured steps."
    return Invariant(name, "watched", "not watched", ok=False, sentence=words)


def no_wan(name: str, bound: str, left_out: Sequence[str] = ()) -> Invariant:
    """For a topology of one building, or a scenario whose events touch every link."""
    words = "There are no WAN links." if not left_out else "The scenario's events touch every WAN link."
    return Invariant(name, bound, "not applicable", None, words)


def without(left_out: Sequence[str]) -> str:
    """A sentence on what a count leaves out."""
    return f" Left out, as events touch them: {', '.join(left_out)}." if left_out else ""


def _rate_error(entry: LinkMeasurement) -> float:
    return entry.rate_bps / entry.asked.rate_bps - 1


def _too_fast_for_the_probe(entry: LinkMeasurement) -> bool:
    """Whether this rate seems too low only because the probe could not send faster."""
    return not entry.saturated and _rate_error(entry) < -RATE_BOUND - entry.rate_noise


def _rate_offence(entry: LinkMeasurement) -> tuple[bool, float]:
    """For comparison: what is known to be wrong is worse than what is not known."""
    error = _bad_first(_rate_error(entry)) - entry.rate_noise
    return error > RATE_BOUND and not _too_fast_for_the_probe(entry), error


def _delay_error_s(entry: LinkMeasurement) -> float:
    return entry.delay_s - entry.asked.delay_s


def _delay_bound_s(entry: LinkMeasurement) -> float:
    # jitter moves the median of a few packets about: allow for it
    return max(DELAY_BOUND * entry.asked.delay_s, DELAY_BOUND_S) + entry.asked.jitter_s / 2


def _bad_first(value: float) -> float:
    return math.inf if math.isnan(value) else abs(value)


def _histogram_bound(counts: Sequence[int], bounds_s: Sequence[float]) -> float:
    """The smallest bound that LATENESS_SHARE of the counts keep to; infinity when only the last entry's rest does."""
    total, seen = sum(counts), 0
    if not total:
        return 0.0
    for count, bound_s in zip(counts, (*bounds_s, math.inf), strict=True):
        seen += count
        if seen >= LATENESS_SHARE * total:
            return bound_s
    return math.inf
