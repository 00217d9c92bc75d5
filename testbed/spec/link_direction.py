"""One direction of a WAN link as plain figures in SI units, and the declaration of every link property.

It does not use pydantic: the link engine's process needs only these classes, and with pydantic it would take ten times
as long to start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal

from testbed.spec.units import without_unit

DIRECTIONS = ("a_to_b", "b_to_a")
ETHERNET_HEADER_BYTES = 14
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

    The switch counts packets that arrived on the link and are still queued. Above `xoff_bytes` it pauses the sender,
    and at `xon_bytes` or less it resumes it. It queues at most `headroom_bytes` more than `xoff_bytes`, whatever its
    queues' limits.
    """

    xoff_bytes: int
    xon_bytes: int
    headroom_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """Maximum number of bytes from the link that the switch queues."""
        return self.xoff_bytes + self.headroom_bytes


Form = Literal["rate", "delay", "duration", "distribution", "share", "loss_bursts", "queue", "count", "size"]
"""Form of a property's value. It determines how files write it, how the scale changes it, and how exactly the kernel
stores it.
"""


@dataclass(frozen=True)
class PacketFault:
    """A random fault of the share of packets that a property gives; netem's option has the property's name.

    Attributes:
        noun: name of the fault in messages.
        netem_attribute: number of netem's attribute with probability and correlation (TCA_NETEM_...); None for a field
            of struct tc_netem_qopt.
        arrivals: number of additional packets (fewer if negative) that reach a program per affected packet.
        misdirects: whether the fault may change a frame's address, so that no host accepts it.
    """

    noun: str
    netem_attribute: int | None = None
    arrivals: int = 0
    misdirects: bool = False


@dataclass(frozen=True)
class LinkProperty:
    """The declaration of a link property, a field of `Direction`, whose docstring is its description.

    Everything else follows from it: the keys of topology files and their schema and reference page, `testbed link set`,
    netem's options, the comparison with the kernel's settings, and the tolerances of probes and invariants.

    Attributes:
        form: form of its value.
        key: key in topology files; default: the field's name without its unit.
        default: value of a link whose file does not have the key, as files write it; an optional field's own default.
        fault: the fault, for a property that is the share of packets with it.
        excludes_pause: whether a link with this property cannot have pause, which must know how much is in flight.
    """

    form: Form
    key: str = ""
    default: float | str | None = None
    fault: PacketFault | None = None
    excludes_pause: bool = False


def _declared(form: Form, **more: Any) -> dict[str, LinkProperty]:
    """Return the metadata of a field that is a link property."""
    return {"property": LinkProperty(form, **more)}


@dataclass(frozen=True)
class Direction:
    """One direction of a WAN link, with its properties as declared here, in SI units.

    A packet passes queue, serialisation and then the fibre. The rate counts bits of Ethernet frames, without preamble
    and checksum. The delay is never negative, whatever its jitter.
    """

    rate_bps: float = field(metadata=_declared("rate"))
    """Rate in each direction; optional if both directions have their own."""
    delay_s: float = field(metadata=_declared("delay"))
    """Propagation delay, one way, or the length of the fibre; optional if both directions have their own."""
    jitter_s: float = field(metadata=_declared("duration", default=0.0, excludes_pause=True))
    """Variation of the delay, at most as large as the delay: the largest deviation if uniform, else the standard
    deviation.
    """
    jitter_distribution: str = field(default="uniform", kw_only=True, metadata=_declared("distribution"))
    """How the delay varies: uniform, normal or pareto (a long tail)."""
    jitter_correlation: float = field(default=0.0, kw_only=True, metadata=_declared("share"))
    """Correlation of the delays of successive packets."""
    loss: float = field(metadata=_declared("share", default=0.0))
    """Share of packets lost independently at random."""
    loss_bursts: LossBursts | None = field(default=None, kw_only=True, metadata=_declared("loss_bursts"))
    """Bursty loss, in place of `loss`."""
    duplicate: float = field(
        default=0.0,
        kw_only=True,
        metadata=_declared("share", fault=PacketFault("duplication", arrivals=1), excludes_pause=True),
    )
    """Share of packets that arrive twice."""
    reorder: float = field(
        default=0.0,
        kw_only=True,
        metadata=_declared("share", fault=PacketFault("reordering", netem_attribute=3), excludes_pause=True),
    )
    """Share of packets sent without delay, so that they overtake others."""
    corrupt: float = field(
        default=0.0,
        kw_only=True,
        metadata=_declared(
            "share", fault=PacketFault("corruption", netem_attribute=4, arrivals=-1, misdirects=True)
        ),
    )
    """Share of packets with a flipped bit."""
    queue_bytes: int = field(metadata=_declared("queue", default="auto"))
    """Buffer in front of the link; auto: rate x 2 x delay, at least 64 packets."""
    queue_packets: int | None = field(default=None, kw_only=True, metadata=_declared("count"))
    """Buffer in front of the link, in packets, in place of `queue`."""
    ecn_bytes: int | None = field(default=None, kw_only=True, metadata=_declared("size", key="ecn_threshold"))
    """Queue length at and above which ECN-capable packets are marked. Default: never."""
    classes: tuple[QueueClass, ...] = field(default=(), kw_only=True)
    """Traffic classes, each with its own queue."""
    pause: Pause | None = field(default=None, kw_only=True)
    """Ethernet pause, with which the switch at the far end stops the sender before it overflows."""

    @property
    def mean_loss(self) -> float:
        """Long-run share of packets lost."""
        return self.loss_bursts.mean if self.loss_bursts else self.loss

    @property
    def loss_spread(self) -> float:
        """Variance of the number of lost packets, relative to independent losses (1)."""
        return self.loss_bursts.spread if self.loss_bursts else 1.0

    @property
    def faults(self) -> dict[str, float]:
        """Share of packets with each fault that the link has, by the property's name."""
        return {name: share for name in PACKET_FAULTS if (share := getattr(self, name))}

    @property
    def is_random(self) -> bool:
        """Whether the link treats packets randomly, other than by losing them."""
        return bool(self.jitter_s or self.faults)


def _properties() -> Iterator[tuple[str, LinkProperty]]:
    for each in fields(Direction):
        if declared := each.metadata.get("property"):
            default = declared.default if each.default is MISSING else each.default
            yield each.name, replace(declared, key=declared.key or without_unit(each.name), default=default)


LINK_PROPERTIES: Mapping[str, LinkProperty] = dict(_properties())
"""The properties in the order of files, by the name of the field."""
PACKET_FAULTS: Mapping[str, PacketFault] = {
    name: declared.fault for name, declared in LINK_PROPERTIES.items() if declared.fault is not None
}
