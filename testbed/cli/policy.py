"""Commands on the transport policy of a network that is up: policy show, policy set, policy diff."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from testbed.cli.fabric import FabricOption
from testbed.cli.options import JsonOption
from testbed.config.loading import Document, Origin, parse_override
from testbed.config.model import validate
from testbed.config.policy import PolicySpec
from testbed.controller.client import ControllerApi
from testbed.fabric.errors import FabricError
from testbed.fabric.holder import find
from testbed.fabric.readback import change_links, engine_of
from testbed.fabric.state import CONTROLLER_FILE, FabricState
from testbed.links.wire import classes_from_json
from testbed.plugins import rooted

SETTINGS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Options, as in a scenario, such as over=te replan=true."),
]
NAME = Annotated[str, typer.Argument(metavar="POLICY", help="A policy, or one of your own: FILE.py:NAME.")]
SHOWN_RULES = 20


def add_policy_commands(app: typer.Typer) -> None:
    """Register this module's commands."""
    policy = typer.Typer(no_args_is_help=True, help="The transport policy of a network that is up.")
    policy.command(name="show")(show)
    policy.command(name="set")(change)
    policy.command(name="diff")(diff)
    app.add_typer(policy, name="policy")


def show(
    rules: Annotated[
        bool, typer.Option("--rules", help="All rules, with the packets that each took.")
    ] = False,
    as_json: JsonOption = False,
    fabric: FabricOption = None,
) -> None:
    """Show the policy in force, its rules and its queues."""
    api = _api(find(fabric))
    shown = api.show()
    if rules or as_json:
        counted = api.rules()
    if as_json:
        print(json.dumps({**shown, "bridges": counted}, indent=1))
        return
    console = Console(highlight=False)
    policy = shown["policy"]
    options = "".join(f", {key} {json.dumps(value)}" for key, value in policy["options"].items())
    console.print(
        f"policy {policy['name']}{options}; paths anew when links die: {'yes' if shown['replan'] else 'no'}"
    )
    times = f"reacts in {shown['reaction_s'] * 1e3:g} ms, {shown['rule_s'] * 1e3:g} ms a rule"
    console.print(f"the controller {times}")
    if shown["down"]:
        console.print(f"links down: {', '.join(shown['down'])}")
    for name, value in shown["notes"].items():
        console.print(f"{name}: {value:.6g}")
    for bridge, count in shown["rules"].items():
        console.print(f"{bridge}: {count} rules")
    _print_classes(console, shown["classes"])
    if rules:
        table = Table("bridge", "priority", "match", "does", "packets", "bytes", "why")
        for bridge, own in counted.items():
            for rule in own:
                match = " ".join(f"{key}={value}" for key, value in rule["match"].items())
                does = ", ".join(
                    f"{key} {value}" for action in rule["actions"] for key, value in action.items()
                )
                figures = [str(rule[key]) for key in ("packets", "bytes")]
                table.add_row(
                    bridge, str(rule["priority"]), match or "any", does or "drop", *figures, rule["comment"]
                )
        console.print(table)


def change(name: NAME, settings: SETTINGS = None, fabric: FabricOption = None) -> None:
    """Put another policy in force: rules, then queues. Connections go on; if anything is wrong, all stays as it was."""
    if os.geteuid() != 0:
        raise FabricError("changing the policy needs root: run it through sudo")
    asked = _asked(name, settings)
    state = find(fabric)
    answer = _api(state).set(asked)
    classes = classes_from_json(answer["classes"])
    now = engine_of(state).settings()
    wan = {link["name"] for link in state.details["wan"]}
    wanted = {key: replace(direction, classes=classes) for key, direction in now.items() if key[0] in wan}
    change_links(state, wanted)
    state.details["policy"] = asked["name"]
    state.save()
    console = Console(stderr=True, highlight=False)
    console.print(
        f"policy {asked['name']}: {answer['rules']} rules, {answer['changed']} of them changed, confirmed in "
        f"{answer['seconds']:.2f} s"
    )
    _print_classes(console, answer["classes"])


def diff(
    name: NAME, settings: SETTINGS = None, as_json: JsonOption = False, fabric: FabricOption = None
) -> None:
    """Show what `policy set` would change, and change nothing."""
    found = _api(find(fabric)).diff(_asked(name, settings))
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console(highlight=False)
    for bridge, changes in found["bridges"].items():
        for sign, key, style in (("-", "removed", "red"), ("+", "added", "green")):
            for rule in changes[key][:SHOWN_RULES]:
                console.print(f"{sign} {bridge}: {rule}", style=style, markup=False, soft_wrap=True)
            if (more := len(changes[key]) - SHOWN_RULES) > 0:
                console.print(f"{sign} {bridge}: and {more} more", style=style)
    if not any(changes[key] for changes in found["bridges"].values() for key in changes):
        console.print("the rules would stay as they are")
    _print_classes(console, found["classes"])


def _api(state: FabricState) -> ControllerApi:
    path = state.folder / CONTROLLER_FILE
    try:
        return ControllerApi(**json.loads(path.read_text()))
    except PermissionError:
        raise FabricError("talking to the controller needs root: run it through sudo") from None
    except FileNotFoundError:
        raise FabricError(f"fabric {state.id} has no controller that can be talked to") from None


def _asked(name: str, settings: list[str] | None) -> dict[str, Any]:
    """ConfigError names what is wrong with the options."""
    document = Document("command line", {"name": rooted(name, Path())}, {(): Origin("command line", None)})
    for setting in settings or ():
        key, value = parse_override(setting, "command line")
        document.data[key] = value
    return validate(PolicySpec, document).to_choice()


def _print_classes(console: Console, classes: list[Mapping[str, Any]]) -> None:
    if not classes:
        return
    table = Table("queue", "DSCP", "priority", "share", "limit")
    for entry in classes:
        dscps = ", ".join(map(str, entry["dscps"])) or "all others"
        table.add_row(
            entry["name"], dscps, str(entry["priority"]), f"{entry['share']:.3%}", f"{entry['limit']:.3%}"
        )
    console.print(table)
