"""The interface of link engines, and the check of requested settings against those in force.

A WAN link is four interfaces in a row. At each end the edge switch's port; between them two interfaces in the WAN
namespace, where a link engine carries frames from one to the other. All that is asked of a link is the engine's
business: rate and queue, delay, loss and the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from testbed.net.errors import SettingMismatch
from testbed.spec.link_direction import Direction, LossBursts, Pause, QueueClass

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class LinkWire:
    """One WAN link as an engine sees it.

    `inner_a` and `inner_b` are its interfaces in the WAN namespace, `outer_a` and `outer_b` their peers: the ports of
    the edge switches, or of what else `node_a` and `node_b` name (None: the root namespace). `cut_through_a` and
    `cut_through_b`: the networks, frames to which reach that end when they begin, not when they are whole; or None.
    `switch_a` and `switch_b`: the switches that it leads to, which may pause who sends there; None for hosts.
    """

    name: str
    inner_a: str
    inner_b: str
    outer_a: str
    outer_b: str
    a_to_b: Direction
    b_to_a: Direction
    node_a: str | None = None
    node_b: str | None = None
    cut_through_a: str | None = None
    cut_through_b: str | None = None
    switch_a: str | None = None
    switch_b: str | None = None


def direction_to_json(direction: Direction) -> dict[str, Any]:
    """As plain data."""
    return asdict(direction)


def direction_from_json(data: Mapping[str, Any]) -> Direction:
    """What `direction_to_json` gave."""
    bursts = data.get("loss_bursts")
    pause = data.get("pause")
    parts = {
        "loss_bursts": LossBursts(**bursts) if bursts else None,
        "classes": classes_from_json(data.get("classes", ())),
        "pause": Pause(**pause) if pause else None,
    }
    return Direction(**{**data, **parts})


def classes_from_json(data: Iterable[Mapping[str, Any]]) -> tuple[QueueClass, ...]:
    """Queue classes from what dataclasses.asdict gave of each, after a way through JSON."""
    return tuple(QueueClass(**{**entry, "dscps": tuple(entry["dscps"])}) for entry in data)


def wire_to_json(wire: LinkWire) -> dict[str, Any]:
    """As plain data."""
    return asdict(wire)


def wire_from_json(data: Mapping[str, Any]) -> LinkWire:
    """What `wire_to_json` gave."""
    directions = {direction: direction_from_json(data[direction]) for direction in ("a_to_b", "b_to_a")}
    return LinkWire(**{**data, **directions})


def link_interfaces(wires: Iterable[LinkWire], link: str) -> tuple[str, str]:
    """The interfaces in the WAN namespace between which frames of this link are carried. KeyError if there is none."""
    inner = {wire.name: (wire.inner_a, wire.inner_b) for wire in wires}
    return inner[link]


@dataclass(frozen=True)
class DirectionStats:
    """One direction's counters since the engine started, in packets unless they say bytes.

    What came in, what went out, what was lost at random (`lost`) or because the link was cut (`cut`), dropped by the
    full queue (`dropped`), lost for want of room or time elsewhere (`overrun`), made twice (`duplicated`), and what is
    still under way (`held`): in + duplicated = out + lost + cut + dropped + overrun + held. `crossed_packets` came into
    the WAN namespace, `sent_bytes` are past the queue. `queue_bytes` wait in it now, `queue_peak_bytes` did at most;
    `queue_counts[i]` counts arrivals that found less than (i + 1) / len(queue_counts) of the queue's limit taken.
    `lateness_counts[i]` counts packets released less than `lateness_bounds_s[i]` late, the last entry the rest. The
    switch at the far end has sent `pauses`, for which the sender stood `paused_s`, and held at most `buffer_peak_bytes`
    of what came; `buffer_drops` it dropped for want of room. None or empty is what an engine cannot tell.
    """

    in_packets: int
    in_bytes: int
    crossed_packets: int
    sent_bytes: int
    out_packets: int
    out_bytes: int
    lost: int
    dropped: int
    overrun: int
    held: int
    marked: int
    duplicated: int
    reordered: int | None = None
    corrupted: int | None = None
    cut: int = 0
    queue_bytes: int = 0
    queue_peak_bytes: int | None = None
    queue_counts: tuple[int, ...] = ()
    lateness_bounds_s: tuple[float, ...] = ()
    lateness_counts: tuple[int, ...] = ()
    lateness_max_s: float | None = None
    pauses: int = 0
    paused_s: float = 0.0
    buffer_peak_bytes: int = 0
    buffer_drops: int = 0


@dataclass(frozen=True)
class EngineStats:
    """The counters of all links at one moment (CLOCK_MONOTONIC); keys are (link name, "a_to_b" or "b_to_a")."""

    time_s: float
    directions: dict[tuple[str, str], DirectionStats] = field(default_factory=dict)


class LinkEngine(Protocol):
    """Carries frames across the WAN links of one fabric."""

    name: str

    def start(self) -> None:
        """Begin to carry frames; every setting has been read back when this returns. Raises LinkError."""

    def settings(self) -> dict[tuple[str, str], Direction]:
        """What each direction is set to, read back from where it is in force."""

    def change(self, asked: Mapping[tuple[str, str], Direction]) -> None:
        """Set directions anew, in place, and read them back: frames on their way keep their times. Raises LinkError."""

    def compensate(
        self,
        excess_s: Mapping[tuple[str, str], float],
        ends: Mapping[tuple[str, str], Collection[str]],
    ) -> None:
        """Take off each direction's delay what its path was measured to add. No delay falls below zero.

        A switch on a path over several links is made up for once, by the link behind it.

        Args:
            excess_s: Of both switches and the engine between them, by link and direction.
            ends: Ethernet addresses of those who are at home at the far end. Frames to others go on from there, so half
                of the excess, about the far switch's, is left to the next link. A direction that is not named has no
                such others.
        """

    def darken(self, links: Collection[str]) -> None:
        """Cut links, with what is on its way in them; their ends do not see it. Raises LinkError."""

    def set_carrier(self, link: str, up: bool) -> None:
        """Cut a link, with what is on its way in it, or mend it: its ends see it. LinkError.

        One that `darken` has cut may follow, or be mended before anybody saw it.
        """

    def account(self) -> EngineStats:
        """All counters as they are now."""

    def seeded(self) -> bool:
        """Return whether losses and jitter come from the run's seed, as read back. SettingMismatch, LinkError."""

    def verify(self) -> None:
        """Read back what `settings` does not tell of. SettingMismatch, LinkError."""

    def failure(self) -> str | None:
        """None while it works; else one sentence on how it ended."""

    def stop(self) -> None:
        """End; harmless when it has ended already."""


# How far a kernel's own units may be from what was asked: it keeps whole bytes per second and, for shares, 2^-32;
# tc shows microseconds, cut off.
TOLERANCES = {"rate_bps": 8.0, "delay_s": 1.5e-6, "jitter_s": 1.5e-6}
SHARE_TOLERANCE = 1e-6
RATE_TOLERANCE = 1e-6


def requested_settings(wires: Iterable[LinkWire]) -> dict[tuple[str, str], Direction]:
    """Every direction's settings, by (link name, direction)."""
    return {(wire.name, which): getattr(wire, which) for wire in wires for which in ("a_to_b", "b_to_a")}


def compare_settings(
    asked: Mapping[tuple[str, str], Direction], found: Mapping[tuple[str, str], Direction]
) -> None:
    """SettingMismatch names the first setting that is not what was asked."""
    for (link, which), direction in asked.items():
        compare_fields(f"link {link} {which}", direction, found[link, which])


def compare_fields(where: str, asked: DataclassInstance, found: DataclassInstance) -> None:
    """SettingMismatch names the first field that is not as asked, within what the kernel's own units allow."""
    for each in fields(asked):
        wanted, seen = getattr(asked, each.name), getattr(found, each.name)
        if not _same(each.name, wanted, seen):
            raise SettingMismatch(where, each.name, wanted, seen)


def _same(name: str, wanted: object, seen: object) -> bool:
    if isinstance(wanted, LossBursts) and isinstance(seen, LossBursts):
        return all(
            _same(each.name, getattr(wanted, each.name), getattr(seen, each.name))
            for each in fields(LossBursts)
        )
    if isinstance(wanted, float) and isinstance(seen, float):
        tolerance = TOLERANCES.get(name, SHARE_TOLERANCE)
        return abs(wanted - seen) <= max(tolerance, RATE_TOLERANCE * wanted if name == "rate_bps" else 0.0)
    return wanted == seen
