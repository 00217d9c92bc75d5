"""One direction of a WAN link as plain figures in SI units.

It does not use the pydantic models: the link engine's process needs nothing else of them, and would take ten times as
long to start.
"""

from __future__ import annotations

from dataclasses import dataclass

DIRECTIONS = ("a_to_b", "b_to_a")
PAUSE_FRAME_BYTES = 64  # size of every MAC control frame


@dataclass(frozen=True)
class LossBursts:
    """Bursty loss (Gilbert-Elliott model): a channel that is good or bad. All figures are shares, 0 to 1.

    Before each packet the good channel turns bad with `enter`, the bad one good with `leave`; then the packet is lost
    with `loss` on the bad channel and `loss_between` on the good one.
    """

    enter: float
    leave: float
    loss: float = 1.0
    loss_between: float = 0.0

    @property
    def mean(self) -> float:
        """Long-run share of packets lost."""
        bad = self.enter / (self.enter + self.leave)
        return bad * self.loss + (1 - bad) * self.loss_between

    @property
    def spread(self) -> float:
        """Variance of the number of lost packets, relative to independent losses."""
        return 2 / (self.enter + self.leave)


@dataclass(frozen=True)
class QueueClass:
    """A traffic class with its own queue in front of a link.

    Bandwidth beyond the guarantees goes to the backlogged class with the lowest `priority`; classes of equal priority
    divide it by their shares.

    Attributes:
        name: name of the class.
        dscps: DSCPs of its packets, 0 to 63 each; none: all packets that no other class matches.
        priority: lower is served first.
        share: guaranteed share of the link's rate, 0 to 1.
        limit: highest share of the link's rate; excess packets wait, in a queue as long as the link's.
    """

    name: str
    dscps: tuple[int, ...] = ()
    priority: int = 0
    share: float = 0.0
    limit: float = 1.0


@dataclass(frozen=True)
class Pause:
    """Thresholds at which the switch at a link's far end stops and resumes the sender (IEEE 802.1Qbb XOFF, XON).

    The switch counts packets that came in by the link and are still queued. Above `xoff_bytes` it sends a pause, at
    `xon_bytes` or less a resume. It holds at most `headroom_bytes` more than `xoff_bytes`, whatever its queues' limits.
    """

    xoff_bytes: int
    xon_bytes: int
    headroom_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """Most bytes from the link that the switch can hold."""
        return self.xoff_bytes + self.headroom_bytes


@dataclass(frozen=True)
class Direction:
    """One direction of a WAN link, in the order in which a packet passes it: queue, serialisation, then the fibre.

    Attributes:
        rate_bps: bits of Ethernet frames per second, without preamble and checksum.
        delay_s: propagation delay.
        jitter_s: variation of the delay, which is never negative: the largest deviation if uniform, else the standard
            deviation (normal, pareto).
        loss, duplicate, reorder, corrupt: shares of packets, 0 to 1; reordered ones are not delayed, corrupted ones
            have one flipped bit.
        queue_bytes: size of the queue, unless `queue_packets` is set.
        queue_packets: size of the queue in packets.
        ecn_bytes: queue length at and above which ECN-capable packets are marked.
        jitter_distribution: uniform, normal or pareto.
        jitter_correlation: correlation of the delays of successive packets.
        loss_bursts: bursty loss, in place of `loss`.
        classes: traffic classes, each with its own queue.
        pause: Ethernet pause, with which the switch at the far end stops the sender before it overflows.
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
        """Long-run share of packets lost."""
        return self.loss_bursts.mean if self.loss_bursts else self.loss

    @property
    def loss_spread(self) -> float:
        """Variance of the number of lost packets, relative to independent losses (1)."""
        return self.loss_bursts.spread if self.loss_bursts else 1.0
