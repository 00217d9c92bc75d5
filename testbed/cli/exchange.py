"""The commands `export` and `import`: jobs and topologies for other programs, and from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from rich.console import Console

from testbed.cli.options import AUTO_SCALE, OverridesOption
from testbed.errors import BadInput
from testbed.show.exchange import (
    ImportDefaults,
    MetricsForm,
    export_astra_sim,
    export_chakra,
    export_containerlab,
    export_graphml,
    export_metrics,
    export_mininet,
    import_topology,
    load_job,
    log_to_mlflow,
    log_to_wandb,
    parse_hosts,
)
from testbed.spec.file_formats import load
from testbed.spec.scenario import Scenario
from testbed.spec.topology import TopologySpec
from testbed.spec.units import parse_delay, parse_rate
from testbed.workload.traces import JobTrace
from testbed.workload.traces.chakra import write_job

Tracker = Literal["mlflow", "wandb"]
Target = Literal[
    "chakra",
    "astra-sim",
    "containerlab",
    "mininet",
    "graphml",
    MetricsForm,
    Tracker,
]
OF_A_RUN = (*get_args(MetricsForm), *get_args(Tracker))


def add_commands(app: typer.Typer) -> None:
    """Register this module's commands."""
    app.command("export")(export)
    app.command("import")(import_)


def export(
    source: Annotated[
        Path,
        typer.Argument(
            help="A scenario or a run's folder; for chakra also a trace, for networks a topology; "
            "for figures a run's folder."
        ),
    ],
    to: Annotated[Target, typer.Option("--to", help="For which program, or in which form.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The folder to write to; for mininet, graphml and metrics, the file."
        ),
    ],
    variant: Annotated[
        str | None,
        typer.Option(help="Which variant's job, or else which algorithm's [default: the first]."),
    ] = None,
    size_scale: Annotated[
        str,
        typer.Option(help="containerlab, mininet: divide rates by this; auto: so that 1 Gbit/s is the most."),
    ] = AUTO_SCALE,
    overrides: OverridesOption = None,
) -> None:
    """Write a job, a topology or a run's figures for other programs.

    Jobs: Chakra, ASTRA-sim. Topologies: containerlab, Mininet, GraphML. A run's figures: Prometheus, OpenMetrics,
    OpenTelemetry (otlp-json), MLflow, Weights & Biases (wandb).
    """
    scale = _scale(size_scale, to)
    if to in OF_A_RUN:
        _export_figures(source, to, output, variant, overrides or [])
        return
    if to == "chakra" and source.is_file() and source.suffix in (".gz", ".json"):
        _tell(write_job(JobTrace.read(source), output), [])
        return
    if to in ("chakra", "astra-sim"):
        job = load_job(source, overrides or [], variant)
        if to == "chakra":
            _tell(export_chakra(job, output), list(job.lost()))
        else:
            _tell(*export_astra_sim(job, output))
        return
    if variant is not None:
        raise BadInput(where="--variant", got=f"it with {to}", expected="it with chakra or astra-sim")
    spec = _topology(source, overrides or [])
    if to == "containerlab":
        _tell(*export_containerlab(spec, output, scale))
    elif to == "mininet":
        _tell([output], export_mininet(spec, output, scale))
    else:
        _tell([output], export_graphml(spec, output))


def _export_figures(
    run: Path, to: Target, output: Path, variant: str | None, overrides: Sequence[str]
) -> None:
    """Of a run's folder, to a file of metrics or to a tracker's files."""
    for option, given in (("--variant", variant), ("--set", overrides)):
        if given:
            raise BadInput(where=option, got=f"it with {to}", expected=f"a run as it was made with {to}")
    if to == "mlflow":
        output.mkdir(parents=True, exist_ok=True)
        log_to_mlflow(run, f"sqlite:///{output.resolve() / 'mlflow.db'}", output / "artifacts")
        _tell([output / "mlflow.db"], [])
    elif to == "wandb":
        _tell(log_to_wandb(run, output), [])
    elif to in ("prometheus", "openmetrics", "otlp-json"):
        _tell([export_metrics(run, to, output)], [])


def import_(
    file: Annotated[
        Path, typer.Argument(help="A network: .graphml or .gml, or a topology of containerlab's (.yml).")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The topology file to write; without: standard output."),
    ] = None,
    netem: Annotated[
        Path | None,
        typer.Option(
            help="Script with containerlab's `tools netem set` lines [default: netem.sh beside the file]."
        ),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            help="How many hosts buildings have for which the file has none, such as 8; or by name, such as "
            "east=8,west=8: then the others only forward. [default: 1, or 0 where the file has hosts elsewhere]",
        ),
    ] = None,
    nic: Annotated[str, typer.Option(help="Rate of their cards.")] = "400 Gbit/s",
    rate: Annotated[str | None, typer.Option(help="Of links whose rate the file does not say.")] = None,
    delay: Annotated[
        str | None,
        typer.Option(help="Of links of which it says neither delay nor length nor both places; or a length."),
    ] = None,
    unit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=UNIT",
            help="Unit of a graph's attribute that has none, such as latency=ms; can be repeated.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if anything of the file is left out, or had to be assumed.")
    ] = False,
) -> None:
    """Make a topology file of somebody else's network: GraphML or GML (Topology Zoo), or containerlab's.

    What of the file is not in the topology is said on standard error, line by line.
    """
    try:
        given = ImportDefaults(
            None if rate is None else parse_rate(rate),
            None if delay is None else parse_delay(delay),
            None if hosts is None else parse_hosts(hosts),
            parse_rate(nic),
            _units(unit or []),
        )
    except ValueError as error:
        raise BadInput(
            where="command line", got=str([rate, delay, nic, *(unit or [])]), expected=str(error)
        ) from None
    text, notes = import_topology(file, given, netem, strict)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)
    _tell([] if output is None else [output], notes, "")


def _units(entries: Sequence[str]) -> dict[str, str]:
    """By attribute. ValueError."""
    pairs = [entry.rpartition("=") for entry in entries]
    if any(not (name and unit) for name, _, unit in pairs):
        raise ValueError("--unit NAME=UNIT, such as latency=ms")
    return {name: unit for name, _, unit in pairs}


def _scale(size_scale: str, to: Target) -> float | None:
    """None for auto. BadInput."""
    if size_scale == AUTO_SCALE:
        return None
    if to not in ("containerlab", "mininet"):
        raise BadInput(where="--size-scale", got=f"it with {to}", expected="it with containerlab or mininet")
    try:
        scale = float(size_scale)
    except ValueError:
        scale = 0.0
    if not 1 <= scale < float("inf"):
        raise BadInput(where="--size-scale", got=size_scale, expected="auto, or a number of 1 or more")
    return scale


def _topology(source: Path, overrides: Sequence[str]) -> TopologySpec:
    """Of a topology, a scenario, or a run."""
    found = load(source / "scenario.yaml" if source.is_dir() else source, overrides)
    assert isinstance(found, Scenario | TopologySpec)
    return found.topology if isinstance(found, Scenario) else found


def _tell(written: Sequence[Path], notes: Sequence[str], prefix: str = "left out: ") -> None:
    """On standard error; of many files the first ones."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    shown = [str(path) for path in written[:1]]
    if len(written) > 1:
        shown.append(
            f"and {len(written) - 1} more beside it: {written[-1].name}"
            if len(written) == 2
            else f"to {written[-1].name}, {len(written)} files"
        )
    if shown:
        console.print(" ".join(shown), markup=False)
    for what in notes:
        console.print(f"{prefix}{what}", markup=False)
