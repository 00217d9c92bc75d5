"""The command `predict`: predict a scenario's step times with the model alone."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from testbed.cli.console import console_of_tables, show_schedule_search, warn_unused_inputs
from testbed.cli.experiments import predict as predicting
from testbed.cli.options import MODEL_CLOCK, RUN_CLOCK, JsonOption, OverridesOption
from testbed.measure.results.serving_result import Serving
from testbed.prediction.step_flops import step_work
from testbed.prediction.step_prediction import MAX_PACKETS
from testbed.show.report.exploration_findings import describe_short_queues
from testbed.show.report.serving import describe_serving
from testbed.show.report.terminal import FEW, print_training_steps
from testbed.show.report.variant_text import predicted_rates_text
from testbed.spec.scenario import load_scenario
from testbed.spec.units import size_text, time_text


def predict(
    scenario: Annotated[Path, typer.Argument(help="A scenario file.")],
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
    message, and the traffic of each collective. It does not cover full queues, but reports which are short; nor events,
    background traffic, or your own protocols.
    """
    began_s = time.perf_counter()
    with show_schedule_search(Console(stderr=True, highlight=False)):
        loaded = load_scenario(scenario, overrides or [])
        predicted = predicting.predict(loaded, clock, packets)
    warn_unused_inputs(loaded)
    found = predicted.variants
    took_s = time.perf_counter() - began_s
    if as_json:
        print(json.dumps({name: asdict(entry) for name, entry in found.items()}, indent=1))
        return
    console = console_of_tables()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("variant", overflow="fold")
    for heading in ("predicted\nstep time", "against\nthe first", "between\nbuildings"):
        table.add_column(heading, justify="right", no_wrap=True)
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
    """Return the `testbed run` command that measures what was predicted."""
    command = ["testbed", "run", str(scenario), *(word for one in overrides for word in ("--set", one))]
    return shlex.join([*command, *(["--clock", clock] if clock != RUN_CLOCK else [])])
