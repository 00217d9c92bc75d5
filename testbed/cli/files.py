"""Commands on files: check, schema, graph, init."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from testbed.cli.console import warn_unused_inputs
from testbed.cli.options import JsonOption, OverridesOption
from testbed.measure.results.result import Result
from testbed.prediction.dry_run import workloads_of
from testbed.show.report.topology_graph import Form, draw_topology
from testbed.spec.catalogue import shipped
from testbed.spec.examples import copy_example, header
from testbed.spec.file_formats import json_schema, load
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import TopologySpec


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
