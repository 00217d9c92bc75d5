"""Commands on the transport policy of a running network: policy show, policy set, policy diff."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from testbed.cli.options import FabricOption, JsonOption
from testbed.net.fabric.fabric_state import find_fabric
from testbed.net.fabric.running_fabric import change_policy, controller_of, parse_policy_args
from testbed.net.links.link_engine import classes_from_json
from testbed.spec.link_direction import QueueClass

SETTINGS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Options, as in a scenario, such as over=te replan=true."),
]
NAME = Annotated[str, typer.Argument(metavar="POLICY", help="A policy, or your own as FILE.py:NAME.")]
SHOWN_RULES = 20
policy_app = typer.Typer(
    no_args_is_help=True, help="Show or change the transport policy of a running network."
)


@policy_app.command(name="show")
def show(
    rules: Annotated[bool, typer.Option("--rules", help="List all rules, with packet counts.")] = False,
    as_json: JsonOption = False,
    fabric: FabricOption = None,
) -> None:
    """Show the active policy, its rules and its queues."""
    api = controller_of(find_fabric(fabric))
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
        f"policy {policy['name']}{options}; replans when links fail: {'yes' if shown['replan'] else 'no'}"
    )
    console.print(
        f"the controller reacts in {shown['reaction_s'] * 1e3:g} ms, {shown['rule_s'] * 1e3:g} ms per rule"
    )
    if shown["down"]:
        console.print(f"links down: {', '.join(shown['down'])}")
    for name, value in shown["notes"].items():
        console.print(f"{name}: {value:.6g}")
    for bridge, count in shown["rules"].items():
        console.print(f"{bridge}: {count} rules")
    _print_classes(console, classes_from_json(shown["classes"]))
    if rules:
        table = Table("bridge", "priority", "match", "actions", "packets", "bytes", "comment")
        for bridge, own in counted.items():
            for rule in own:
                match = " ".join(f"{key}={value}" for key, value in rule["match"].items())
                actions = ", ".join(
                    f"{key} {value}" for action in rule["actions"] for key, value in action.items()
                )
                figures = [str(rule[key]) for key in ("packets", "bytes")]
                table.add_row(
                    bridge,
                    str(rule["priority"]),
                    match or "any",
                    actions or "drop",
                    *figures,
                    rule["comment"],
                )
        console.print(table)


@policy_app.command(name="set")
def change(name: NAME, settings: SETTINGS = None, fabric: FabricOption = None) -> None:
    """Change the policy: rules, then queues. Connections stay up; after any error the old policy stays."""
    changed = change_policy(find_fabric(fabric), parse_policy_args(name, settings or ()))
    console = Console(stderr=True, highlight=False)
    console.print(
        f"policy {changed.name}: {changed.rules} rules, {changed.changed} of them changed, confirmed in "
        f"{changed.seconds:.2f} s"
    )
    _print_classes(console, changed.classes)


@policy_app.command(name="diff")
def diff(
    name: NAME, settings: SETTINGS = None, as_json: JsonOption = False, fabric: FabricOption = None
) -> None:
    """Show what `policy set` would change, without changing anything."""
    found = controller_of(find_fabric(fabric)).diff(parse_policy_args(name, settings or ()))
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
        console.print("the rules would not change")
    _print_classes(console, classes_from_json(found["classes"]))


def _print_classes(console: Console, classes: Sequence[QueueClass]) -> None:
    if not classes:
        return
    table = Table("queue", "DSCP", "priority", "share", "limit")
    for entry in classes:
        dscps = ", ".join(map(str, entry.dscps)) or "all others"
        table.add_row(entry.name, dscps, str(entry.priority), f"{entry.share:.3%}", f"{entry.limit:.3%}")
    console.print(table)
