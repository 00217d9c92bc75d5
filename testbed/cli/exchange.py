"""The commands `export` and `import`: exchange jobs, topologies and metrics with other tools."""

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


def export(
    source: Annotated[
        Path,
        typer.Argument(
            help="A scenario or a run's folder. chakra also takes a trace; networks also take a topology; metrics "
            "need a run's folder."
        ),
    ],
    to: Annotated[Target, typer.Option("--to", help="Target tool or format.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder to write to; for mininet, graphml and metrics, the file."
        ),
    ],
    variant: Annotated[
        str | None,
        typer.Option(
            help="Variant whose job to export, or algorithm if there are no variants (default: the first)."
        ),
    ] = None,
    size_scale: Annotated[
        str,
        typer.Option(
            help="containerlab, mininet: divide rates by this; auto: such that the highest is 1 Gbit/s."
        ),
    ] = AUTO_SCALE,
    overrides: OverridesOption = None,
) -> None:
    """Export a job, a topology or a run's metrics to other tools.

    Jobs: Chakra, ASTRA-sim. Topologies: containerlab, Mininet, GraphML. Metrics: Prometheus, OpenMetrics,
    OpenTelemetry (otlp-json), MLflow, Weights & Biases (wandb).
    """
    scale = _scale(size_scale, to)
    if to in OF_A_RUN:
        _export_metrics(source, to, output, variant, overrides or [])
        return
    if to == "chakra" and source.is_file() and source.suffix in (".gz", ".json"):
        _report(write_job(JobTrace.read(source), output), [])
        return
    if to in ("chakra", "astra-sim"):
        job = load_job(source, overrides or [], variant)
        if to == "chakra":
            _report(export_chakra(job, output), list(job.lost()))
        else:
            _report(*export_astra_sim(job, output))
        return
    if variant is not None:
        raise BadInput(where="--variant", got=f"it with {to}", expected="it only with chakra or astra-sim")
    spec = _topology(source, overrides or [])
    if to == "containerlab":
        _report(*export_containerlab(spec, output, scale))
    elif to == "mininet":
        _report([output], export_mininet(spec, output, scale))
    else:
        _report([output], export_graphml(spec, output))


def _export_metrics(
    run: Path, to: Target, output: Path, variant: str | None, overrides: Sequence[str]
) -> None:
    """Export a run's metrics, to a file or to a tracker's files."""
    for option, given in (("--variant", variant), ("--set", overrides)):
        if given:
            raise BadInput(where=option, got=f"it with {to}", expected=f"no {option} with {to}")
    if to == "mlflow":
        output.mkdir(parents=True, exist_ok=True)
        log_to_mlflow(run, f"sqlite:///{output.resolve() / 'mlflow.db'}", output / "artifacts")
        _report([output / "mlflow.db"], [])
    elif to == "wandb":
        _report(log_to_wandb(run, output), [])
    elif to in ("prometheus", "openmetrics", "otlp-json"):
        _report([export_metrics(run, to, output)], [])


def import_(
    file: Annotated[
        Path, typer.Argument(help="A network: .graphml or .gml, or a containerlab topology (.yml).")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The topology file to write (default: standard output)."),
    ] = None,
    netem: Annotated[
        Path | None,
        typer.Option(
            help="Script with containerlab's `tools netem set` lines (default: netem.sh in the file's folder)."
        ),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            help="Hosts per building if the file has none, such as 8; or by name, such as east=8,west=8: all others "
            "only forward (default: 1, or 0 if the file has hosts elsewhere).",
        ),
    ] = None,
    nic: Annotated[str, typer.Option(help="Rate of the hosts' network cards.")] = "400 Gbit/s",
    rate: Annotated[str | None, typer.Option(help="Rate of links for which the file has none.")] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            help="Delay, or length, of links for which the file has neither delay, nor length, nor both locations."
        ),
    ] = None,
    unit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=UNIT",
            help="Unit of a graph attribute without one, such as latency=ms; repeatable.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if anything in the file is ignored or had to be assumed.")
    ] = False,
) -> None:
    """Import a network as a topology file: GraphML or GML (Topology Zoo), or containerlab.

    Everything in the file that the topology leaves out is listed on standard error.
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
    _report([] if output is None else [output], notes, "")


def _units(entries: Sequence[str]) -> dict[str, str]:
    """Parse NAME=UNIT entries. Raises ValueError."""
    pairs = [entry.rpartition("=") for entry in entries]
    if any(not (name and unit) for name, _, unit in pairs):
        raise ValueError("--unit NAME=UNIT, such as latency=ms")
    return {name: unit for name, _, unit in pairs}


def _scale(size_scale: str, to: Target) -> float | None:
    """Return the size scale, or None for auto. Raises BadInput."""
    if size_scale == AUTO_SCALE:
        return None
    if to not in ("containerlab", "mininet"):
        raise BadInput(
            where="--size-scale", got=f"it with {to}", expected="it only with containerlab or mininet"
        )
    try:
        scale = float(size_scale)
    except ValueError:
        scale = 0.0
    if not 1 <= scale < float("inf"):
        raise BadInput(where="--size-scale", got=size_scale, expected="auto, or a number of 1 or more")
    return scale


def _topology(source: Path, overrides: Sequence[str]) -> TopologySpec:
    """Load the topology of a topology file, a scenario, or a run."""
    found = load(source / "scenario.yaml" if source.is_dir() else source, overrides)
    assert isinstance(found, Scenario | TopologySpec)
    return found.topology if isinstance(found, Scenario) else found


def _report(written: Sequence[Path], notes: Sequence[str], prefix: str = "left out: ") -> None:
    """Report on standard error which files were written, and what was left out."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    shown = [str(path) for path in written[:1]]
    if len(written) > 1:
        shown.append(
            f"and {len(written) - 1} more in its folder: {written[-1].name}"
            if len(written) == 2
            else f"to {written[-1].name}, {len(written)} files"
        )
    if shown:
        console.print(" ".join(shown), markup=False)
    for what in notes:
        console.print(f"{prefix}{what}", markup=False)
