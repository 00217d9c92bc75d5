"""Whether ranks could run all the time, and the network stayed what it was. Pure; bounds:
docs/explanation/fidelity.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.measure.fidelity.verdict import Invariant, graded

STILL_UNTRUSTED = 0.01  # of its step
STILL_CAUTION_REAL_CLOCK, STILL_UNTRUSTED_REAL_CLOCK = 0.05, 0.2
CHANGED, CHANGED_S = 0.02, 0.0002
CHANGED_ROUGHLY, CHANGED_ROUGHLY_S = 0.25, 0.01  # by the real clock, and where TCP sends again


@dataclass(frozen=True)
class Attempt:
    """At a collective alone on the network: what it took, and how many segments were sent again meanwhile."""

    took_s: float
    resent: int


@dataclass(frozen=True)
class BaselineTimes:
    """The collective alone on the network, each time before the first step and, if done again, after the last one.

    order_s: what it may take longer where ranks pay for messages that come at the same moment in another order. path_s:
    what latency and bandwidth of its paths make of it. resent: segments sent again between before and after. remembers:
    whether connections are paced by rates that they remember, losses with them. overflowed: whether queues of the
    topology have dropped packets, which leaves windows smaller than they were.
    """

    before: Sequence[Attempt]
    after: Sequence[Attempt]
    order_s: float = 0.0
    path_s: float = 0.0
    resent: int = 0
    remembers: bool = False
    overflowed: bool = False


@dataclass(frozen=True)
class Stall:
    """A rank did not run, though it would have: from `at_s` after a step's start on, for `least_s` to `most_s`."""

    rank: int
    host: str
    trial: int
    at_s: float
    least_s: float
    most_s: float
    step_s: float


def stalls(
    hosts: Sequence[str],
    steps: Sequence[Mapping[str, Any]],
    pauses: Mapping[str, Sequence[tuple[float, float]]],
) -> list[Stall]:
    """Those of all steps.

    hosts: by rank. steps: each rank's record of each step. pauses: by host the spans in which the scenario itself has
    it stand still, on the same clock.
    """
    found = []
    for step in steps:
        host = hosts[step["rank"]]
        for gap in step.get("stalls", ()):
            since_s = step["start_s"] + gap["at_s"]
            planned = [
                begin < since_s + gap["for_s"] and since_s < end for begin, end in pauses.get(host, ())
            ]
            if not any(planned):
                most_s = gap["for_s"]
                least_s = max(0.0, most_s - step["looks_s"])
                step_s = step["end_s"] - step["start_s"]
                found.append(Stall(step["rank"], host, step["trial"], gap["at_s"], least_s, most_s, step_s))
    return found


def ranks_awake(
    found: Sequence[Stall], noticed_s: float, exact: bool, paused: Sequence[str] = ()
) -> Invariant:
    """Whether every rank could run whenever it had something to do.

    noticed_s: the shortest stall that is sure to be noticed, real or virtual seconds as the steps' are. exact:
    under the virtual clock, where a process is never late by itself. paused: hosts that the scenario has stand still.
    """
    caution, untrusted = (
        (0.0, STILL_UNTRUSTED) if exact else (STILL_CAUTION_REAL_CLOCK, STILL_UNTRUSTED_REAL_CLOCK)
    )
    totals: dict[tuple[int, int], float] = {}
    for entry in found:
        key = entry.rank, entry.trial
        # what it would have slept anyway is no matter where nothing else is late
        still_s = entry.most_s if exact else entry.least_s
        totals[key] = totals.get(key, 0.0) + still_s / entry.step_s
    share = max(totals.values(), default=0.0)
    words = f"Whenever a rank looked round, it had last done so at most {noticed_s * 1e3:.3g} ms before."
    if found:
        worst = max(found, key=lambda entry: entry.most_s / entry.step_s)
        words = f"Rank {worst.rank} on {worst.host} stood still in trial {worst.trial}, {worst.at_s * 1e3:.4g} ms "
        words += f"after its start, for {worst.least_s * 1e3:.4g} to {worst.most_s * 1e3:.4g} ms"
        others = len(found) - 1
        words += f", and ranks did so {others} more times." if others else "."
    if paused:
        words += f" Left out, as the scenario has them stand still: {', '.join(paused)}."
    return graded(
        "ranks_awake",
        share,
        caution,
        untrusted,
        bound="never" if exact else f"at most {caution:.0%} of a step",
        measured=f"{share:.1%} of a step" if found else "never",
        sentence=words,
    )


def network_as_before(lone: BaselineTimes, exact: bool, why_not: str = "") -> Invariant:
    """Whether the collective that was alone on the network before the first step takes the same after the last one.

    exact: under the virtual clock. why_not: why it was not done again, as a sentence.
    """
    before, after = lone.before, lone.after
    quiet = [[attempt.took_s for attempt in series if not attempt.resent] for series in (before, after)]
    early, late = quiet if all(quiet) else [[attempt.took_s for attempt in part] for part in (before, after)]
    early_s, late_s = min(early, default=0.0), min(late, default=0.0)
    tight_s = max(CHANGED * early_s, CHANGED_S, lone.order_s)
    # slower than its paths: TCP's windows hold it back, and what they are then goes by what has been lost since
    held_back = lone.path_s > 0 and early_s > lone.path_s + tight_s
    # what TCP sends again, and when, goes by what it remembers of the traffic before
    smaller = held_back or lone.remembers or lone.overflowed
    steady = exact and all(quiet) and not (smaller and lone.resent)
    share, absolute_s = (CHANGED, CHANGED_S) if steady else (CHANGED_ROUGHLY, CHANGED_ROUGHLY_S)
    absolute_s = max(absolute_s, lone.order_s)
    name, bound = "network_as_before", f"within {share:.0%}, or {absolute_s * 1e3:.3g} ms"
    if not before or not after:
        return Invariant(name, bound, "not applicable", None, why_not or "There is one rank only.")
    opened = held_back and abs(late_s - lone.path_s) <= tight_s
    same = abs(late_s - early_s) <= max(share * early_s, absolute_s) or opened
    words = f"The ring all-reduce alone on the network took {early_s * 1e3:.4g} ms before the first step, "
    words += f"and {late_s * 1e3:.4g} ms after the last one"
    words += "" if all(quiet) else ", with segments that were lost and sent again"
    words += ", as its paths have it: TCP's windows were not open yet" if opened and steady else ""
    return Invariant(
        name,
        bound=bound,
        measured=f"{late_s / early_s - 1:+.1%}",
        ok=same,
        sentence=words + ("." if same else ": something has changed meanwhile."),
        severity="untrusted" if steady else "caution",
    )
