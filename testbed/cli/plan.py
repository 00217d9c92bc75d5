"""The command `plan`: dry-run a step with the model alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from testbed.cli.console import show_schedule_search, warn_unused_inputs
from testbed.cli.options import JsonOption, OverridesOption
from testbed.measure.results.serving_summary import predicted_latencies
from testbed.measure.results.training_summary import describe_time_split, summarise_prediction
from testbed.prediction.dry_run import dry_runs, schedule_csv
from testbed.prediction.step_flops import step_work
from testbed.show.report.terminal import print_not_emulated, print_training_steps
from testbed.show.report.variant_text import predicted_rates_text
from testbed.spec.base_model import look_up
from testbed.spec.overrides import preset_changes
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.units import size_text, time_text
from testbed.workload.job.kinds.trace import ranks_of_trace

PROVEN = 1e-3  # relative tolerance for rounded times


def plan(
    scenario: Annotated[Path, typer.Argument(help="A scenario file, or the name of a bundled one.")],
    overrides: OverridesOption = None,
    as_json: JsonOption = False,
    as_csv: Annotated[
        str | None, typer.Option("--csv", help="Only print the schedule of this variant, as CSV.")
    ] = None,
) -> None:
    """Dry-run a scenario's step on a model of its network: time, memory, bytes; nothing is built or sent."""
    loaded = load_scenario(scenario, overrides or [])
    with show_schedule_search(Console(stderr=True, highlight=False)):
        tried = dry_runs(loaded, Scale())
    warn_unused_inputs(loaded)
    if as_csv is not None:
        print(schedule_csv(tried, as_csv), end="")
        return
    found = {
        name: {**summarise_prediction(one, Scale()), **predicted_latencies(one, Scale())}
        for name, one in tried.items()
    }
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _print(found, loaded)
        _print_ranks(loaded, tried)


def _print(found: dict[str, dict[str, Any]], scenario: Scenario) -> None:
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("variant", overflow="fold")
    memory = any("peak_activation_bytes" in entry for entry in found.values())
    alive = ["activations\nalive"] if memory else []
    for heading in ("step time", *alive, "between\nbuildings", "inside\nbuildings"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, entry in found.items():
        table.add_row(
            name,
            time_text(entry["step_time_s"]),
            *([size_text(max(entry.get("peak_activation_bytes", [0])))] if memory else []),
            size_text(entry["bytes"]["wan"]),
            size_text(entry["bytes"]["building"]),
        )
    console.print(table)
    own = {name: scenario.variant(name) if scenario.variants else scenario for name in found}
    for name, entry in found.items():
        if words := predicted_rates_text(name, step_work(own[name]), entry["step_time_s"]):
            console.print(words)
        waiting = "pipeline bubbles" if "schedule" in entry else "waiting for others"
        console.print(f"{name}: {describe_time_split(entry, waiting)}.")
        if words := _latency_words(entry):
            console.print(f"{name}: {words}.")
        for what, key in (
            ("layers by stage", "layers_per_stage"),
            ("microbatches by replica", "microbatches_per_replica"),
        ):
            if entry.get(key):
                console.print(f"{name}: {what} {', '.join(map(str, entry[key]))}.")
        if "searched" in entry:
            console.print(f"{name}: {_searched_words(entry['searched'])}.")
    print_training_steps((entry.get("training_steps", 1) for entry in found.values()), console)
    presets: dict[str, list[str]] = {}
    for name in found:
        if words := _preset_words(own[name]):
            presets.setdefault(words, []).append(name)
    for words, names in presets.items():
        console.print(f"{', '.join(names)}: {words}.", soft_wrap=True)
    print_not_emulated((what for entry in found.values() for what in entry.get("not_emulated", ())), console)


def _latency_words(entry: Mapping[str, Any]) -> str:
    """Describe the latency of a request or token; empty if the step serves none."""
    for key, what, shares in (
        ("latency", "a request's latency", {"p50": "p50", "p99": "p99", "p999": "p99.9"}),
        ("token", "a token", {"p50": "p50", "p99": "p99"}),
    ):
        if key in entry:
            said = ", ".join(f"{name} {time_text(entry[key][share])}" for share, name in shares.items())
            return f"{what}: {said}"
    return ""


def _preset_words(variant: Scenario) -> str:
    """Describe what the variant's preset sets, unless overridden; empty without a preset."""
    if variant.preset is None:
        return ""
    data = variant.to_data()
    values = {path: look_up(data, *path.split(".")) for path, _ in preset_changes(variant.preset, data)}
    said = [
        f"{path} {', '.join(value) if isinstance(value, list) else value}"
        for path, value in values.items()
        if not str(value).startswith("0 ")  # no cost
    ]
    return f"preset {variant.preset}: {'; '.join(said)}"


def _print_ranks(scenario: Scenario, variants: Iterable[str]) -> None:
    """Print which ranks of its trace a recorded job's ranks play, if they are reordered."""
    console = Console(highlight=False)
    for name in variants if scenario.variants is not None else [scenario.name]:
        own = scenario if scenario.variants is None else scenario.variant(name)
        if (ranks := ranks_of_trace(own)) is not None:
            console.print(
                f"{name}: ranks 0, 1, ... are the trace's {', '.join(map(str, ranks))}.", soft_wrap=True
            )


def _searched_words(found: Mapping[str, Any]) -> str:
    """Describe how good a schedule found by search is, compared with the named ones."""
    step_s = found["step_s"]
    words = f"{time_text(step_s)} for the pipeline alone"
    for chunks, bound_s in found["bounds_s"].items():
        stages = "one stage per rank" if chunks == "1" else "two, there and back,"
        best = step_s < bound_s * (1 + PROVEN)
        words += f"; no schedule with {stages} "
        words += (
            "is faster" if best else f"takes less than {time_text(bound_s)} ({1 - bound_s / step_s:.1%} less)"
        )
    if found["known"]:
        name, known_s = min(found["known"].items(), key=lambda entry: entry[1])
        words += f"; of the known schedules with the same memory {name} is the fastest, {time_text(known_s)}"
    return words
