"""Events of a scenario: what breaks or changes while steps are measured, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from testbed.errors import did_you_mean
from testbed.spec.base_model import Finding, Form, StrictModel
from testbed.spec.link_direction import DIRECTIONS
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
CARD_DIRECTIONS = {"out": "a_to_b", "in": "b_to_a"}  # of a host's card, and of its cable to the switch
CARD_SETTINGS = ("rate", "delay", "loss")
MISMATCHES = ("size", "type", "order")


@dataclass(frozen=True)
class Action:
    """of: what it happens to. needs, takes: keys that it cannot be without, that it may have; others do not have them.

    ends: whether it is over by itself, or never, so that nothing undoes it or has it come again.
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
"""What a rank does to itself, at the right moment, since it knows beforehand."""
KILL_EVENTS = ("host_kill", "rank_kill")
CARD_EVENTS = ("host_kill", "nic_degrade", "nic_down", "nic_loss")
"""What changes a host's card."""
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
    raise ValueError("a name; for planes and ranks a number")


TARGET = Form(_parse_target, {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]})


class MomentSpec(StrictModel):
    """A span of time in which a moment is drawn."""

    from_s: Duration = Field(alias="from", description="The earliest moment.")
    to_s: Duration = Field(alias="to", description="The latest moment.")

    def checks(self) -> Iterator[Finding]:
        """There is time between them."""
        if self.to_s <= self.from_s:
            yield Finding(("to",), format_duration(self.to_s), f"more than {format_duration(self.from_s)}")


class Disturbance(StrictModel):
    """How much an action changes, and for how long; what it is, subclasses say."""

    for_s: TimeoutOrNone = Field(
        default=None,
        alias="for",
        description="How long until it is undone; to the variant's end if left out. What was killed returns then, as a "
        "new process.",
    )
    direction: Annotated[str, choice("a direction", (*DIRECTIONS, *CARD_DIRECTIONS, "both"))] = Field(
        default="both",
        description="Which direction is changed: a_to_b or b_to_a of the link of `degrade`; out or in of the card of "
        "`nic_degrade` and `nic_loss`.",
    )
    settings: DirectionSpec | None = Field(
        default=None,
        alias="set",
        description="What `degrade` changes, as in a topology's WAN link; of `nic_degrade` rate, delay and loss.",
    )
    loss: FractionOrNone = Field(default=None, description="Share of packets that `nic_loss` loses.")
    factor: Annotated[float | None, number(1, 1000, 2)] = Field(
        default=None, description="How many times as long computing takes with `rank_slow`."
    )
    delay_s: TimeoutOrNone = Field(
        default=None,
        alias="delay",
        description="How much longer the control part of each operation takes with `io_slow`.",
    )

    @property
    def changes(self) -> DirectionSpec | None:
        """What becomes of a link's or a card's settings."""
        return self.settings if self.loss is None else DirectionSpec(loss=self.loss)

    def key_findings(self, where: str, action: str) -> Iterator[Finding]:
        """Keys that belong to the action come with it, and no others; where: the key that names the action."""
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
            yield Finding((key,), f"{key} with {action}", f"it with {', '.join(others)} only")
        if kind.of == LINK and self.direction in CARD_DIRECTIONS:
            yield Finding(("direction",), repr(self.direction), f"{', '.join(DIRECTIONS)} or both of a link")
        if kind.of == HOST and self.direction in DIRECTIONS:
            yield Finding(
                ("direction",), repr(self.direction), f"{', '.join(CARD_DIRECTIONS)} or both of a card"
            )
        if action == "nic_degrade" and self.settings is not None:
            for name, info in DirectionSpec.model_fields.items():
                key = info.alias or name
                if getattr(self.settings, name) is not None and key not in CARD_SETTINGS:
                    yield Finding(("set", key), f"{key} of a card", f"one of: {', '.join(CARD_SETTINGS)}")


class EventSpec(Disturbance):
    """Something that happens while steps are measured, in every variant alike."""

    renamed: ClassVar[Mapping[str, str]] = {"way": "`direction`, which takes the same"}

    at_s: DurationOrNone = Field(
        default=None,
        alias="at",
        description="When, after the start of the variant's first measured step, or of `step`; in real time.",
    )
    step: CountOrZero | None = Field(
        default=None, description="From the start of which measured step on, from 0; the first if left out."
    )
    random: MomentSpec | None = Field(
        default=None, description="In place of `at`: a moment that is drawn by the scenario's seed."
    )
    action: Annotated[str, choice("an action", tuple(ACTIONS))] = Field(
        description="degrade (a link's settings change), link_down, plane_down, switch_down (their ports lose their "
        "carrier), link_blackhole, plane_blackhole (nothing passes, and nobody is told), nic_down (a host's card loses "
        "its carrier), nic_degrade, nic_loss (its settings change), host_pause (its rank stands still), host_kill (it "
        "is gone, and its card dark), rank_kill (its process ends); and what a rank does: rank_slow (computing takes "
        "longer), rank_skip (it does not join a collective, and stands still), rank_mismatch (it joins another "
        "one), io_slow (operations take longer to begin)."
    )
    target: Annotated[int | str, TARGET] = Field(
        description="What it happens to: a WAN link such as east-west-0, a plane's number, a switch such as east-edge "
        "or east-leaf, a host, a rank's number."
    )
    every_s: TimeoutOrNone = Field(
        default=None,
        alias="every",
        description="From one beginning to the next, where it happens several `times`.",
    )
    times: Count = Field(default=1, description="How many times: a link that flaps goes down several times.")
    what: Annotated[str | None, choice("what differs", MISMATCHES)] = Field(
        default=None,
        description="What differs with `rank_mismatch`: size, type, or the order of this collective and the next.",
    )
    operation: CountOrNone = Field(
        default=None,
        description="Which collective of the step that `rank_skip` and `rank_mismatch` mean, of the rank's own, from "
        "1, which it is if left out: of the first step that starts when the event has begun.",
    )
    group: str | None = Field(
        default=None,
        description="Counted among the collectives of this group only, such as fsdp or tensor_parallel.",
    )

    def checks(self) -> Iterator[Finding]:
        """Keys that belong together come together."""
        yield from self.key_findings("action", self.action)
        if self.at_s is None and self.step is None and self.random is None:
            yield Finding(("at",), "nothing", "when: at, step or random")
        if self.at_s is not None and self.random is not None:
            yield Finding(("random",), "at and random", "one of both")
        if ACTIONS[self.action].ends and (self.for_s or self.times > 1):
            yield Finding(("action",), f"{self.action} that is undone or repeated", "it once")
        if self.times > 1 and (self.for_s is None or self.every_s is None):
            yield Finding(("times",), str(self.times), "for and every with it")
        if self.every_s is not None and self.times == 1:
            yield Finding(("every",), format_duration(self.every_s), "times with it")
        if self.for_s and self.every_s and self.for_s >= self.every_s:
            shown = f"{format_duration(self.for_s)}, every {format_duration(self.every_s)}"
            yield Finding(("for",), shown, "for shorter than every")

    def target_findings(self, topology: Topology, hosts: Sequence[str]) -> Iterator[Finding]:
        """Whether what it happens to is there; hosts: those of the ranks, in the ranks' order."""
        known, kind = targets_of(self.action, topology, hosts)
        if self.target not in known:
            yield Finding(("target",), show(self.target), expected_target(self.target, known, kind))

    def after_s(self, seed: int, index: int) -> float:
        """When it first begins, after the start of its step; index: its place among the scenario's events."""
        if self.random is not None:
            return random.Random(f"{seed}/events/{index}").uniform(self.random.from_s, self.random.to_s)
        return self.at_s or 0.0


class DrawnEvent(EventSpec):
    """One of a failure process: it may lie beyond the last step, and then never comes."""


def targets_of(
    action: str, topology: Topology, hosts: Sequence[str]
) -> tuple[Sequence[int] | Sequence[str], str]:
    """All that an action can happen to, and what that is; hosts: those of the ranks, in the ranks' order."""
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
    """What a message says in place of a target that there is not."""
    if known and isinstance(known[0], int):
        return f"{kind}: 0" + (f" to {known[-1]}" if len(known) > 1 else "")
    return f"{kind}: {did_you_mean(target, [str(name) for name in known])}"
