"""Checks what ranks report against independent observations. Pure; bounds: docs/explanation/fidelity.md."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from testbed.measure.fidelity.verdict import Invariant, Status

ROUNDING_S = 1e-6
EXACT_S = 1e-4  # under the virtual clock a launcher hears of a step's end when it ends
TICKS_S = 2e-3  # two of the guest's kernel, by whose ticks it knows when the last data came
LATE_S, LATE_SHARE = 0.05, 0.1  # by the real clock: of a step, or seconds, whichever is longer
EXTRA_SHARE, EXTRA_BYTES = (
    0.05,
    1 << 16,
)  # headers and agreeing on the next start, beside the messages' payload


@dataclass(frozen=True)
class CardClaim:
    """What a rank says that it sent or received in all measured steps, and what its host's card carried, in bytes.

    direction: "sent" or "received".
    """

    host: str
    direction: str
    claimed_bytes: int
    carried_bytes: int


@dataclass(frozen=True)
class LinkClaim:
    """What ranks of a building say that they sent to others in a step, and what links from there carried, in bytes."""

    building: str
    trial: int
    claimed_bytes: int
    carried_bytes: int


def bytes_witnessed(
    hosts: Sequence[str],
    steps: Iterable[Mapping[str, Any]],
    cards: Iterable[CardClaim] = (),
    links: Iterable[LinkClaim] = (),
    repeats: bool = False,
) -> Invariant:
    """Hold the payload that each rank says it sent against what its receiver took in, step by step.

    Args:
        hosts: By rank.
        steps: Each rank's record of each step: `sent_bytes` by peer is what the rank counted, `received_bytes` by peer
            what came over the rank's connections, by its kernel.
        cards: Whole-run totals of each host's card, which another process read.
        links: WAN links' counters at the edges of each step, which another process read, too.
        repeats: Whether what came may hold repeats and parity, so that only missing bytes count: as with datagrams,
            which receiving ranks count themselves.
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
                words = (
                    f"In trial {entry['trial']} rank {rank} on {hosts[rank]} says that it sent {count} bytes "
                )
                words += f"to rank {peer} on {hosts[peer]}, {witness} took in {came} from it."
                worst = off, words
    for claim in cards:
        off = claim.claimed_bytes - claim.carried_bytes
        if off > worst[0]:
            words = (
                f"The rank on {claim.host} says that it {claim.direction} {claim.claimed_bytes} bytes in the "
            )
            words += (
                f"measured steps; in the whole run its host's card {claim.direction} {claim.carried_bytes}."
            )
            worst = off, words
    for crossed in links:
        off = crossed.claimed_bytes - crossed.carried_bytes
        if off > worst[0]:
            words = f"In trial {crossed.trial} ranks in {crossed.building} say that they sent {crossed.claimed_bytes} "
            words += f"bytes to other buildings; the links from there carried {crossed.carried_bytes}."
            worst = off, words
    name, bound = "bytes_witnessed", "no payload missing"
    if not compared and not worst[1]:
        words = "Nothing but the ranks counts the bytes of their messages: no payload goes by sockets that can be seen."
        return Invariant(name, bound, "not known", None, words)
    witnesses = "receivers" if repeats else "kernels of the receivers"
    good = f"The {witnesses} took in all {payload} bytes of payload that ranks say they sent."
    measured = f"{worst[0]:.0f} bytes off" if worst[1] else "none missing"
    return Invariant(name, bound, measured, not worst[1], worst[1] or good)


@dataclass(frozen=True)
class Computed:
    """One computing or pausing of a rank in a step: what it took, and what the plan asks for.

    most_s: with all that the scenario slows it down by; infinity where it is slowed on purpose. followed_s: from its
    begin to that of the first of the rank's operations that wait for it.
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
        """By how much it was too short (negative) or too long; 0 for rounding."""
        true_s = min(self.took_s, self.followed_s)
        if true_s < self.asked_s - ROUNDING_S:
            return true_s - self.asked_s
        return self.took_s - self.most_s if self.took_s > self.most_s + ROUNDING_S else 0.0


def compute_as_asked(found: Sequence[Computed]) -> Invariant:
    """Hold what ranks say they computed against the plan; computing is timed waiting, so it is met exactly."""
    name, bound = "compute_as_asked", "as planned"
    if not found:
        words = "The plan has no computing whose duration is known beforehand."
        return Invariant(name, bound, "not applicable", None, words)
    worst = max(found, key=lambda entry: abs(entry.off_s))
    total_s = sum(entry.took_s for entry in found)
    if not worst.off_s:
        words = f"Ranks computed {len(found)} times, {total_s:.4g} s in all, each as long as the plan has it."
        return Invariant(name, bound, "as planned", ok=True, sentence=words)
    wrong = sum(bool(entry.off_s) for entry in found)
    words = f"In trial {worst.trial} rank {worst.rank} on {worst.host} took {worst.took_s * 1e3:.4g} ms "
    words += f"for {worst.name}; the plan asks for {worst.asked_s * 1e3:.4g} ms."
    if worst.followed_s < worst.took_s - ROUNDING_S:
        words += f" What waits for it began after {worst.followed_s * 1e3:.4g} ms."
    words += f" So it is with {wrong - 1} more of {len(found)}." if wrong > 1 else ""
    return Invariant(name, bound, f"{worst.off_s * 1e3:+.4g} ms", ok=False, sentence=words)


@dataclass(frozen=True)
class Begun:
    """A collective that a rank began `late_s` after the moment at which its plan let it."""

    rank: int
    host: str
    trial: int
    name: str
    late_s: float


def begun_at_once(found: Sequence[Begun], exact: bool) -> Invariant:
    """Whether ranks began each collective as soon as what it waits for was over.

    exact: under the virtual clock, where nobody begins late for want of a core.
    """
    name, bound = "begun_at_once", f"within {EXACT_S * 1e3:g} ms"
    if not exact or not found:
        words = "By the real clock whoever lacks a core begins late; ranks_awake and cpu_headroom see that."
        words = words if found else "There are no collectives whose begin is known."
        return Invariant(name, bound, "not applicable", None, words)
    worst = max(found, key=lambda entry: entry.late_s)
    late = sum(entry.late_s > EXACT_S for entry in found)
    words = f"All {len(found)} collectives of ranks were begun as soon as they could be."
    if late:
        words = f"In trial {worst.trial} rank {worst.rank} on {worst.host} began {worst.name} "
        words += f"{worst.late_s * 1e3:.4g} ms after it could."
        words += f" So it was with {late - 1} more of {len(found)}." if late > 1 else ""
    return Invariant(name, bound, f"{worst.late_s * 1e3:.4g} ms late" if late else "at once", not late, words)


@dataclass(frozen=True)
class StepEnd:
    """The end of a step as a rank reports it, and as others saw it; seconds of CLOCK_MONOTONIC.

    operations_s: the end of the rank's last operation. heard_s: when the launcher heard that the step was over.
    last_byte_s: when, by the kernel, the last data came in. None: not known.
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
    """A reported time that another witness contradicts by `off_s`, of which `allowed_s` is nobody's fault.

    sure: the witness cannot have been late itself.
    """

    off_s: float
    allowed_s: float
    entry: StepEnd
    words: str
    sure: bool = True

    @property
    def beyond_s(self) -> float:
        return self.off_s - self.allowed_s


def step_ends_witnessed(ends: Sequence[StepEnd], exact: bool) -> Invariant:
    """Hold each rank's reported end of each step against its operations, its kernel and the launcher's clock.

    exact: under the virtual clock. By the real one ranks and launchers are late themselves when the machine is busy: a
    rank that lacks a core at the end of a step looks at its kernel when the next step's first messages have come. So
    of each step only the rank counts of which a witness is soonest.
    """
    name = "step_ends_witnessed"
    bound = f"within {EXACT_S * 1e3:g} ms"
    if not exact:
        bound = f"within {LATE_S * 1e3:g} ms, or {LATE_SHARE:.0%} of a step"
    doubts = list(_doubts(ends, exact))
    if not doubts:
        return Invariant(name, bound, "not known", None, "Nobody but the ranks saw when their steps ended.")
    worst = max(doubts, key=lambda doubt: doubt.beyond_s)
    if worst.beyond_s <= 0:
        words = (
            "Steps ended when ranks say so: by their last operations, their kernels and the launchers' clock."
        )
        return Invariant(name, bound, "as seen", ok=True, sentence=words)
    entry = worst.entry
    words = f"In trial {entry.trial} rank {entry.rank} on {entry.host} says that its step was over after "
    words += f"{entry.step_s * 1e3:.4g} ms, which is {worst.off_s * 1e3:.4g} ms {worst.words}."
    severity: Status = "untrusted" if worst.sure else "caution"
    return Invariant(name, bound, f"{worst.off_s * 1e3:.4g} ms off", False, words, severity)


def _doubts(ends: Sequence[StepEnd], exact: bool) -> Iterator[_Doubt]:
    late: dict[tuple[int, str], list[_Doubt]] = defaultdict(list)
    for entry in ends:
        if entry.operations_s is not None:
            off_s = entry.operations_s - entry.end_s
            yield _Doubt(off_s, ROUNDING_S, entry, "before its last operation ended")
        if entry.heard_s is not None:
            yield _Doubt(entry.end_s - entry.heard_s, EXACT_S, entry, "after its launcher heard so")
        for time_s, exact_s, words in (
            (entry.heard_s, EXACT_S, "before its launcher heard so"),
            (entry.last_byte_s, TICKS_S, "before its kernel took in the last of its data"),
        ):
            if time_s is not None:
                allowed_s = exact_s if exact else _late_s(entry.step_s)
                late[entry.trial, words].append(_Doubt(time_s - entry.end_s, allowed_s, entry, words, exact))
    for doubts in late.values():
        yield from doubts if exact else [min(doubts, key=lambda doubt: doubt.off_s)]


def _late_s(step_s: float) -> float:
    return max(LATE_S, LATE_SHARE * step_s)


@dataclass(frozen=True)
class StepStart:
    """The start of a step: as announced beforehand, when the launcher heard of that, and as each rank reports it.

    first_s: when each rank's first operation began.
    """

    trial: int
    announced_s: float
    heard_s: float
    by_rank: Mapping[int, float]
    first_s: Mapping[int, float] = field(default_factory=dict)


def common_start(hosts: Sequence[str], starts: Sequence[StepStart], exact: bool) -> Invariant:
    """Hold the start that each rank reports against the one that all agreed on, and that against the launcher's clock.

    A step that is announced after it has begun was begun by another clock. hosts: by rank.
    """
    allowed_s = EXACT_S if exact else LATE_S
    name, bound = "common_start", "as agreed, and announced before"
    if not starts:
        return Invariant(
            name, bound, "not known", None, "Nobody but the ranks knows when steps were to begin."
        )
    reported = [(entry, rank, start_s) for entry in starts for rank, start_s in entry.by_rank.items()]
    one, rank, start_s = max(reported, key=lambda found: abs(found[2] - found[0].announced_s))
    off_s = abs(start_s - one.announced_s)
    early = [
        (entry.announced_s - begun_s, who, entry)
        for entry in starts
        for who, begun_s in entry.first_s.items()
    ]
    if early and (found := max(early, key=lambda one: one[0]))[0] > ROUNDING_S:
        words = f"In trial {found[2].trial} rank {found[1]} on {hosts[found[1]]} began {found[0] * 1e3:.4g} ms before "
        words += "the start that all ranks agreed on."
        return Invariant(name, bound, f"{found[0] * 1e3:.4g} ms before", ok=False, sentence=words)
    late = max(starts, key=lambda entry: entry.heard_s - entry.announced_s)
    late_s = late.heard_s - late.announced_s
    if off_s > ROUNDING_S:
        words = (
            f"In trial {one.trial} rank {rank} on {hosts[rank]} reports a start that is {off_s * 1e3:.4g} ms "
        )
        words += "from the one that all ranks agreed on."
        return Invariant(name, bound, f"{off_s * 1e3:.4g} ms off", ok=False, sentence=words)
    if late_s > allowed_s:
        words = f"Trial {late.trial} was announced {late_s * 1e3:.4g} ms after the start that ranks report."
        severity: Status = "untrusted" if exact else "caution"
        return Invariant(name, bound, f"{late_s * 1e3:.4g} ms late", False, words, severity)
    words = f"All ranks began each of {len(starts)} steps at the moment that they had agreed on before."
    return Invariant(name, bound, "as agreed", ok=True, sentence=words)
