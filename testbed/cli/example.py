"""`testbed init`: examples to begin with, copied where they can be edited."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
import yaml

from testbed.config import ConfigError, Problem, load_scenario
from testbed.config.shipped import shipped
from testbed.errors import did_you_mean


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
    known = shipped("scenarios")
    if folder is None:
        for kind in ("scenarios", "topologies"):
            print(f"{kind}:", *(f"  {name}" for name in shipped(kind)), sep="\n")
        return
    if scenario not in known:
        raise ConfigError(
            [Problem("command line", None, "--scenario", scenario, did_you_mean(scenario, known))]
        )
    source = known[scenario]
    targets = {folder / source.name: source}
    topology = yaml.safe_load(source.read_text()).get("topology")
    if isinstance(topology, str):
        targets[folder / Path(topology).name] = (source.parent / topology).resolve()
    for target in targets:
        if target.exists():
            raise ConfigError(
                [Problem("command line", None, "FOLDER", str(folder), f"one without {target.name}")]
            )
    folder.mkdir(parents=True, exist_ok=True)
    for target, file in targets.items():
        shutil.copy(file, target)
    own = folder / source.name
    if isinstance(topology, str):
        own.write_text(
            own.read_text().replace(f"topology: {topology}", f"topology: {Path(topology).name}", 1)
        )
    load_scenario(own)
    print(f"{', '.join(map(str, targets))}\nNext: testbed run {own} --clock virtual")
