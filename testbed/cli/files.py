"""Commands on files alone: check, schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from testbed.cli.options import JsonOption, OverridesOption
from testbed.config import expand, expand_data, json_schema


def add_file_commands(app: typer.Typer) -> None:
    """Register this module's commands."""
    app.command()(check)
    app.command()(schema)


def check(
    file: Annotated[Path, typer.Argument(help="A topology or scenario file.")],
    overrides: OverridesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a topology or scenario file and print it fully expanded: every default, every unit."""
    if as_json:
        print(json.dumps(expand_data(file, overrides or []), indent=1))
    else:
        print(expand(file, overrides or []), end="")


def schema(
    kind: Annotated[
        Literal["topology", "scenario"], typer.Argument(help="Of which kind of file.")
    ] = "scenario",
) -> None:
    """Print the JSON Schema of topology or scenario files, for editors."""
    print(json.dumps(json_schema(kind), indent=1))
