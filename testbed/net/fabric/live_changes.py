"""Changing a network that is up, from outside of the process that holds it: its WAN links, its transport policy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.errors import did_you_mean
from testbed.net.controller.client import ControllerApi
from testbed.net.fabric.errors import FabricError, need_root
from testbed.net.fabric.ownership import CONTROLLER_FILE, FabricState
from testbed.net.fabric.readback import change_links, engine_of
from testbed.net.links.wire import classes_from_json
from testbed.plugins import rooted
from testbed.spec.base_model import validate
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.link_direction import DIRECTIONS, Direction, QueueClass
from testbed.spec.policy import PolicySpec
from testbed.spec.scale import Scale
from testbed.spec.wan_links import DirectionSpec, change_direction
from testbed.spec.yaml_loader import Document, Origin, parse_override

COMMAND_LINE, LINK_SET, ALL = "command line", "link set", "all"
Settings = Mapping[tuple[str, str], Direction]  # by (link, direction)


@dataclass(frozen=True)
class PolicyChange:
    """A policy that has come into force: how many rules it has, how many of them are new, and after which time."""

    name: str
    rules: int
    changed: int
    seconds: float
    classes: tuple[QueueClass, ...]


def settings_asked(assignments: Iterable[str]) -> DirectionSpec:
    """Of "KEY=VALUE", as a topology file has them; what is not named stays None. ConfigError."""
    return validate(DirectionSpec, _document(LINK_SET, {}, assignments))


def policy_asked(name: str, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """A policy with options "KEY=VALUE", as the controller takes it; a file of one's own is found from here.

    ConfigError.
    """
    return validate(
        PolicySpec, _document(COMMAND_LINE, {"name": rooted(name, Path())}, assignments)
    ).to_choice()


def changed_directions(
    now: Settings, link: str, direction: str | None, asked: DirectionSpec, mtu: int, scale: Scale
) -> dict[tuple[str, str], Direction]:
    """What the directions concerned become.

    Args:
        now: All of the network's directions, as they are.
        link: A link's name; "all": every one.
        direction: "a_to_b" or "b_to_a"; None: both.
        asked: What to set anew, in real figures.
        mtu: The network's, bytes.
        scale: The network's.

    Raises:
        ConfigError: For a link or direction that there is not, and for jitter beyond the delay.
    """
    if direction not in (*DIRECTIONS, None):
        raise _wrong("--direction", str(direction), " or ".join(DIRECTIONS))
    names = sorted({name for name, _ in now})
    if link not in (ALL, *names):
        raise _wrong("LINK", link, f"all, or a link: {did_you_mean(link, names)}")
    changed = {
        where: change_direction(figures, asked, mtu, scale)
        for where, figures in now.items()
        if link in (where[0], ALL) and direction in (where[1], None)
    }
    for figures in changed.values():
        if figures.jitter_s > figures.delay_s:
            shown = f"{figures.jitter_s:g} s with a delay of {figures.delay_s:g} s"
            raise ConfigError([Problem(LINK_SET, None, "jitter", shown, "jitter of at most the delay")])
    return changed


def change_link(
    state: FabricState, link: str, asked: DirectionSpec, direction: str | None = None
) -> dict[tuple[str, str], Direction]:
    """Set a link anew, in place: packets on their way keep their times. What its directions are now.

    As root. ConfigError as `changed_directions` has it, FabricError, LinkError.
    """
    need_root("changing a link")
    now, scale = engine_of(state).settings(), Scale(**state.details["scale"])
    changed = changed_directions(now, link, direction, asked, state.details["mtu"], scale)
    change_links(state, changed)
    return changed


def with_classes(
    now: Settings, wan: Iterable[str], classes: tuple[QueueClass, ...]
) -> dict[tuple[str, str], Direction]:
    """The directions of these WAN links with a policy's queues; all else of them stays."""
    concerned = set(wan)
    return {where: replace(own, classes=classes) for where, own in now.items() if where[0] in concerned}


def change_policy(state: FabricState, asked: Mapping[str, Any]) -> PolicyChange:
    """Put a policy from `policy_asked` in force: rules, then queues. If anything is wrong, all stays as it was.

    As root. PolicyError, ControllerError, FabricError, LinkError.
    """
    need_root("changing the policy")
    answer = controller_of(state).set(asked)
    classes = classes_from_json(answer["classes"])
    wan = [link["name"] for link in state.details["wan"]]
    change_links(state, with_classes(engine_of(state).settings(), wan, classes))
    state.details["policy"] = asked["name"]
    state.save()
    return PolicyChange(asked["name"], answer["rules"], answer["changed"], answer["seconds"], classes)


def controller_of(state: FabricState) -> ControllerApi:
    """The interface of a network's controller. FabricError without root, or where there is no controller."""
    try:
        return ControllerApi(**json.loads((state.folder / CONTROLLER_FILE).read_text()))
    except PermissionError:
        raise FabricError("talking to the controller needs root: run it through sudo") from None
    except FileNotFoundError:
        raise FabricError(f"fabric {state.id} has no controller that can be talked to") from None


def _document(source: str, data: dict[str, Any], assignments: Iterable[str]) -> Document:
    document = Document(source, data, {(): Origin(source, None)})
    for assignment in assignments:
        key, value = parse_override(assignment, source)
        document.data[key] = value
    return document


def _wrong(field: str, value: str, expected: str) -> ConfigError:
    return ConfigError([Problem(COMMAND_LINE, None, field, value, expected)])
