"""Export a planned or measured job as Chakra execution traces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import BadInput, did_you_mean
from testbed.measure.results.records import SAMPLES
from testbed.measure.results.result import SUMMARY, Result
from testbed.measure.results.run_directory import BadResult
from testbed.measure.results.summary import gather_steps, middle_step
from testbed.measure.results.training_summary import step_spans
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.job import Workload, workload_of
from testbed.workload.job.kinds import JobRequest
from testbed.workload.job.kinds.trace import place_trace, recorded_trace
from testbed.workload.plan import Block, Computing
from testbed.workload.trace_conversion import Durations, TraceInfo, trace_of
from testbed.workload.traces.chakra import write_job
from testbed.workload.traces.chakra.folder import NAME, Times
from testbed.workload.traces.trace import Compute, JobTrace

SCENARIO = "scenario.yaml"


@dataclass(frozen=True)
class ExportedJob:
    """A job to export, in real units.

    Attributes:
        name: Name of the variant.
        scenario: Scenario of the variant.
        workload: Workload with its plan.
        algorithm: Algorithm of collectives that do not name one.
        trace: The job as a trace.
        times: Start and duration of each operation in a run's median step; None if nothing was measured.
    """

    name: str
    scenario: Scenario
    workload: Workload
    algorithm: str
    trace: JobTrace
    times: Times | None = None

    def lost(self) -> list[str]:
        """Describe the parts of the plan that a trace cannot represent."""
        plan = self.workload.plan
        operations = [one for own in plan.ranks for one in own]
        holds = (one.holds or one.gives for one in operations if isinstance(one, Computing))
        lost = {
            "in-order receives: a message leaves only once its receiver waits for it": plan.holds_receivers,
            "compute jitter": plan.jitter,
            "traffic classes (DSCP) of operations": any(plan.dscps.values()),
            "memory windows: their blocks become messages": any(isinstance(one, Block) for one in operations),
            "activation memory": any(holds),
        }
        return [words for words, is_used in lost.items() if is_used]


def load_job(source: Path, overrides: Sequence[str] = (), variant: str | None = None) -> ExportedJob:
    """Load a job from a scenario, or from the folder of a run; `variant` is None for the first one.

    BadInput is raised for an unknown variant; ConfigError or BadResult for invalid files.
    """
    if (source / SUMMARY).is_file():
        if overrides:
            raise BadInput(where=str(source), got=f"{overrides[0]} for a run", expected="a run as it was")
        return _measured(source, variant)
    scenario = load_scenario(source, overrides)
    return _planned(scenario, _choose_variant(source, scenario.variant_names, variant), str(source))


def _choose_variant(source: Path, names: Sequence[str], variant: str | None) -> str:
    if variant is not None and variant not in names:
        raise BadInput(where=f"{source}: variant", got=variant, expected=did_you_mean(variant, names))
    return variant or names[0]


def _planned(scenario: Scenario, name: str, source: str) -> ExportedJob:
    algorithm = None if scenario.variants is not None else scenario.named_algorithms[name]
    own = scenario.variant(name)
    workload = workload_of(own, own.topology.resolve(UNSCALED), UNSCALED)
    if workload.dispatching is not None:
        expected = "turns without retry: a trace has what is known before a step begins"
        raise BadInput(
            where=f"{source}, {name}: workload.inference.dispatch", got="on arrival", expected=expected
        )
    return ExportedJob(
        name, own, workload, algorithm or own.algorithms[0], _trace(own, workload, f"{source}, {name}")
    )


def _trace(
    scenario: Scenario, workload: Workload, origin: str, durations_s: Durations | None = None
) -> JobTrace:
    """Return the plan as a trace (a job from a trace keeps it); `durations_s` are measured compute durations."""
    spec = scenario.workload
    if spec.is_recorded:
        request = JobRequest.of(scenario, scenario.topology.resolve(UNSCALED), UNSCALED)
        given = place_trace(recorded_trace(spec), request)
        return given if durations_s is None else replace(_set_durations(given, durations_s), origin=origin)
    about = TraceInfo(spec.gradient_dtype, origin, spec.accelerator or "")
    return trace_of(workload.plan, about, measured_s=durations_s)


def _set_durations(trace: JobTrace, durations_s: Durations) -> JobTrace:
    """Set compute durations; a plan's operations have the same numbers as the trace's nodes."""
    ranks = [
        [
            replace(node, duration_s=durations_s[rank, number]) if isinstance(node, Compute) else node
            for number, node in enumerate(own)
        ]
        for rank, own in enumerate(trace.ranks)
    ]
    return replace(trace, ranks=tuple(map(tuple, ranks)))


def _measured(folder: Path, variant: str | None) -> ExportedJob:
    """Load the median step of a run, with its compute durations."""
    result = Result.open(folder)
    name = _choose_variant(folder, [one.name for one in result.variants], variant)
    planned = _planned(load_scenario(folder / SCENARIO), name, str(folder))
    workload, scale = planned.workload, result.conversion
    samples = [own for own in _samples(folder / SAMPLES) if own["variant"] == name]
    for sample in samples:
        rank, number = sample["rank"], sample.get("index", 0)
        if rank >= len(workload.plan.ranks) or number >= len(workload.plan.ranks[rank]):
            got = f"operation {number} of rank {rank}, which its scenario does not have"
            raise BadResult(
                f"{folder / SAMPLES}: {name}: got {got}, expected the plan of {folder / SCENARIO}"
            )
    try:
        step = middle_step(gather_steps(samples, len(workload.plan.ranks)))
    except ValueError as error:
        raise BadResult(f"{folder / SAMPLES}: {name}: {error}") from None
    spans = step_spans(samples, step, workload.plan)
    times = [[(scale.real_s(begin), scale.real_s(end - begin)) for begin, end in own] for own in spans]
    durations_s = {
        (rank, number): times[rank][number][1]
        for rank, own in enumerate(workload.plan.ranks)
        for number, one in enumerate(own)
        if isinstance(one, Computing)
    }
    origin = f"{folder}, {name}, step {step.index} as measured"
    trace = _trace(planned.scenario, workload, origin, durations_s)
    return ExportedJob(name, planned.scenario, workload, planned.algorithm, trace, times)


def _samples(path: Path) -> list[Mapping[str, Any]]:
    """Read samples in emulated units."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise BadResult(f"{path}: {error}, expected the samples of a run") from None


_OF_THE_NETWORK = ("gradient_dtype", "tuning")
"""Workload keys that traces need as well."""


def export_chakra(job: ExportedJob, folder: Path, name: str = NAME) -> list[Path]:
    """Write NAME.RANK.et per rank, the groups and a scenario; return all files; may raise TraceError."""
    written = write_job(job.trace, folder, name, job.times)
    data = job.scenario.model_copy(update={"explore": None}).to_data()  # the traces replace most of it
    workload = data["workload"]
    data["workload"] = {"chakra": ".", **{key: workload[key] for key in _OF_THE_NETWORK if key in workload}}
    data["algorithms"] = [job.algorithm]
    path = folder / SCENARIO
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return [*written, path]
