"""Options that several commands have, with their defaults: the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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
PolicyOption = Annotated[
    str, typer.Option(help="Transport policy, such as shortest, ecmp or te, or FILE.py:NAME.")
]
TopologyOption = Annotated[
    Path | None,
    typer.Option("--topology", "-t", help="A topology file [default: this machine's loopback]."),
]
SizeScaleOption = Annotated[
    str, typer.Option(help="Divide rates and sizes by this; auto: the smallest that this host carries.")
]
FabricOption = Annotated[
    str | None,
    typer.Option(
        "--fabric", help="Which fabric, by id or name; needed when several are up that have the same."
    ),
]
EngineOption = Annotated[
    str | None, typer.Option("--link-engine", help="netem or userspace [default: what the host has].")
]
DatapathOption = Annotated[
    str | None,
    typer.Option("--datapath", help="Open vSwitch's system or netdev [default: what the host has]."),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The folder to make [default: runs/NAME-DATE-TIME]."),
]
JsonFileOption = Annotated[Path | None, typer.Option("--json-file", "-J", help="Write rows as JSON.")]
# Defaults that several commands share. A run at a terminal goes by this machine's clock: it needs no kernel to be built
# first, and any machine has it. What goes by the model goes by the exact clock, against whose figures it is held.
AUTO_SCALE, SEED = "auto", 1
RUN_CLOCK: Literal["virtual", "real"] = "real"
MODEL_CLOCK: Literal["virtual", "real"] = "virtual"
WorkersOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Who works: processes of this machine, or dask, whose workers are here or those of --scheduler.",
    ),
]
WORKERS = "processes"
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="Of a Dask cluster that runs, such as tcp://head:8786."
    ),
]
PackingOption = Annotated[
    str | None,
    typer.Option(
        "--ranks-per-process",
        metavar="N|all",
        help="Ranks that one process carries [default: as many as is quickest; 1 by this machine's clock].",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Virtual clock: how many guests at once [default: one for each core, if memory allows]."
    ),
]
