"""WAN links by direction, and Ethernet pause with its thresholds. The file form (`...Spec`) and the resolved form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from testbed.spec.base_model import Finding, StrictModel, located, look_up
from testbed.spec.link_direction import (
    ETHERNET_HEADER_BYTES,
    LINK_PROPERTIES,
    PAUSE_FRAME_BYTES,
    Direction,
    Form,
    LossBursts,
    Pause,
)
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.units import format_duration, format_fraction, format_rate, format_size
from testbed.spec.value_types import (
    Count,
    CountOrNone,
    DelayOrNone,
    DistributionOrNone,
    DurationOrNone,
    Fraction,
    FractionOrNone,
    Queue,
    QueueOrNone,
    RateOrNone,
    Share,
    SizeOrNone,
)
from testbed.spec.yaml_loader import Location

# Reaction time of switch and sender: the link engine's timers have a resolution of one microsecond.
PAUSE_RESPONSE_S = 2e-6
HYSTERESIS_FRAMES = 2


class PauseSpec(StrictModel):
    """Ethernet pause (IEEE 802.1Qbb with one priority): the switch at the far end of a link stops the sender.

    The switch counts the packets that arrived on the link and are still queued. With pause, its queues have no other
    limit.
    """

    xoff_bytes: Queue = "auto"
    """Queued bytes above which the sender is paused; auto: `xon` plus two frames."""
    xon_bytes: Queue = "auto"
    """Queued bytes at or below which the sender resumes; auto: two frames below `xoff`. If neither is given: enough to
    keep the link busy until more arrives, which is rate times round trip plus three frames.
    """
    headroom_bytes: Queue = "auto"
    """Buffer beyond `xoff` for packets that arrive after a pause is sent; auto, which is also the minimum: rate times
    round trip plus three frames.
    """

    def checks(self) -> Iterator[Finding]:
        """Check that the resume threshold is not above the pause threshold."""
        if self.xon_bytes != "auto" and self.xoff_bytes != "auto" and self.xon_bytes > self.xoff_bytes:
            yield Finding(
                ("xon",), format_size(self.xon_bytes), f"at most xoff ({format_size(self.xoff_bytes)})"
            )

    def findings(self, link: Direction, reverse: Direction, mtu: int) -> Iterator[Finding]:
        """Check that the headroom is enough for packets that arrive after a pause is sent in the reverse direction."""
        needed = turnaround_bytes(link, reverse, mtu)
        if self.headroom_bytes != "auto" and self.headroom_bytes < needed:
            round_trip = format_duration(link.delay_s + reverse.delay_s)
            expected = (
                f"auto, or at least {format_size(needed)}: what arrives at {format_rate(link.rate_bps)} in a round "
                f"trip of {round_trip} after a pause is sent, and three frames"
            )
            yield Finding(("headroom",), format_size(self.headroom_bytes), expected)

    def resolve(self, link: Direction, reverse: Direction, mtu: int, scale: Scale) -> Pause:
        """Return a link's thresholds in bytes. Both directions are emulated ones; frames are never scaled."""
        needed = turnaround_bytes(link, reverse, mtu)
        hysteresis = HYSTERESIS_FRAMES * (mtu + ETHERNET_HEADER_BYTES)
        xoff, xon, headroom = (
            None if size == "auto" else round(scale.emulated_bytes(size))
            for size in (self.xoff_bytes, self.xon_bytes, self.headroom_bytes)
        )
        if xon is None:
            xon = needed if xoff is None else max(0, xoff - hysteresis)
        if xoff is None:
            xoff = xon + hysteresis
        return Pause(xoff, xon, max(needed, headroom or 0))


def turnaround_bytes(link: Direction, reverse: Direction, mtu: int) -> int:
    """Return the most bytes that can arrive after a pause is sent, which also keep the link busy after a resume.

    The sum has three parts: the frame that crosses the threshold; the bytes that arrive in a round trip plus the times
    of a frame in the reverse direction and of the pause frame; and the frame that the sender has just begun.
    """
    frame_bytes = mtu + ETHERNET_HEADER_BYTES
    serialisation_s = (frame_bytes + PAUSE_FRAME_BYTES) * 8 / reverse.rate_bps
    round_trip_s = link.delay_s + reverse.delay_s
    return math.ceil(
        link.rate_bps / 8 * (round_trip_s + serialisation_s + PAUSE_RESPONSE_S) + 2 * frame_bytes
    )


def with_pause(
    link: Direction, reverse: Direction, pause: PauseSpec | None, mtu: int, scale: Scale
) -> Direction:
    """Return a link with the thresholds of its pause, if it has one."""
    return link if pause is None else replace(link, pause=pause.resolve(link, reverse, mtu, scale))


# Real switches have at least this much: smaller buffers would drop ordinary bursts.
MIN_AUTO_QUEUE_PACKETS = 64
MIN_QUEUE_PACKETS = 4


@dataclass(frozen=True)
class WanLink:
    """One link between two buildings; `plane` counts parallel links of the same pair from 0."""

    a: str
    b: str
    plane: int
    a_to_b: Direction
    b_to_a: Direction

    @property
    def name(self) -> str:
        """Name of the link, unique within the topology."""
        return f"{self.a}-{self.b}-{self.plane}"

    @property
    def directions(self) -> tuple[tuple[str, str, Direction], ...]:
        """Both directions as (building it leaves, building it enters, settings)."""
        return (self.a, self.b, self.a_to_b), (self.b, self.a, self.b_to_a)

    @property
    def round_trip_s(self) -> float:
        """Round-trip propagation delay, without queueing."""
        return self.a_to_b.delay_s + self.b_to_a.delay_s


class LossBurstsSpec(StrictModel):
    """Bursty loss (Gilbert-Elliott model): a channel is good or bad, and may change before each packet."""

    enter: Share
    """Probability that the good channel turns bad."""
    leave: Share
    """Probability that the bad channel turns good."""
    loss: Fraction = 1.0
    """Share of packets lost on the bad channel."""
    loss_between: Fraction = 0.0
    """Share of packets lost on the good channel."""


_VALUE_TYPES: Mapping[Form, Any] = {
    "rate": RateOrNone,
    "delay": DelayOrNone,
    "duration": DurationOrNone,
    "distribution": DistributionOrNone,
    "share": FractionOrNone,
    "loss_bursts": LossBurstsSpec | None,
    "queue": QueueOrNone,
    "count": CountOrNone,
    "size": SizeOrNone,
}


def _with_link_properties(with_defaults: bool) -> Callable[[type[StrictModel]], Any]:
    """Return a class decorator that adds a field for each link property, with its default or None."""

    def add(model: type[StrictModel]) -> type[StrictModel]:
        declared: dict[str, Any] = {
            name: (
                _VALUE_TYPES[each.form],
                Field(default=each.default if with_defaults else None, alias=each.key),
            )
            for name, each in LINK_PROPERTIES.items()
        }
        return create_model(
            model.__name__, __base__=model, __doc__=model.__doc__, __module__=__name__, **declared
        )

    return add


class _LinkSettings(StrictModel):
    documented_in = (Direction,)

    if TYPE_CHECKING:  # the link properties

        def __getattr__(self, name: str) -> Any: ...


@_with_link_properties(with_defaults=False)
class DirectionSpec(_LinkSettings):
    """One direction of a WAN link: the settings that differ from the link's own."""


@_with_link_properties(with_defaults=True)
class _SymmetricLinks(_LinkSettings):
    """Parallel links with the same settings in both directions."""

    a: str
    """Building at one end."""
    b: str
    """Building at the other end."""
    planes: Count = 1
    """Number of parallel links, each with these settings."""


class WanSpec(_SymmetricLinks):
    """One or more parallel WAN links between two buildings. `a_to_b` and `b_to_a` override one direction."""

    pause: PauseSpec | None = None
    """Ethernet pause: each end pauses the other before its buffers overflow. Default: no pause."""
    a_to_b: DirectionSpec = DirectionSpec()
    """Settings that differ from a to b."""
    b_to_a: DirectionSpec = DirectionSpec()
    """Settings that differ from b to a."""

    def checks(self) -> Iterator[Finding]:
        """Check that both directions have rate and delay and that no settings contradict each other."""
        for key, what in (("rate", "a rate"), ("delay", "a delay")):
            if look_up(self, key) is None and None in (look_up(self.a_to_b, key), look_up(self.b_to_a, key)):
                yield Finding((key,), "nothing", f"{what}, here or in both a_to_b and b_to_a")
        for direction, own in (("a_to_b", self.a_to_b), ("b_to_a", self.b_to_a)):
            found = list(self._contradictions(direction, own))
            yield from found
            if found:
                return

    def _contradictions(self, direction: str, own: DirectionSpec) -> Iterator[Finding]:
        def where(name: str, key: str) -> Location:
            return (key,) if getattr(own, name) is None else (direction, key)

        delay_s, jitter_s = first_given(own.delay_s, self.delay_s), first_given(own.jitter_s, self.jitter_s)
        if delay_s is not None and jitter_s > delay_s:
            shown = f"{format_duration(jitter_s)} with a delay of {format_duration(delay_s)}"
            yield Finding(where("jitter_s", "jitter"), shown, "jitter of at most the delay")
        loss = first_given(own.loss, self.loss)
        if loss and first_given(own.loss_bursts, self.loss_bursts):
            shown = f"{format_fraction(loss)} with loss_bursts"
            yield Finding(where("loss", "loss"), shown, "only one of the two")
        queue = first_given(own.queue_bytes, self.queue_bytes)
        if queue != "auto" and first_given(own.queue_packets, self.queue_packets):
            shown = f"{format_size(queue)} with queue_packets"
            yield Finding(where("queue_bytes", "queue"), shown, "only one of the two")
        if self.pause is not None:
            for name, declared in LINK_PROPERTIES.items():
                if declared.excludes_pause and first_given(getattr(own, name), getattr(self, name)):
                    expected = "only one of the two: pause must know what is in flight"
                    yield Finding(where(name, declared.key), f"{declared.key} with pause", expected)

    def pause_findings(self, mtu: int) -> Iterator[Finding]:
        """Check that the pauses of both directions take effect in time."""
        if self.pause is not None:
            there, back = (self.direction(own, mtu, UNSCALED) for own in (self.a_to_b, self.b_to_a))
            found = [*self.pause.findings(there, back, mtu), *self.pause.findings(back, there, mtu)]
            yield from located(found[:1], "pause")

    def directions(self, mtu: int, scale: Scale) -> tuple[Direction, Direction]:
        """Return the resolved settings of both directions, with their pauses."""
        there, back = (self.direction(own, mtu, scale) for own in (self.a_to_b, self.b_to_a))
        return with_pause(there, back, self.pause, mtu, scale), with_pause(
            back, there, self.pause, mtu, scale
        )

    def direction(self, own: DirectionSpec, mtu: int, scale: Scale) -> Direction:
        """Return the resolved settings of one direction, without its pause."""
        asked = {name: first_given(getattr(own, name), getattr(self, name)) for name in LINK_PROPERTIES}
        return Direction(**_resolve_settings(asked, None, mtu, scale))


def change_direction(now: Direction, asked: DirectionSpec, mtu: int, scale: Scale) -> Direction:
    """Return a direction with some of its settings changed.

    A setting replaces those it excludes: a new `loss` ends `loss_bursts`, a new `queue` ends `queue_packets`, and the
    reverse.

    Args:
        now: the direction before the change.
        asked: the settings to change.
        mtu: largest IP packet, in bytes.
        scale: scale of the emulation.
    """
    given = {name: value for name in LINK_PROPERTIES if (value := getattr(asked, name)) is not None}
    if "loss" in given or "loss_bursts" in given:
        given = {"loss": 0.0, "loss_bursts": None, **given}
    if "queue_bytes" in given or "queue_packets" in given:
        given = {"queue_packets": None, **given}
    return replace(now, **_resolve_settings(given, now, mtu, scale))


def _resolve_settings(asked: dict[str, Any], now: Direction | None, mtu: int, scale: Scale) -> dict[str, Any]:
    """Return the given settings as fields of a `Direction`; `now`: the direction that has all others."""
    scaled = {"rate": scale.emulated_bps, "delay": scale.emulated_s, "duration": scale.emulated_s}
    final = {
        name: scaled[form](value) if (form := LINK_PROPERTIES[name].form) in scaled else value
        for name, value in asked.items()
    }
    rate_bps, delay_s = (
        final[name] if name in final else getattr(now, name) for name in ("rate_bps", "delay_s")
    )
    if asked.get("queue_packets"):
        final["queue_bytes"] = asked["queue_packets"] * (mtu + ETHERNET_HEADER_BYTES)
    elif "queue_bytes" in asked:
        final["queue_bytes"] = queue_size(asked["queue_bytes"], rate_bps * 2 * delay_s / 8, mtu, scale)
    if asked.get("ecn_bytes"):
        final["ecn_bytes"] = max(round(scale.emulated_bytes(asked["ecn_bytes"])), mtu)
    if bursts := asked.get("loss_bursts"):
        final["loss_bursts"] = LossBursts(**bursts.model_dump())
    return final


def first_given(own: Any, common: Any) -> Any:
    """Return a direction's own setting, or the link's if it has none."""
    return common if own is None else own


def queue_size(queue: int | Literal["auto"], auto_bytes: float, mtu: int, scale: Scale) -> int:
    """Return a queue's size in emulated bytes, at least a few packets: the scale does not shrink packets.

    Args:
        queue: real size in bytes, or "auto".
        auto_bytes: emulated size that "auto" means.
        mtu: largest IP packet, in bytes.
        scale: scale of the emulation.
    """
    if queue == "auto":
        return max(round(auto_bytes), MIN_AUTO_QUEUE_PACKETS * mtu)
    return max(round(scale.emulated_bytes(queue)), MIN_QUEUE_PACKETS * mtu)
