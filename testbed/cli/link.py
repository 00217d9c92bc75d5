"""Commands on the WAN links of a network that is up: link set."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.fabric import direction_row
from testbed.cli.options import FabricOption
from testbed.net.fabric.fabric_state import find_fabric
from testbed.net.fabric.running_fabric import ALL, change_link, parse_link_settings
from testbed.net.links.link_engine import direction_to_json
from testbed.spec.errors import ConfigError, Problem


def add_commands(app: typer.Typer) -> None:
    """Register this module's commands."""
    link = typer.Typer(no_args_is_help=True, help="WAN links of a network that is up.")
    link.command(name="set")(set_link)
    app.add_typer(link, name="link")


def set_link(
    link: Annotated[str, typer.Argument(help="A link, such as east-west-0: a, b and plane. all: every one.")],
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...", help="As in a topology file, such as delay='10 ms' loss='1 %'."
        ),
    ],
    direction: Annotated[str | None, typer.Option(help="a_to_b or b_to_a [default: both].")] = None,
    way: Annotated[str | None, typer.Option(hidden=True)] = None,  # its name once
    fabric: FabricOption = None,
) -> None:
    """Change a link of a running network in place: packets on their way keep their times. All else stays as it is."""
    if way is not None:
        raise ConfigError(
            [Problem("command line", None, "--way", "an option that has another name now", "--direction")]
        )
    changed = change_link(
        find_fabric(fabric, link=None if link == ALL else link),
        link,
        parse_link_settings(settings),
        direction,
    )
    console = Console(stderr=True, highlight=False)
    for where, figures in changed.items():
        row = [figure for figure in direction_row(direction_to_json(figures)) if figure]
        console.print(f"{' '.join(where)}: {', '.join(row)}")
