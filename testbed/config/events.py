"""Events of a scenario: what breaks or changes while steps are measured, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from testbed.config.forms import Count, Duration, TimeoutOrNone, choice
from testbed.config.loading import show
from testbed.config.model import Finding, Form, Strict
from testbed.config.units import format_duration
from testbed.config.wan import DirectionSpec
from testbed.directions import DIRECTIONS
from testbed.errors import did_you_mean

if TYPE_CHECKING:
    from testbed.config.topology import Topology

ACTIONS = ("degrade", "host_pause", "link_down", "plane_down", "rank_kill", "switch_down")


def _parse_target(value: object) -> int | str:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    raise ValueError("a name; for plane_down and rank_kill a number")


_TARGET = Form(_parse_target, {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]})


class EventSpec(Strict):
    """Something that happens while steps are measured, in every variant alike."""

    renamed: ClassVar[Mapping[str, str]] = {"way": "`direction`, which takes the same"}

    at_s: Duration = Field(
        alias="at", description="When, after the start of the variant's first measured step, in real time."
    )
    action: Annotated[str, choice("an action", ACTIONS)] = Field(
        description="degrade (a link's settings change), link_down, plane_down, switch_down (their ports lose their "
        "carrier), host_pause (its rank stands still), rank_kill (which ends the run)."
    )
    target: Annotated[int | str, _TARGET] = Field(
        description="What it happens to: a WAN link such as east-west-0, a plane's number, a switch such as east-edge "
        "or east-leaf, a host, a rank's number."
    )
    for_s: TimeoutOrNone = Field(
        default=None,
        alias="for",
        description="How long until it is undone; to the variant's end if left out.",
    )
    every_s: TimeoutOrNone = Field(
        default=None,
        alias="every",
        description="From one beginning to the next, where it happens several `times`.",
    )
    times: Count = Field(default=1, description="How many times: a link that flaps goes down several times.")
    direction: Annotated[str, choice("a direction", (*DIRECTIONS, "both"))] = Field(
        default="both", description="Which direction of the link `degrade` changes."
    )
    settings: DirectionSpec | None = Field(
        default=None, alias="set", description="What `degrade` changes, as in a topology's WAN link."
    )

    def checks(self) -> Iterator[Finding]:
        """Keys that belong together come together."""
        if self.action == "degrade" and self.settings is None:
            yield Finding(("set",), "nothing", "what degrade changes, such as {loss: 1 %}")
        if self.action != "degrade" and self.settings is not None:
            yield Finding(("set",), f"settings for {self.action}", "set with degrade only")
        if self.action != "degrade" and self.direction != "both":
            yield Finding(("direction",), repr(self.direction), "direction with degrade only")
        if self.action == "rank_kill" and (self.for_s or self.times > 1):
            yield Finding(("action",), "rank_kill that is undone or repeated", "it once: it ends the run")
        if self.times > 1 and (self.for_s is None or self.every_s is None):
            yield Finding(("times",), str(self.times), "for and every with it")
        if self.every_s is not None and self.times == 1:
            yield Finding(("every",), format_duration(self.every_s), "times with it")
        if self.for_s and self.every_s and self.for_s >= self.every_s:
            shown = f"{format_duration(self.for_s)}, every {format_duration(self.every_s)}"
            yield Finding(("for",), shown, "for shorter than every")

    def target_findings(self, topology: Topology, hosts: Sequence[str]) -> Iterator[Finding]:
        """Whether what it happens to is there; hosts: those of the ranks, in the ranks' order."""
        known: list[int] | list[str]
        if self.action == "rank_kill":
            known, kind = list(range(len(hosts))), "a rank"
        elif self.action == "plane_down":
            known, kind = sorted({link.plane for link in topology.wan}), "a plane"
        elif self.action == "host_pause":
            known, kind = list(hosts), "a host that has a rank"
        elif self.action == "switch_down":
            known, kind = list(topology.switches), "a switch"
        else:
            known, kind = [link.name for link in topology.wan], "a WAN link"
        if self.target not in known:
            if known and isinstance(known[0], int):
                expected = f"{kind}: 0" + (f" to {known[-1]}" if len(known) > 1 else "")
            else:
                expected = f"{kind}: {did_you_mean(self.target, [str(name) for name in known])}"
            yield Finding(("target",), show(self.target), expected)
