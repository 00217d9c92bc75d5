"""Commands on files: check, schema, graph, init; export and import exchange them with other tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from rich.console import Console

from testbed.cli.console import warn_unused_inputs
from testbed.cli.options import AUTO_SCALE, JsonOption, OverridesOption
from testbed.errors import BadInput
from testbed.measure.results.result import Result
from testbed.prediction.dry_run import workloads_of
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
from testbed.show.report.topology_graph import Form, draw_topology
from testbed.spec.catalogue import shipped
from testbed.spec.examples import copy_example, header
from testbed.spec.file_formats import json_schema, load
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import TopologySpec
from testbed.spec.units import parse_delay, parse_rate
from testbed.workload.traces.chakra import write_job
from testbed.workload.traces.trace import JobTrace


def check(
    file: Annotated[Path, typer.Argument(help="A topology or scenario file.")],
    overrides: OverridesOption = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail if any part of the job's trace or schedule file is ignored."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a topology or scenario file and print it with every default and unit filled in.

    Traces and schedule files that it names are read; ignored parts of them are listed on standard error.
    """
    found = load(file, overrides or [])
    if isinstance(found, Scenario):
        own = [found] if found.variants is None else [found.variant(name) for name in found.variant_names]
        if any(map(_has_external_workload, own)):
            workloads_of(found, Scale())
            warn_unused_inputs(found, strict)
    if as_json:
        print(json.dumps(found.to_data(), indent=1))
    else:
        print(found.to_yaml(), end="")


def _has_external_workload(scenario: Scenario) -> bool:
    """Return whether another file or a function defines the workload, so that it must be loaded to be checked."""
    spec = scenario.workload
    return (
        spec.plan is not None
        or spec.is_recorded
        or (spec.schedule is not None and spec.schedule.file is not None)
    )


def schema(
    kind: Annotated[
        Literal["topology", "scenario", "result"],
        typer.Argument(help="Kind of file; result: a run's summary.json."),
    ] = "scenario",
) -> None:
    """Print the JSON Schema of topology or scenario files, for editors, or of results."""
    found = Result.model_json_schema(by_alias=True) if kind == "result" else json_schema(kind)
    print(json.dumps(found, indent=1))


def graph(
    file: Annotated[
        Path, typer.Argument(help="A topology or scenario: a file, or the name of a bundled one.")
    ],
    overrides: OverridesOption = None,
    form: Annotated[Form, typer.Option("--format", "-f", help="dot: for Graphviz.")] = "svg",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: standard output).")
    ] = None,
) -> None:
    """Draw a topology: buildings, hosts, WAN links with their rates and delays. Nothing is built."""
    found = load(file, overrides or [])
    assert isinstance(found, Scenario | TopologySpec)
    spec = found.topology if isinstance(found, Scenario) else found
    text = draw_topology(spec.resolve(), form)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


def init(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Target folder, created if necessary. Without it, list what can be copied."),
    ] = None,
    scenario: Annotated[str, typer.Option(help="Scenario to copy.")] = "quickstart",
) -> None:
    """Copy a bundled scenario and its topology into a folder to edit, or list the bundled ones."""
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
    """Parse NAME=UNIT entries; raise ValueError if one is wrong."""
    pairs = [entry.rpartition("=") for entry in entries]
    if any(not (name and unit) for name, _, unit in pairs):
        raise ValueError("--unit NAME=UNIT, such as latency=ms")
    return {name: unit for name, _, unit in pairs}


def _scale(size_scale: str, to: Target) -> float | None:
    """Return the size scale, or None for auto; raise BadInput if it is wrong."""
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
    """Report, on standard error, the files written and the content left out."""
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
