"""`testbed init`: examples to begin with, copied where they can be edited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.spec.catalogue import shipped
from testbed.spec.examples import copy_example, header


def add_commands(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(init)


def init(
    folder: Annotated[
        Path | None, typer.Argument(help="Where to; made if it is not there. Without: what can be copied.")
    ] = None,
    scenario: Annotated[str, typer.Option(help="Which scenario.")] = "quickstart",
) -> None:
    """Copy a scenario that comes with the testbed, and its topology, into a folder to edit; or list them."""
    if folder is None:
        scenarios = shipped("scenarios")
        width = max(map(len, scenarios))
        print("scenarios:")
        for name, file in scenarios.items():
            print(f"  {name:<{width}}  {header(file.read_text(), name).question}")
        print("topologies:", *(f"  {name}" for name in shipped("topologies")), sep="\n")
        return
    copied = copy_example(scenario, folder)
    print(f"{', '.join(map(str, copied))}\nNext: testbed run {copied[0]} --clock virtual")
