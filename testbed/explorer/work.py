"""What a step has to compute, however it is spread: a bound on its time, and its rates."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.config import Scenario
from testbed.job.hardware import slowdowns_of
from testbed.job.workload import workload_of
from testbed.model.closed_form import sequences
from testbed.scale import UNSCALED
from testbed.workload.stages import layers_of, scores_of

PASSES = 3  # over the parameters: forward, gradients of inputs, of weights
FLOPS = 2  # of a token and a parameter that works on it, each time (arXiv:2001.08361, section 2.1)


@dataclass(frozen=True)
class StepWork:
    """Of a step: tokens; seconds that computing alone takes, spread over all accelerators as quick as they are.

    utilisation: part of the accelerators' peak that computing reaches while it lasts.
    """

    tokens: int
    computing_s: float
    utilisation: float

    def tokens_per_s(self, step_time_s: float) -> float:
        """Of all accelerators together."""
        return self.tokens / step_time_s

    def model_flops_utilisation(self, step_time_s: float) -> float:
        """MFU: what the model's own arithmetic is of the accelerators' peak (arXiv:2204.02311, appendix B)."""
        return self.utilisation * self.computing_s / step_time_s


@dataclass(frozen=True)
class RecordedWork:
    """Of a step that was recorded. source: the file or folder; computing_s: of the rank that computes most."""

    source: str
    computing_s: float


def recorded_work(scenario: Scenario) -> RecordedWork | None:
    """Of a scenario with a trace; None of others. ConfigError."""
    spec = scenario.workload
    if not spec.recorded:
        return None
    workload = workload_of(scenario, scenario.topology.resolve(), UNSCALED)
    return RecordedWork(str(spec.trace or spec.chakra), workload.compute_s)


def step_work(scenario: Scenario) -> StepWork | None:
    """Of a scenario with `parallelism`; None where its workload names no model."""
    workload = scenario.workload
    if workload.model is None or workload.parallelism is None:
        return None
    blocks, before, after = layers_of(workload.model)
    scores = scores_of(workload).parameters * len(blocks)
    active = sum(layer.active for layer in (*blocks, before, after)) + scores
    tokens = sequences(scenario) * workload.sequence_length
    assert workload.flops_utilisation is not None
    topology = scenario.topology.resolve()
    slowdowns = slowdowns_of(workload, topology, scenario.rank_hosts(topology))
    ranks = sum(
        1 / slowdowns.get(rank, 1.0) for rank in range(scenario.ranks)
    )  # of the workload's accelerator
    flops = ranks * workload.parallelism.accelerators_per_rank * workload.flops
    computing_s = PASSES * FLOPS * active * tokens / flops
    return StepWork(tokens, computing_s, workload.flops_utilisation)
