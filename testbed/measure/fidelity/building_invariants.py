"""Whether what moves inside the buildings adds up. Pure; bounds: docs/explanation/fidelity.md."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.measure.fidelity.invariants import MISSING_UNTRUSTED, Conservation, without
from testbed.measure.fidelity.packet_balance import PacketBalance
from testbed.measure.fidelity.verdict import Invariant, graded

NAMED = 3  # places of many
_NAME, _BOUND = "conservation_in_buildings", "0 frames missing"


def conservation_in_buildings(
    balances: Sequence[PacketBalance],
    timed: Sequence[Conservation] = (),
    left_out: Sequence[str] = (),
    corrupting: bool = False,
) -> Invariant:
    """Every frame that entered a cable, a switch or a host left it, or a queue of the topology's dropped it.

    timed: cables that a link engine carries. left_out: buildings in which events take a switch down, and hosts whose
    cards they change, with the switches that these are plugged into. corrupting: links change bits on purpose, those
    of addresses among them.
    """
    if corrupting:
        words = "Links corrupt frames on purpose: one whose addresses were hit goes nowhere, by design."
        return Invariant(_NAME, _BOUND, "not applicable", None, words)
    if not balances:
        words = "The scenario's events take switches of every building down."
        return Invariant(_NAME, _BOUND, "not applicable", None, words)
    missing = {_named(balance): balance.missing for balance in balances}
    missing |= {f"the cable {cable.name}": cable.missing + cable.overrun for cable in timed}
    total = sum(missing.values())
    worst = sorted((name for name in missing if missing[name]), key=missing.__getitem__, reverse=True)
    frames = sum(balance.went_in for balance in balances if balance.name.startswith("switch "))
    full = max(balances, key=lambda balance: balance.dropped)
    dropped = sum(balance.dropped for balance in balances) + sum(cable.dropped for cable in timed)
    words = "every one came out again, and all that came to hosts reached their sockets"
    if worst:
        words = f"{total} are missing here or at hosts, or came from nowhere: "
        words += ", ".join(f"{missing[name]} at {name}" for name in worst[:NAMED])
        words += f" and {len(worst) - NAMED} other places" if len(worst) > NAMED else ""
    queues = f"the queues of cards and switch ports dropped {dropped}"
    if full.dropped:
        queues += f", most at {full.name}"
    return graded(
        _NAME,
        total,
        0,
        MISSING_UNTRUSTED * frames,
        bound=_BOUND,
        measured=f"{total} missing",
        sentence=f"Of {frames} frames that entered switches inside buildings {words}; {queues}."
        + without(left_out),
    )


def _named(balance: PacketBalance) -> str:
    """With the interface that dropped frames though nobody asked it to."""
    return (
        f"{balance.name} (dropped by a queueing discipline on {balance.culprit})"
        if balance.culprit
        else balance.name
    )
