"""Commands of the step model: `plan` and `predict` a step, `calibrate` the model to this machine."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from testbed.cli.console import (
    console_of_tables,
    plain_table,
    show_progress,
    show_schedule_search,
    warn_unused_inputs,
)
from testbed.cli.experiments import run as experiment
from testbed.cli.options import (
    MODEL_CLOCK,
    RUN_CLOCK,
    JobsOption,
    JsonOption,
    OutputOption,
    OverridesOption,
    ScenarioArgument,
)
from testbed.measure.results.run_directory import default_path
from testbed.measure.results.serving_result import Serving
from testbed.measure.results.serving_summary import predicted_latencies
from testbed.measure.results.training_summary import describe_time_split, summarise_prediction
from testbed.prediction.dry_run import dry_runs, schedule_csv
from testbed.prediction.step_flops import step_work
from testbed.prediction.step_prediction import MAX_PACKETS
from testbed.show.report import print_summary
from testbed.show.report.exploration_findings import describe_short_queues
from testbed.show.report.serving import describe_serving
from testbed.show.report.terminal import FEW, print_not_emulated, print_training_steps
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
    memory = any("peak_activation_bytes" in entry for entry in found.values())
    alive = ["activations\nalive"] if memory else []
    table = plain_table(["variant"], ("step time", *alive, "between\nbuildings", "inside\nbuildings"))
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
    """Describe the settings of the variant's preset that are not overridden; empty without a preset."""
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
    """Print which ranks of the trace a recorded job's ranks replay, if they are reordered."""
    console = Console(highlight=False)
    for name in variants if scenario.variants is not None else [scenario.name]:
        own = scenario if scenario.variants is None else scenario.variant(name)
        if (ranks := ranks_of_trace(own)) is not None:
            console.print(
                f"{name}: ranks 0, 1, ... are the trace's {', '.join(map(str, ranks))}.", soft_wrap=True
            )


def _searched_words(found: Mapping[str, Any]) -> str:
    """Describe the quality of a schedule found by search, compared with the named ones."""
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


def predict(
    scenario: ScenarioArgument,
    overrides: OverridesOption = None,
    clock: Annotated[
        Literal["virtual", "real"],
        typer.Option(help="Clock whose calibration the model uses, see `testbed calibrate`."),
    ] = MODEL_CLOCK,
    packets: Annotated[
        int,
        typer.Option(
            min=0,
            help="Maximum number of packets to simulate individually, about 10 us each: those of a step, the steps "
            "before it and, on lossy links, all loss draws. Steps with more are simulated as fluid flows.",
        ),
    ] = MAX_PACKETS,
    as_json: JsonOption = False,
) -> None:
    """Predict a scenario's step times with a model of its network; nothing is built or sent.

    The model covers paths under the policy, fair sharing, latency, the effect of loss on connections, software cost per
    message, and the traffic of each collective. It does not cover full queues (but it reports short ones), events,
    background traffic, or your own protocols.
    """
    began_s = time.perf_counter()
    with show_schedule_search(Console(stderr=True, highlight=False)):
        loaded = load_scenario(scenario, overrides or [])
        predicted = experiment.predict(loaded, clock, packets)
    warn_unused_inputs(loaded)
    found = predicted.variants
    took_s = time.perf_counter() - began_s
    if as_json:
        print(json.dumps({name: asdict(entry) for name, entry in found.items()}, indent=1))
        return
    console = console_of_tables()
    table = plain_table(["variant"], ("predicted\nstep time", "against\nthe first", "between\nbuildings"))
    first_s = next(iter(found.values())).step_time_s
    for name, entry in found.items():
        step_s = entry.step_time_s
        table.add_row(name, time_text(step_s), f"{first_s / step_s:.2f}x", size_text(entry.wan_bytes))
    console.print(table)
    variants = {name: loaded.variant(name) for name in loaded.variant_names}
    for name, entry in found.items() if len(found) <= FEW else ():
        if words := predicted_rates_text(name, step_work(variants[name]), entry.step_time_s):
            console.print(words)
    print_training_steps((one.workload.training_steps_per_step for one in variants.values()), console)
    for name, entry in found.items():
        served = None if entry.serving is None else Serving.model_validate(entry.serving)
        for words in describe_serving(name, served):
            console.print(words, soft_wrap=True)
    for what in dict.fromkeys(what for entry in found.values() for what in entry.unmodelled):
        names = [name for name, entry in found.items() if what in entry.unmodelled]
        of = "" if len(names) == len(found) else f" (of {', '.join(names)})"
        console.print(f"\nnot included, as the model does not cover it: {what}{of}", soft_wrap=True)
    if short := list(dict.fromkeys(one for entry in found.values() for one in entry.short_queues)):
        console.print(f"\n{describe_short_queues(short)}", soft_wrap=True)
    scaled = "" if predicted.scale.is_one else f", {predicted.scale}"
    how = ", packet by packet" if all(entry.by_packets for entry in found.values()) else ""
    console.print(
        f"\nBy the model with {predicted.calibration.words}{scaled}, in {time_text(took_s)}{how}; "
        f"`{_measuring_command(scenario, overrides or [], clock)}` measures.",
        soft_wrap=True,
    )


def _measuring_command(scenario: Path, overrides: Sequence[str], clock: str) -> str:
    """Return the `testbed run` command that measures the predicted scenario."""
    command = ["testbed", "run", str(scenario), *(word for one in overrides for word in ("--set", one))]
    return shlex.join([*command, *(["--clock", clock] if clock != RUN_CLOCK else [])])


def calibrate(
    clock: Annotated[
        Literal["virtual", "real"], typer.Option(help="The clock to calibrate for.")
    ] = MODEL_CLOCK,
    output: OutputOption = None,
    keep: Annotated[
        Path | None, typer.Option(help="File for the result (default: where runs look for it).")
    ] = None,
    jobs: JobsOption = None,
) -> None:
    """Calibrate the step model: run probes on the emulated network and fit the model to them.

    The result is stored per clock and used by run, predict and explore. It covers the effect of loss under each
    congestion control, the cost of other kinds of loss recovery, and, on the real clock, software cost per message and
    byte. It takes a few minutes.
    """
    folder = output if output is not None else default_path(f"calibration-{clock}")
    with show_progress(Console(stderr=True, highlight=False)) as listener:
        done = experiment.calibrate(clock, folder, jobs, keep, listener)
    found = done.fit
    print_summary(done.result, Console(highlight=False))
    console = Console(highlight=False)
    headings = "window under loss /\ntextbook window", "recovery time\nin round trips"
    losses = found.calibration.losses.items()
    rows = [(name, f"{one.window:.2f}", f"{one.recovery:.2f}") for name, one in losses]
    console.print(plain_table(["congestion control"], headings, rows=rows))
    recoveries = [(name, f"{factor:.2f}") for name, factor in found.calibration.mending.items()]
    console.print(plain_table(["loss recovery"], ["time /\nclosed form"], rows=recoveries))
    if found.calibration.message_s is not None and found.calibration.byte_s is not None:
        each, gigabyte = time_text(found.calibration.message_s), time_text(found.calibration.byte_s * 1e9)
        console.print(f"Software takes {each} per message and {gigabyte} per gigabyte, at each end.")
    worst = max(found.errors, key=lambda name: abs(found.errors[name]))
    console.print(
        f"Model error over {len(found.errors)} probes: median {found.median_error:.1%}, "
        f"worst {abs(found.errors[worst]):.1%} ({worst}).\nSaved to {done.kept}.",
        soft_wrap=True,
    )
