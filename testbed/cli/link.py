"""Commands on the WAN links of a network that is up: link set."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.fabric import FabricOption, direction_row
from testbed.config import ConfigError, Direction, Problem
from testbed.config.loading import Document, Origin, parse_override
from testbed.config.model import validate
from testbed.config.wan import DirectionSpec, change_direction
from testbed.directions import DIRECTIONS
from testbed.errors import did_you_mean
from testbed.fabric.errors import FabricError
from testbed.fabric.holder import find
from testbed.fabric.readback import change_links, engine_of
from testbed.links.wire import direction_to_json
from testbed.scale import Scale

COMMAND = "link set"


def add_link_commands(app: typer.Typer) -> None:
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
    if direction not in (*DIRECTIONS, None):
        expected = " or ".join(DIRECTIONS)
        raise ConfigError([Problem("command line", None, "--direction", str(direction), expected)])
    if os.geteuid() != 0:
        raise FabricError("changing a link needs root: run it through sudo")
    document = Document(COMMAND, {}, {(): Origin(COMMAND, None)})
    for setting in settings:
        key, value = parse_override(setting, COMMAND)
        document.data[key] = value
    asked = validate(DirectionSpec, document)
    state = find(fabric)
    now = engine_of(state).settings()
    names = {name for name, _ in now}
    if link != "all" and link not in names:
        expected = f"all, or a link: {did_you_mean(link, sorted(names))}"
        raise ConfigError([Problem("command line", None, "LINK", link, expected)])
    mtu, scale = state.details["mtu"], Scale(**state.details["scale"])
    wanted: dict[tuple[str, str], Direction] = {}
    for where, figures in now.items():
        if link in (where[0], "all") and direction in (where[1], None):
            wanted[where] = changed = change_direction(figures, asked, mtu, scale)
            if changed.jitter_s > changed.delay_s:
                shown = f"{changed.jitter_s:g} s with a delay of {changed.delay_s:g} s"
                raise ConfigError([Problem(COMMAND, None, "jitter", shown, "jitter of at most the delay")])
    change_links(state, wanted)
    console = Console(stderr=True, highlight=False)
    for where, figures in wanted.items():
        row = [figure for figure in direction_row(direction_to_json(figures)) if figure]
        console.print(f"{' '.join(where)}: {', '.join(row)}")
