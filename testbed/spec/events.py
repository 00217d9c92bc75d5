"""Events of a scenario: what fails or changes while steps are measured, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from testbed.errors import did_you_mean
from testbed.spec.base_model import Finding, StrictModel, ValueFormat
from testbed.spec.link_direction import DIRECTIONS, LINK_PROPERTIES
from testbed.spec.links import DirectionSpec
from testbed.spec.units import format_duration
from testbed.spec.value_types import (
    Count,
    CountOrNone,
    CountOrZero,
    Duration,
    DurationOrNone,
    FractionOrNone,
    TimeoutOrNone,
    choice,
    number,
)
from testbed.spec.yaml_loader import show

if TYPE_CHECKING:
    from testbed.spec.topology import Topology

LINK, PLANE, SWITCH, HOST, RANK = "a WAN link", "a plane", "a switch", "a host that has a rank", "a rank"
CARD_DIRECTIONS = {
    "out": "a_to_b",
    "in": "b_to_a",
}  # a card's directions, in terms of its cable to the switch
CARD_SETTINGS = ("rate", "delay", "loss")
MISMATCHES = ("size", "type", "order")


@dataclass(frozen=True)
class Action:
    """A kind of event.

    Attributes:
        of: kind of its target.
        needs: required keys.
        takes: optional keys; all other keys are errors.
        ends: whether it happens at a single moment, so that it can be neither undone nor repeated.
    """

    of: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    ends: bool = False


ACTIONS: Mapping[str, Action] = {
    "degrade": Action(LINK, needs=("set",), takes=("direction",)),
    "host_kill": Action(HOST),
    "host_pause": Action(HOST),
    "io_slow": Action(RANK, needs=("delay",)),
    "link_blackhole": Action(LINK),
    "link_down": Action(LINK),
    "nic_degrade": Action(HOST, needs=("set",), takes=("direction",)),
    "nic_down": Action(HOST),
    "nic_loss": Action(HOST, needs=("loss",), takes=("direction",)),
    "plane_blackhole": Action(PLANE),
    "plane_down": Action(PLANE),
    "rank_kill": Action(RANK),
    "rank_mismatch": Action(RANK, needs=("what",), takes=("operation", "group"), ends=True),
    "rank_skip": Action(RANK, takes=("operation", "group"), ends=True),
    "rank_slow": Action(RANK, needs=("factor",)),
    "switch_down": Action(SWITCH),
}
RANK_EVENTS = ("io_slow", "rank_mismatch", "rank_skip", "rank_slow")
"""Events that a rank applies to itself, because it knows them in advance."""
KILL_EVENTS = ("host_kill", "rank_kill")
CARD_EVENTS = ("host_kill", "nic_degrade", "nic_down", "nic_loss")
"""Events that change a host's NIC."""
_EXAMPLES = {
    "set": "{loss: 1 %}",
    "loss": "loss: 1 %",
    "factor": "factor: 2",
    "delay": "delay: 10 ms",
    "what": "what: size",
}


def _parse_target(value: object) -> int | str:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    raise ValueError("a name, or a number for planes and ranks")


TARGET = ValueFormat(_parse_target, {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]})


class MomentSpec(StrictModel):
    """A time span from which the time of an event is drawn."""

    from_s: Duration
    """Earliest moment."""
    to_s: Duration
    """Latest moment."""

    def checks(self) -> Iterator[Finding]:
        """Check that the span is not empty."""
        if self.to_s <= self.from_s:
            yield Finding(("to",), format_duration(self.to_s), f"more than {format_duration(self.from_s)}")


class Disturbance(StrictModel):
    """The strength and duration of an action. Subclasses add the action."""

    for_s: TimeoutOrNone = None
    """Time until the event is undone; default: it lasts until the end of the variant. A killed process then restarts as
    a new one.
    """
    direction: Annotated[str, choice("a direction", (*DIRECTIONS, *CARD_DIRECTIONS, "both"))] = "both"
    """The direction to change: a_to_b or b_to_a for the link of `degrade`; out or in for the NIC of `nic_degrade` and
    `nic_loss`.
    """
    settings: DirectionSpec | None = Field(default=None, alias="set")
    """Settings to change: with `degrade`, those of a WAN link in a topology; with `nic_degrade`, rate, delay and loss.
    """
    loss: FractionOrNone = None
    """`nic_loss`: share of packets to lose."""
    factor: Annotated[float | None, number(1, 1000, 2)] = None
    """`rank_slow`: factor by which computing takes longer."""
    delay_s: TimeoutOrNone = None
    """`io_slow`: additional time of the control part of each operation."""

    @property
    def changes(self) -> DirectionSpec | None:
        """New settings of the link or NIC."""
        return self.settings if self.loss is None else DirectionSpec.model_validate({"loss": self.loss})

    def key_findings(self, where: str, action: str) -> Iterator[Finding]:
        """Check that the keys fit the action. `where`: the key that names the action."""
        kind = ACTIONS[action]
        given = {
            info.alias or name
            for name, info in type(self).model_fields.items()
            if getattr(self, name) != info.default
        }
        for key in kind.needs:
            if key not in given:
                yield Finding((key,), "nothing", f"what {action} changes, such as {_EXAMPLES[key]}")
        known = {key for other in ACTIONS.values() for key in (*other.needs, *other.takes)} - {where}
        for key in sorted(given & known - {*kind.needs, *kind.takes}):
            others = [name for name, other in ACTIONS.items() if key in (*other.needs, *other.takes)]
            yield Finding((key,), f"{key} with {action}", f"it only with {', '.join(others)}")
        if kind.of == LINK and self.direction in CARD_DIRECTIONS:
            yield Finding(("direction",), repr(self.direction), f"{', '.join(DIRECTIONS)} or both of a link")
        if kind.of == HOST and self.direction in DIRECTIONS:
            yield Finding(
                ("direction",), repr(self.direction), f"{', '.join(CARD_DIRECTIONS)} or both of a card"
            )
        if action == "nic_degrade" and self.settings is not None:
            for name, declared in LINK_PROPERTIES.items():
                key = declared.key
                if getattr(self.settings, name) is not None and key not in CARD_SETTINGS:
                    yield Finding(("set", key), f"{key} of a card", f"one of: {', '.join(CARD_SETTINGS)}")


class EventSpec(Disturbance):
    """Something that happens while steps are measured, in every variant."""

    renamed: ClassVar[Mapping[str, str]] = {"way": "`direction`, which takes the same"}

    at_s: DurationOrNone = None
    """Time after the start of the variant's first measured step, or of `step`, before time dilation."""
    step: CountOrZero | None = None
    """Measured step from whose start `at` counts, from 0; default: the first."""
    random: MomentSpec | None = None
    """In place of `at`: a time span from which the start is drawn with the scenario's seed."""
    action: Annotated[str, choice("an action", tuple(ACTIONS))]
    """degrade: change a link's settings. link_down, plane_down, switch_down: the ports lose carrier. link_blackhole,
    plane_blackhole: all packets are dropped while the carrier stays up. nic_down: a host's NIC loses carrier.
    nic_degrade, nic_loss: change a NIC's settings. host_pause: suspend a host's rank. host_kill: a host disappears and
    its NIC goes down. rank_kill: a rank's process ends. rank_slow: a rank computes more slowly. rank_skip: a rank does
    not join a collective and hangs. rank_mismatch: a rank joins a different collective. io_slow: a rank's operations
    take longer to begin.
    """
    target: Annotated[int | str, TARGET]
    """A WAN link such as east-west-0, a plane's number, a switch such as east-edge or east-leaf, a host, or a rank's
    number.
    """
    every_s: TimeoutOrNone = None
    """Time from the start of one occurrence to the next, with `times`."""
    times: Count = 1
    """Number of occurrences, for example of a flapping link going down."""
    what: Annotated[str | None, choice("a mismatch", MISMATCHES)] = None
    """`rank_mismatch`: the difference: size, type, or the order of this collective and the next."""
    operation: CountOrNone = None
    """`rank_skip` and `rank_mismatch`: number of the rank's collective in the first step that starts after the event,
    from 1; default: 1.
    """
    group: str | None = None
    """Count only collectives of this group for `operation`, such as fsdp or tensor_parallel."""

    def checks(self) -> Iterator[Finding]:
        """Check that the keys fit the action and each other."""
        yield from self.key_findings("action", self.action)
        if self.at_s is None and self.step is None and self.random is None:
            yield Finding(("at",), "nothing", "when: at, step or random")
        if self.at_s is not None and self.random is not None:
            yield Finding(("random",), "at and random", "only one of the two")
        if ACTIONS[self.action].ends and (self.for_s or self.times > 1):
            yield Finding(("action",), f"{self.action} with for or times", "neither: it happens once")
        if self.times > 1 and (self.for_s is None or self.every_s is None):
            yield Finding(("times",), str(self.times), "for and every as well")
        if self.every_s is not None and self.times == 1:
            yield Finding(("every",), format_duration(self.every_s), "times as well")
        if self.for_s and self.every_s and self.for_s >= self.every_s:
            shown = f"{format_duration(self.for_s)}, every {format_duration(self.every_s)}"
            yield Finding(("for",), shown, "less than every")

    def target_findings(self, topology: Topology, hosts: Sequence[str]) -> Iterator[Finding]:
        """Check that the target exists. `hosts`: hosts of the ranks, in rank order."""
        known, kind = targets_of(self.action, topology, hosts)
        if self.target not in known:
            yield Finding(("target",), show(self.target), expected_target(self.target, known, kind))

    def after_s(self, seed: int, index: int) -> float:
        """Return the event's first start, in seconds after its step starts; `index`: its position among the events."""
        if self.random is not None:
            return random.Random(f"{seed}/events/{index}").uniform(self.random.from_s, self.random.to_s)
        return self.at_s or 0.0


class DrawnEvent(EventSpec):
    """An event of a failure process. It may lie beyond the last step and then never occurs."""


def targets_of(
    action: str, topology: Topology, hosts: Sequence[str]
) -> tuple[Sequence[int] | Sequence[str], str]:
    """Return all possible targets of an action, and what kind they are. `hosts`: hosts of the ranks, in rank order."""
    kind = ACTIONS[action].of
    known: dict[str, Sequence[int] | Sequence[str]] = {
        RANK: range(len(hosts)),
        PLANE: sorted({link.plane for link in topology.wan}),
        HOST: hosts,
        SWITCH: topology.switches,
        LINK: [link.name for link in topology.wan],
    }
    return known[kind], kind


def expected_target(target: int | str, known: Sequence[int] | Sequence[str], kind: str) -> str:
    """Return the "expected" part of an error about an unknown target."""
    if known and isinstance(known[0], int):
        return f"{kind}: 0" + (f" to {known[-1]}" if len(known) > 1 else "")
    return f"{kind}: {did_you_mean(target, [str(name) for name in known])}"
