"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output, nothing else.")]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a value of the scenario, such as topology.wan.0.delay='5 ms'.",
    ),
]
POLICY_HELP = "Transport policy, such as shortest, ecmp or te, or FILE.py:CLASS."
JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Virtual clock: how many guests at once [default: one for each core, if memory allows]."
    ),
]
