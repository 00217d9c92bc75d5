"""Options shared by several commands, with their defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from testbed.net.virtual.guest import STALL_TIMEOUT_S

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a value of the scenario, such as topology.wan.0.delay='5 ms'.",
    ),
]
TrialsOption = Annotated[int | None, typer.Option(help="Measured steps per variant.")]
ScenarioArgument = Annotated[Path, typer.Argument(help="A scenario file.")]
PolicyOption = Annotated[
    str, typer.Option(help="Transport policy, such as shortest, ecmp or te, or FILE.py:NAME.")
]
TopologyOption = Annotated[
    Path | None,
    typer.Option("--topology", "-t", help="A topology file (default: this machine's loopback)."),
]
SizeScaleOption = Annotated[
    str,
    typer.Option(
        help="Divide rates and sizes by this; auto: the smallest value at which this host can carry the "
        "traffic."
    ),
]
FabricOption = Annotated[
    str | None,
    typer.Option("--fabric", help="The fabric, by id or name; required if several running ones match."),
]
EngineOption = Annotated[
    str | None,
    typer.Option("--link-engine", help="netem or userspace (default: the best this host supports)."),
]
DatapathOption = Annotated[
    str | None,
    typer.Option(
        "--datapath", help="Open vSwitch datapath: system or netdev (default: the best this host supports)."
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The folder to create (default: runs/NAME-DATE-TIME)."),
]
JsonFileOption = Annotated[Path | None, typer.Option("--json-file", "-J", help="Write rows as JSON.")]
# Shared defaults. Runs use the real clock, which is available on every machine and needs no kernel build. Predictions
# use the calibration of the virtual clock, which is exact.
AUTO_SCALE, SEED = "auto", 1
RUN_CLOCK: Literal["virtual", "real"] = "real"
MODEL_CLOCK: Literal["virtual", "real"] = "virtual"
WorkersOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where the work runs: processes of this machine, or dask, with local workers or those of "
        "--scheduler.",
    ),
]
WORKERS = "processes"
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="Address of a running Dask cluster, such as tcp://head:8786."
    ),
]
PackingOption = Annotated[
    str | None,
    typer.Option(
        "--ranks-per-process",
        metavar="N|all",
        help="Ranks per process (default: the fastest; 1 with the real clock).",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Virtual clock: guests to run at once (default: one per core, as memory allows)."
    ),
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", help="Memory of the virtual clock's guest, such as '4 GiB'.")
]
CpuTimeOption = Annotated[
    str,
    typer.Option(
        "--cpu-time",
        help="free: computation takes no virtual time. counted: it takes its CPU time, for programs that spin.",
    ),
]
StallOption = Annotated[
    str, typer.Option("--stall-timeout", help="Give up if virtual time does not advance for this long.")
]
DEFAULT_STALL_TIMEOUT = f"{STALL_TIMEOUT_S:g} s"


def assignments(overrides: list[str] | None, trials: int | None) -> list[str]:
    """Return the changes of a scenario from the options --set and --trials."""
    return [*(overrides or []), *([f"trials={trials}"] if trials is not None else [])]
