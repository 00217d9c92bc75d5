"""What one direction of a WAN link is: plain figures, final and in SI units.

Apart from the files' models: the link engine's process needs nothing else of them, and would take ten times as long to
start.
"""

from __future__ import annotations

from dataclasses import dataclass

DIRECTIONS = ("a_to_b", "b_to_a")
PAUSE_FRAME_BYTES = 64  # as of every MAC control frame


@dataclass(frozen=True)
class LossBursts:
    """Loss in bursts, after Gilbert and Elliott: a channel that is good or bad. All are shares, 0 to 1.

    Before each packet the good channel turns bad with `enter`, the bad one good with `leave`; then the packet is lost
    with `loss` on the bad channel and `loss_between` on the good one.
    """

    enter: float
    leave: float
    loss: float = 1.0
    loss_between: float = 0.0

    @property
    def mean(self) -> float:
        """Share of packets lost in the long run."""
        bad = self.enter / (self.enter + self.leave)
        return bad * self.loss + (1 - bad) * self.loss_between

    @property
    def spread(self) -> float:
        """By how much the variance of the number of lost packets is wider than if each were lost by itself."""
        return 2 / (self.enter + self.leave)


@dataclass(frozen=True)
class QueueClass:
    """Packets that have a queue of their own in front of a link, known by their DSCP.

    dscps: 0 to 63 each; none: whatever no other class names. share: guaranteed part of the link's rate, 0 to 1. What
    nobody's guarantee takes goes to the class of the least `priority` that has packets, among equal ones by their
    shares. limit: most of the rate that the class may have; more waits, in a queue as long as the link's.
    """

    name: str
    dscps: tuple[int, ...] = ()
    priority: int = 0
    share: float = 0.0
    limit: float = 1.0


@dataclass(frozen=True)
class Pause:
    """When the switch at the far end of a link stops who sends there, and lets it go on (IEEE 802.1Qbb's XOFF and XON).

    It counts what came by the link and still waits in its queues: above `xoff_bytes` it sends a pause, at `xon_bytes`
    or less again a resume. `headroom_bytes` more than `xoff_bytes` is all that it holds, whatever its queues' limits.
    """

    xoff_bytes: int
    xon_bytes: int
    headroom_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """All that the switch holds of what came by the link."""
        return self.xoff_bytes + self.headroom_bytes


@dataclass(frozen=True)
class Direction:
    """One direction of a WAN link, in the order in which a packet meets it: queue, serialisation, then the fibre.

    `rate_bps` counts bits of Ethernet frames without preamble and checksum. The queue in front holds `queue_bytes`, or
    `queue_packets` where that is given, and marks ECN-capable packets that meet `ecn_bytes` or more. The fibre takes
    `delay_s`, give or take jitter of the size `jitter_s` (uniform: largest deviation; normal and pareto: standard
    deviation), never less than nothing; `jitter_correlation` is that of successive packets. `loss`, `duplicate`,
    `reorder` (leaves without delay) and `corrupt` (one bit is flipped) are shares of packets, 0 to 1. Where there are
    `classes`, each has a queue of its own. With `pause` the switch at the far end stops the sender before it overflows.
    """

    rate_bps: float
    delay_s: float
    jitter_s: float
    loss: float
    queue_bytes: int
    queue_packets: int | None = None
    ecn_bytes: int | None = None
    jitter_distribution: str = "uniform"
    jitter_correlation: float = 0.0
    loss_bursts: LossBursts | None = None
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    classes: tuple[QueueClass, ...] = ()
    pause: Pause | None = None

    @property
    def mean_loss(self) -> float:
        """Share of packets lost in the long run."""
        return self.loss_bursts.mean if self.loss_bursts else self.loss

    @property
    def loss_spread(self) -> float:
        """As `LossBursts.spread`; 1 where each packet is lost by itself."""
        return self.loss_bursts.spread if self.loss_bursts else 1.0
