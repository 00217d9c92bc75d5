"""Whether switches that pause who sends to them did so in time, and whether they can stop each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.measure.fidelity.verdict import Invariant


def lossless(dropped: int, pauses: int, fullest: str, share: float) -> Invariant:
    """Whether pausing switches had room for all that came.

    dropped: frames for which a buffer had none. fullest: the link whose buffer was fullest, and by what share.
    """
    words = f"Switches sent {pauses} pauses, and no buffer overflowed"
    if dropped:
        words = f"Switches sent {pauses} pauses, and buffers overflowed all the same: {dropped} frames were dropped"
    if fullest:
        words += f"; the fullest, of what came by {fullest}, was so to {share:.0%}"
    return Invariant("lossless", "0 frames dropped", f"{dropped} dropped", dropped == 0, f"{words}.")


def no_circle(circle: Sequence[str]) -> Invariant:
    """Whether pauses can wait for each other; circle: the buildings of one, the first one last again."""
    words = "On the paths of least delay no pausing links wait for each other in a circle."
    if circle:
        words = (
            f"Pausing links lie in a circle, {' to '.join(circle)}, and packets go on from each to the next: once "
            "all of their buffers are full, all of them stand for ever."
        )
    return Invariant(
        "no_pause_circle",
        bound="no circle",
        measured="none" if not circle else " to ".join(circle),
        ok=not circle,
        sentence=words,
        severity="caution",
    )
