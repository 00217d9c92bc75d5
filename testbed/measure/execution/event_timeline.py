"""What follows from a scenario's events: when each begins and ends, what network there is meanwhile, what they touch.

Pure. Times are real seconds after the start of a variant's first measured step, settings those of a scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.net.fabric.bridges import Cable, card_cables
from testbed.net.fabric.faults import Condition
from testbed.net.paths.hops import NETEM
from testbed.spec.events import CARD_DIRECTIONS, CARD_EVENTS, EventSpec
from testbed.spec.link_direction import DIRECTIONS, Direction
from testbed.spec.links import change_direction
from testbed.spec.scale import UNSCALED, Scale
from testbed.spec.topology import Topology


@dataclass(frozen=True)
class Change:
    """An event begins, or ends, so many real seconds after the start of a variant's first measured step."""

    at_s: float
    event: int
    begins: bool


def changes(events: Sequence[EventSpec], seed: int = 1, step: int = 0, start_s: float = 0.0) -> list[Change]:
    """All that follows, in one variant, from the start of one measured step, `start_s` after the first one's.

    In order; what ends at the moment at which something begins ends first. seed: of the moments that are drawn.
    """
    found = []
    for index, event in enumerate(events):
        if (event.step or 0) != step:
            continue
        first_s = start_s + event.after_s(seed, index)
        for number in range(event.times):
            begin_s = first_s + number * (event.every_s or 0.0)
            found.append(Change(begin_s, index, begins=True))
            if event.for_s is not None:
                found.append(Change(begin_s + event.for_s, index, begins=False))
    return in_order(found)


def in_order(found: Iterable[Change]) -> list[Change]:
    """As they come; what ends at the moment at which something begins ends first."""
    return sorted(found, key=lambda change: (change.at_s, change.begins, change.event))


def condition(active: Iterable[EventSpec], topology: Topology, scale: Scale) -> Condition:
    """What the network is like while these events last; of several that change a setting the last one counts."""
    down: set[str] = set()
    dark: set[str] = set()
    switches: set[str] = set()
    cards: set[str] = set()
    changed: dict[tuple[str, str], Direction] = {}
    for event in active:
        if event.action == "link_down":
            down.add(str(event.target))
        elif event.action == "link_blackhole":
            dark.add(str(event.target))
        elif event.action in ("plane_down", "plane_blackhole"):
            of_plane = {link.name for link in topology.wan if link.plane == event.target}
            (down if event.action == "plane_down" else dark).update(of_plane)
        elif event.action == "switch_down":
            switches.add(str(event.target))
        elif event.action in ("nic_down", "host_kill"):
            cards.add(str(event.target))
        elif (asked := event.changes) is not None:
            for key, healthy in _directions(event, topology).items():
                changed[key] = change_direction(changed.get(key, healthy), asked, topology.mtu, scale)
    return Condition(
        frozenset(down),
        frozenset(switches),
        changed,
        links_dark=frozenset(dark),
        cards_down=frozenset(cards),
    )


def _directions(event: EventSpec, topology: Topology) -> dict[tuple[str, str], Direction]:
    """What an event changes the settings of, as the topology has it."""
    which = CARD_DIRECTIONS.get(event.direction, event.direction)
    chosen = DIRECTIONS if which == "both" else (which,)
    if event.action in CARD_EVENTS:
        cable = card_of(topology, str(event.target))
        assert cable.direction is not None
        return {(cable.name, direction): cable.direction for direction in chosen}
    (link,) = (link for link in topology.wan if link.name == event.target)
    return {(link.name, direction): getattr(link, direction) for direction in chosen}


def card_of(topology: Topology, host: str) -> Cable:
    """The cable between a host's card and its switch."""
    return card_cables(topology)[host]


def touched(events: Sequence[EventSpec], topology: Topology) -> tuple[set[str], set[str]]:
    """(links, buildings) whose packet counts do not add up by design when these events happen."""
    wan = {link.name for link in topology.wan}
    links: set[str] = set()
    for event in events:
        now = condition([event], topology, UNSCALED)
        links |= (now.links_down | now.links_dark | {name for name, _ in now.changed}) & wan
        for switch in now.switches_down:
            building = switch.split("-")[0]
            links |= {link.name for link in topology.wan if building in (link.a, link.b)}
    buildings = {end for link in topology.wan if link.name in links for end in (link.a, link.b)}
    switched = {str(event.target).split("-")[0] for event in events if event.action == "switch_down"}
    return links, buildings | switched


def cards_touched(events: Iterable[EventSpec]) -> set[str]:
    """Hosts of whose cards, and of the switches that these are plugged into, packet counts do not add up by design."""
    return {str(event.target) for event in events if event.action in CARD_EVENTS}


def beyond_engine(events: Iterable[EventSpec], topology: Topology, link_engine: str) -> list[str]:
    """Hosts to whose cards events give a delay or a loss that this link engine cannot: it does not carry them."""
    if link_engine == NETEM:
        return []
    found = set()
    for event in events:
        asked = event.changes
        if event.action in CARD_EVENTS and asked is not None and (asked.delay_s or asked.loss):
            found.add(str(event.target))
    return sorted(host for host in found if not card_of(topology, host).takes_time)


def changed_by(events: Sequence[EventSpec], topology: Topology) -> tuple[set[str], set[str], set[str]]:
    """(links, switches, hosts by their cards) whose settings these events change."""
    wan = {link.name for link in topology.wan}
    links: set[str] = set()
    switches: set[str] = set()
    for event in events:
        now = condition([event], topology, UNSCALED)
        links |= now.links_down | now.links_dark | ({name for name, _ in now.changed} & wan)
        switches |= now.switches_down
    return links, switches, cards_touched(events)
