"""The interface of link engines, and the check of requested settings against those in force.

A WAN link is four interfaces in a row: the port of an edge switch at each end, and their peers in the WAN namespace. A
link engine forwards frames between the two peers. It applies all settings of the link: rate, queue, delay, loss and the
other impairments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from testbed.net.errors import SettingMismatch
from testbed.spec.link_direction import (
    LINK_PROPERTIES,
    Direction,
    Form,
    LossBursts,
    Pause,
    QueueClass,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class LinkWire:
    """One WAN link as an engine sees it.

    `inner_a` and `inner_b` are its interfaces in the WAN namespace, `outer_a` and `outer_b` their peers. The peers are
    ports of the nodes `node_a` and `node_b` (None: the edge switches in the root namespace). Frames to the networks
    `cut_through_a` and `cut_through_b` are delivered at that end when their first bit arrives (None: no such network).
    `switch_a` and `switch_b` are the switches at the ends, which may pause their senders; None for hosts.
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


def direction_from_json(data: Mapping[str, Any]) -> Direction:
    """Convert a direction back from the JSON form of `dataclasses.asdict`."""
    bursts = data.get("loss_bursts")
    pause = data.get("pause")
    parts = {
        "loss_bursts": LossBursts(**bursts) if bursts else None,
        "classes": classes_from_json(data.get("classes", ())),
        "pause": Pause(**pause) if pause else None,
    }
    return Direction(**{**data, **parts})


def classes_from_json(data: Iterable[Mapping[str, Any]]) -> tuple[QueueClass, ...]:
    """Convert queue classes back from the JSON form of `dataclasses.asdict`."""
    return tuple(QueueClass(**{**entry, "dscps": tuple(entry["dscps"])}) for entry in data)


def wire_from_json(data: Mapping[str, Any]) -> LinkWire:
    """Convert a wire back from the JSON form of `dataclasses.asdict`."""
    directions = {direction: direction_from_json(data[direction]) for direction in ("a_to_b", "b_to_a")}
    return LinkWire(**{**data, **directions})


def link_interfaces(wires: Iterable[LinkWire], link: str) -> tuple[str, str]:
    """Return a link's two interfaces in the WAN namespace. Raises KeyError if there is no such link."""
    return {wire.name: (wire.inner_a, wire.inner_b) for wire in wires}[link]


@dataclass(frozen=True)
class DirectionStats:
    """The counters of one direction since the engine started, in packets unless the name says bytes.

    They balance: in + duplicated = out + lost + cut + dropped + overrun + held. None or empty means that the engine
    does not know the value.

    - `lost`: lost at random. `cut`: lost because the link was cut. `dropped`: dropped by the full queue. `overrun`:
      lost for lack of other buffers or of CPU time. `duplicated`: extra copies. `held`: still in flight. `faults`:
      packets with each kind of fault, by the name of its link property.
    - `crossed_packets`: entered the WAN namespace. `sent_bytes`: have left the queue.
    - `queue_bytes`: in the queue now; `queue_peak_bytes`: its maximum. `queue_counts[i]`: arrivals that found less than
      (i + 1) / len(queue_counts) of the queue's limit in use.
    - `lateness_counts[i]`: packets released less than `lateness_bounds_s[i]` late; the last entry counts the rest.
    - `pauses`: pauses sent by the switch at the far end; `paused_s`: how long they stopped the sender.
      `buffer_peak_bytes`: maximum of the link's bytes in this switch; `buffer_drops`: dropped by its full buffer.
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
    faults: Mapping[str, int] = field(default_factory=dict)
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
    """A link engine: it forwards the frames of one fabric's WAN links."""

    name: str

    def start(self) -> None:
        """Start forwarding frames, and read every setting back before returning.

        Raises:
            LinkError: The links could not be set up.
            SettingMismatch: A setting differs from what was requested.
        """

    def settings(self) -> dict[tuple[str, str], Direction]:
        """Return the settings of each direction, read back from the component that applies them."""

    def change(self, asked: Mapping[tuple[str, str], Direction]) -> None:
        """Change the settings of directions in place and read them back; frames in flight keep their timing.

        Raises:
            LinkError: A setting could not be changed.
            SettingMismatch: A setting differs from what was requested.
        """

    def compensate(
        self,
        excess_s: Mapping[tuple[str, str], float],
        ends: Mapping[tuple[str, str], Collection[str]],
    ) -> None:
        """Reduce each direction's delay by the measured latency of its switches; no delay falls below zero.

        On a path over several links each switch is compensated for once, by the link after it.

        Args:
            excess_s: Latency in seconds of both switches and the engine between them, by link and direction.
            ends: MAC addresses of the hosts at the far end. Frames to other hosts continue over another link. For these
                frames only half of the excess is deducted, because the next link deducts that of the switch in between.
                A direction without an entry has only frames to its far end.
        """

    def blackhole(self, links: Collection[str]) -> None:
        """Cut links and drop the frames in flight, while both ends keep their carrier. Raises LinkError."""

    def set_carrier(self, link: str, up: bool) -> None:
        """Take a link's carrier down, dropping the frames in flight, or up again. Raises LinkError.

        This also works for a link that `blackhole` has cut.
        """

    def stats(self) -> EngineStats:
        """Return all counters as they are now."""

    def is_seeded(self) -> bool:
        """Return whether losses and jitter come from the run's seed, as read back.

        Raises:
            SettingMismatch: A seed differs from what was requested.
            LinkError: A seed could not be read.
        """

    def verify(self) -> None:
        """Read back the settings that `settings` does not return.

        Raises:
            SettingMismatch: A setting differs from what was requested.
            LinkError: A setting could not be read.
        """

    def failure(self) -> str | None:
        """Return a sentence that says how the engine failed; None while it works."""

    def stop(self) -> None:
        """Stop the engine; does nothing if it has stopped already."""


# Rounding in the kernel: it stores whole bytes per second and shares in units of 2^-32; tc truncates to microseconds.
TIME_TOLERANCE_S = 1.5e-6
SHARE_TOLERANCE = 1e-6
_TOLERANCES: Mapping[Form, float] = {"rate": 8.0, "delay": TIME_TOLERANCE_S, "duration": TIME_TOLERANCE_S}
_RATE_TOLERANCE = 1e-6  # relative to the rate


def requested_settings(wires: Iterable[LinkWire]) -> dict[tuple[str, str], Direction]:
    """Return the settings requested for each direction, by (link name, direction)."""
    return {(wire.name, which): getattr(wire, which) for wire in wires for which in ("a_to_b", "b_to_a")}


def compare_settings(
    asked: Mapping[tuple[str, str], Direction], found: Mapping[tuple[str, str], Direction]
) -> None:
    """Raise SettingMismatch for the first setting that differs from what was requested."""
    for (link, which), direction in asked.items():
        compare_fields(f"link {link} {which}", direction, found[link, which])


def compare_fields(where: str, asked: DataclassInstance, found: DataclassInstance) -> None:
    """Raise SettingMismatch for the first field that differs by more than the kernel's rounding."""
    for each in fields(asked):
        wanted, seen = getattr(asked, each.name), getattr(found, each.name)
        if not _is_close(each.name, wanted, seen):
            raise SettingMismatch(where, each.name, wanted, seen)


def _is_close(name: str, wanted: object, seen: object) -> bool:
    if isinstance(wanted, LossBursts) and isinstance(seen, LossBursts):
        return all(
            _is_close(each.name, getattr(wanted, each.name), getattr(seen, each.name))
            for each in fields(LossBursts)
        )
    if isinstance(wanted, float) and isinstance(seen, float):
        form = LINK_PROPERTIES[name].form if name in LINK_PROPERTIES else "share"
        tolerance = _TOLERANCES.get(form, SHARE_TOLERANCE)
        return abs(wanted - seen) <= max(tolerance, _RATE_TOLERANCE * wanted if form == "rate" else 0.0)
    return wanted == seen
