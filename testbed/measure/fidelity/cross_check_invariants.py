"""Checks that compare ranks' reports with independent observations. Pure functions.

docs/explanation/fidelity.md explains each bound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.measure.fidelity.verdict import Finding, check

ROUNDING_S = 1e-6
EXACT_S = 1e-4  # under the virtual clock, a launcher learns of a step's end without delay
TICKS_S = 2e-3  # two ticks of the guest's kernel, the resolution of its time stamp of the last received data
LATE_S, LATE_SHARE = 0.05, 0.1  # on the real clock: seconds, or share of a step, whichever is longer
EXTRA_SHARE, EXTRA_BYTES = 0.05, 1 << 16  # headers and the next start's agreement, besides payload
WITHIN_EXACT = f"within {EXACT_S * 1e3:g} ms"
WITHIN_REAL_CLOCK = f"within {LATE_S * 1e3:g} ms, or {LATE_SHARE:.0%} of a step"


class Claim(NamedTuple):
    """Bytes that ranks report, and bytes that another process counted on their path.

    `text` states who reported and who counted, with `{}` in place of each number.
    """

    text: str
    claimed_bytes: int
    carried_bytes: int


@check("no payload missing")
def bytes_witnessed(
    hosts: Sequence[str],
    steps: Iterable[Mapping[str, Any]],
    claims: Iterable[Claim] = (),
    repeats: bool = False,
) -> Finding:
    """Compare the payload that each rank reports as sent with the payload that its receivers got, step by step.

    Args:
        hosts: Host of each rank.
        steps: Each rank's record of each step. `sent_bytes` by peer is counted by the rank, `received_bytes` by peer
            is counted by its kernel on the rank's connections.
        claims: Totals of the whole run, compared with each host's NIC, and totals of a step, compared with WAN link
            counters.
        repeats: Whether received bytes may include repeats and parity, so that only missing bytes count. This is the
            case for datagrams, which receiving ranks count themselves.
    """
    witness = "which" if repeats else "whose kernel"
    records = list(steps)
    received = {
        (entry["step"], int(peer), entry["rank"]): count
        for entry in records
        for peer, count in entry.get("received_bytes", {}).items()
    }
    known = {(entry["step"], entry["rank"]) for entry in records if "received_bytes" in entry}
    compared = payload = 0
    worst: tuple[float, str] = 0.0, ""
    for entry in records:
        for name, count in entry["sent_bytes"].items():
            rank, peer = entry["rank"], int(name)
            if (entry["step"], peer) not in known:
                continue
            came = received.get((entry["step"], rank, peer), 0)
            compared, payload = compared + 1, payload + count
            surplus = 0.0 if repeats else came - (1 + EXTRA_SHARE) * count - EXTRA_BYTES
            off = max(count - came, surplus)
            if off > worst[0]:
                worst = (
                    off,
                    f"In trial {entry['trial']} rank {rank} on {hosts[rank]} reports {count} bytes sent to rank "
                    f"{peer} on {hosts[peer]}, {witness} received {came} from it.",
                )
    for claim in claims:
        if (off := claim.claimed_bytes - claim.carried_bytes) > worst[0]:
            worst = off, claim.text.format(claim.claimed_bytes, claim.carried_bytes)
    if not compared and not worst[1]:
        sentence = "Only the ranks themselves count their bytes: no payload goes through sockets that can be observed."
        return Finding("not known", sentence)
    witnesses = "receivers" if repeats else "receivers' kernels"
    good = f"The {witnesses} received all {payload} bytes of payload that ranks report as sent."
    measured = f"{worst[0]:.0f} bytes off" if worst[1] else "none missing"
    return Finding(measured, worst[1] or good, not worst[1])


@dataclass(frozen=True)
class ComputeTime:
    """One compute or pause operation of a rank in a step: its actual time, and its time in the plan.

    `most_s` includes all slowdowns of the scenario; it is infinite for a rank that the scenario slows by an unknown
    amount. `followed_s` is the time from the operation's start to the start of the rank's first operation that waits
    for it.
    """

    rank: int
    host: str
    trial: int
    name: str
    took_s: float
    asked_s: float
    most_s: float
    followed_s: float = math.inf

    @property
    def off_s(self) -> float:
        """The time by which it was too short (negative) or too long; 0 within rounding."""
        true_s = min(self.took_s, self.followed_s)
        if true_s < self.asked_s - ROUNDING_S:
            return true_s - self.asked_s
        return self.took_s - self.most_s if self.took_s > self.most_s + ROUNDING_S else 0.0


@check("as planned")
def compute_as_asked(found: Sequence[ComputeTime]) -> Finding:
    """Compare the compute times that ranks report with the plan; timed waits reproduce the plan exactly."""
    if not found:
        return Finding("not applicable", "The plan has no compute operation of known duration.")
    worst = max(found, key=lambda entry: abs(entry.off_s))
    total_s = sum(entry.took_s for entry in found)
    if not worst.off_s:
        sentence = (
            f"Ranks computed {len(found)} times, {total_s:.4g} s in total, each time as long as planned."
        )
        return Finding("as planned", sentence, ok=True)
    wrong = sum(bool(entry.off_s) for entry in found)
    sentence = f"In trial {worst.trial} rank {worst.rank} on {worst.host} took {worst.took_s * 1e3:.4g} ms "
    sentence += f"for {worst.name}; the plan asks for {worst.asked_s * 1e3:.4g} ms."
    if worst.followed_s < worst.took_s - ROUNDING_S:
        sentence += f" The operation that waits for it started after {worst.followed_s * 1e3:.4g} ms."
    sentence += _others_text(wrong, found)
    return Finding(f"{worst.off_s * 1e3:+.4g} ms", sentence, ok=False)


def _others_text(count: int, found: Sequence[object]) -> str:
    return f" The same is true of {count - 1} more of {len(found)}." if count > 1 else ""


@dataclass(frozen=True)
class CollectiveStart:
    """A collective that a rank started `late_s` after its plan allowed it."""

    rank: int
    host: str
    trial: int
    name: str
    late_s: float


@check(WITHIN_EXACT)
def begun_at_once(found: Sequence[CollectiveStart], exact: bool) -> Finding:
    """Check that ranks started each collective as soon as its dependencies were complete.

    `exact` is true under the virtual clock, where no rank starts late because it lacks a core.
    """
    if not exact or not found:
        sentence = (
            "With the real clock, a rank without a core starts late; ranks_awake and cpu_headroom cover that."
        )
        sentence = sentence if found else "There are no collectives with a known start time."
        return Finding("not applicable", sentence)
    worst = max(found, key=lambda entry: entry.late_s)
    late = sum(entry.late_s > EXACT_S for entry in found)
    sentence = f"Ranks started all {len(found)} collectives as soon as they could."
    if late:
        sentence = f"In trial {worst.trial} rank {worst.rank} on {worst.host} started {worst.name} "
        sentence += f"{worst.late_s * 1e3:.4g} ms later than it could."
        sentence += _others_text(late, found)
    return Finding(f"{worst.late_s * 1e3:.4g} ms late" if late else "at once", sentence, not late)


@dataclass(frozen=True)
class StepEnd:
    """The end of a step as a rank reports it, and as others observe it, in seconds of CLOCK_MONOTONIC.

    `operations_s` is the end of the rank's last operation. `heard_s` is when the launcher was notified of the end.
    `last_byte_s` is when the kernel received the last data. None means unknown.
    """

    rank: int
    host: str
    trial: int
    step_s: float
    end_s: float
    operations_s: float | None = None
    heard_s: float | None = None
    last_byte_s: float | None = None


class _Doubt(NamedTuple):
    """A reported time that differs from an observation by `off_s`, where up to `allowed_s` is acceptable.

    `sure` is true if the observation itself cannot have been late.
    """

    off_s: float
    allowed_s: float
    entry: StepEnd
    contradiction: str
    sure: bool = True

    @property
    def beyond_s(self) -> float:
        return self.off_s - self.allowed_s


@check(
    f"{WITHIN_EXACT}; by the real clock {WITHIN_REAL_CLOCK}",
    failure="untrusted; caution if the observation may have been late",
)
def step_ends_witnessed(ends: Sequence[StepEnd], exact: bool) -> Finding:
    """Compare each rank's reported end of each step with its operations, its kernel and the launcher's clock.

    `exact` is true under the virtual clock. On the real clock, a busy host delays ranks and launchers themselves: a
    rank without a free core at the end of a step reads its kernel only after the next step's first messages have
    arrived. So only the rank with the earliest observation of each step counts.
    """
    bound = WITHIN_EXACT if exact else WITHIN_REAL_CLOCK
    doubts = list(_doubts(ends, exact))
    if not doubts:
        return Finding("not known", "Only the ranks themselves saw when their steps ended.", bound=bound)
    worst = max(doubts, key=lambda doubt: doubt.beyond_s)
    if worst.beyond_s <= 0:
        sentence = (
            "Steps ended when ranks report, by their last operations, their kernels and the launchers' clock."
        )
        return Finding("as seen", sentence, ok=True, bound=bound)
    entry = worst.entry
    sentence = f"In trial {entry.trial} rank {entry.rank} on {entry.host} reports that its step ended after "
    sentence += f"{entry.step_s * 1e3:.4g} ms, which is {worst.off_s * 1e3:.4g} ms {worst.contradiction}."
    measured = f"{worst.off_s * 1e3:.4g} ms off"
    return Finding(measured, sentence, False, "untrusted" if worst.sure else "caution", bound)


def _doubts(ends: Sequence[StepEnd], exact: bool) -> Iterator[_Doubt]:
    late: dict[tuple[int, str], list[_Doubt]] = defaultdict(list)
    for entry in ends:
        if entry.operations_s is not None:
            off_s = entry.operations_s - entry.end_s
            yield _Doubt(off_s, ROUNDING_S, entry, "before its last operation ended")
        if entry.heard_s is not None:
            yield _Doubt(entry.end_s - entry.heard_s, EXACT_S, entry, "after its launcher was notified")
        for time_s, exact_s, contradiction in (
            (entry.heard_s, EXACT_S, "before its launcher was notified"),
            (entry.last_byte_s, TICKS_S, "before its kernel received the last of its data"),
        ):
            if time_s is not None:
                allowed_s = exact_s if exact else max(LATE_S, LATE_SHARE * entry.step_s)
                doubt = _Doubt(time_s - entry.end_s, allowed_s, entry, contradiction, exact)
                late[entry.trial, contradiction].append(doubt)
    for doubts in late.values():
        yield from doubts if exact else [min(doubts, key=lambda doubt: doubt.off_s)]


@dataclass(frozen=True)
class StepStart:
    """A step's start: as announced, the launcher's time of the announcement, and as each rank reports it.

    `first_s` is when each rank's first operation started.
    """

    trial: int
    announced_s: float
    heard_s: float
    by_rank: Mapping[int, float]
    first_s: Mapping[int, float] = field(default_factory=dict)


@check("as agreed, and announced before", failure="untrusted; caution if announced late by the real clock")
def common_start(hosts: Sequence[str], starts: Sequence[StepStart], exact: bool) -> Finding:
    """Compare each rank's reported start with the agreed start, and the agreed start with the launcher's clock.

    If a step is announced after its start, it was started on another clock. `hosts` is by rank.
    """
    if not starts:
        return Finding("not known", "Only the ranks themselves know when steps were to start.")
    reported = [(entry, rank, start_s) for entry in starts for rank, start_s in entry.by_rank.items()]
    one, rank, start_s = max(reported, key=lambda found: abs(found[2] - found[0].announced_s))
    off_s = abs(start_s - one.announced_s)
    begun = [
        (entry.announced_s - begun_s, who, entry.trial)
        for entry in starts
        for who, begun_s in entry.first_s.items()
    ]
    early_s, who, trial = max(begun, key=lambda own: own[0], default=(0.0, 0, 0))
    late = max(starts, key=lambda entry: entry.heard_s - entry.announced_s)
    late_s = late.heard_s - late.announced_s
    if early_s > ROUNDING_S:
        return Finding(
            f"{early_s * 1e3:.4g} ms before",
            f"In trial {trial} rank {who} on {hosts[who]} began {early_s * 1e3:.4g} ms before the start that all ranks "
            "had agreed on.",
            ok=False,
        )
    if off_s > ROUNDING_S:
        return Finding(
            f"{off_s * 1e3:.4g} ms off",
            f"In trial {one.trial} rank {rank} on {hosts[rank]} reports a start that is {off_s * 1e3:.4g} ms from the "
            "one that all ranks had agreed on.",
            ok=False,
        )
    if late_s > (EXACT_S if exact else LATE_S):
        return Finding(
            f"{late_s * 1e3:.4g} ms late",
            f"Trial {late.trial} was announced {late_s * 1e3:.4g} ms after the start that ranks report.",
            False,
            "untrusted" if exact else "caution",
        )
    sentence = f"All ranks started each of {len(starts)} steps at the time that they had agreed on."
    return Finding("as agreed", sentence, ok=True)
