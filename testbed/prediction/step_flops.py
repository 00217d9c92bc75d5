"""What a training step has to compute, however it is spread: a bound on its time, and its rates."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.prediction.closed_form import sequences
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import Scenario
from testbed.spec.workload import DATA_PARALLEL, PARALLEL
from testbed.workload.job.job import workload_of
from testbed.workload.job.rank_hardware import slowdowns_of
from testbed.workload.models import parameters
from testbed.workload.stages import layers_of, scores_of

PASSES = 3  # over the parameters: forward, gradients of inputs, of weights
FLOPS = 2  # of a token and a parameter that works on it, each time (arXiv:2001.08361, section 2.1)


@dataclass(frozen=True)
class StepWork:
    """Of a step: tokens; seconds that computing alone takes, spread over all accelerators as quick as they are.

    utilisation: part of the accelerators' peak that the model's own arithmetic reaches while computing lasts.
    sequences: 0 in older searches.
    """

    tokens: int
    computing_s: float
    utilisation: float
    sequences: int = 0

    def tokens_per_s(self, step_time_s: float) -> float:
        """Of all accelerators together."""
        return self.tokens / step_time_s

    def sequences_per_s(self, step_time_s: float) -> float:
        """Of all accelerators together."""
        return self.sequences / step_time_s

    def model_flops_utilisation(self, step_time_s: float) -> float:
        """Return the MFU: the model's own arithmetic as a part of the accelerators' peak.

        By arXiv:2204.02311, appendix B, that is 6 operations for each token and parameter of a matrix that multiplies
        it, the output layer's included (arXiv:2104.04473, equation 3), and those of attention's scores where the
        scenario counts them. Embeddings are looked up, and norms are next to nothing.
        """
        return self.utilisation * self.computing_s / step_time_s


def step_work(scenario: Scenario) -> StepWork | None:
    """Of a scenario that trains a model; None of any other."""
    workload = scenario.workload
    if workload.model is None or workload.described_kind not in (DATA_PARALLEL, PARALLEL):
        return None
    blocks, before, after = layers_of(workload.model)
    scores = scores_of(workload).parameters * len(blocks)
    arithmetic = active = sum(layer.active for layer in (*blocks, before, after)) + scores
    if workload.parallelism is None:
        # as its computing is counted: with the embeddings, which are no stage's
        active = sum(parameter.active for parameter in parameters(workload.model)) + scores
        many, each = scenario.ranks * workload.local_batch_size, 1
    else:
        many, each = sequences(scenario), workload.parallelism.accelerators_per_rank
    many *= workload.training_steps_per_step
    tokens = many * workload.sequence_length
    assert workload.flops_utilisation is not None
    slowdowns = slowdowns_of(workload, scenario.rank_hosts(scenario.topology.resolve()))
    # ranks with the workload's accelerator that would compute as quickly
    ranks = sum(1 / slowdowns.get(rank, 1.0) for rank in range(scenario.ranks))
    computing_s = PASSES * FLOPS * active * tokens / (ranks * each * workload.flops)
    return StepWork(tokens, computing_s, workload.flops_utilisation * arithmetic / active, many)


@dataclass(frozen=True)
class RecordedWork:
    """Of a step that was recorded. source: the file or folder; computing_s: of the rank that computes most."""

    source: str
    computing_s: float


def recorded_work(scenario: Scenario) -> RecordedWork | None:
    """Of a scenario with a trace; None of others. ConfigError."""
    spec = scenario.workload
    if not spec.is_recorded:
        return None
    workload = workload_of(scenario, scenario.topology.resolve(), UNSCALED)
    return RecordedWork(str(spec.trace or spec.chakra), workload.compute_s)


def least_step_s(scenario: Scenario) -> float | None:
    """Seconds that computing alone takes; None where that is not known. ConfigError."""
    work = step_work(scenario) or recorded_work(scenario)
    return None if work is None else work.computing_s
