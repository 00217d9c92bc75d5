"""The arithmetic of a training step with any parallelism: a lower bound on its time, and throughput rates."""

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

PASSES = 3  # passes over the parameters: forward, gradients of inputs, gradients of weights
FLOPS = 2  # per token and active parameter in each pass (arXiv:2001.08361, section 2.1)


@dataclass(frozen=True)
class StepWork:
    """The work of a training step.

    Attributes:
        tokens: Tokens per step.
        computing_s: Compute time if it is spread evenly over all accelerators at their speed.
        utilisation: Fraction of the accelerators' peak that the model's own arithmetic reaches during compute.
        sequences: Sequences per step; 0 in older searches.
    """

    tokens: int
    computing_s: float
    utilisation: float
    sequences: int = 0

    def tokens_per_s(self, step_time_s: float) -> float:
        """Return the throughput of all accelerators together."""
        return self.tokens / step_time_s

    def sequences_per_s(self, step_time_s: float) -> float:
        """Return the throughput of all accelerators together."""
        return self.sequences / step_time_s

    def model_flops_utilisation(self, step_time_s: float) -> float:
        """Return the MFU: the model's own arithmetic as a fraction of the accelerators' peak.

        Following arXiv:2204.02311, appendix B, it counts 6 operations per token and matrix parameter, including the
        output layer (arXiv:2104.04473, equation 3). Attention scores count if the scenario counts them. Embeddings are
        look-ups, and norms are negligible.
        """
        return self.utilisation * self.computing_s / step_time_s


def step_work(scenario: Scenario) -> StepWork | None:
    """Return the work of a scenario that trains a model; None for other scenarios."""
    workload = scenario.workload
    if workload.model is None or workload.described_kind not in (DATA_PARALLEL, PARALLEL):
        return None
    blocks, before, after = layers_of(workload.model)
    scores = scores_of(workload).parameters * len(blocks)
    arithmetic = active = sum(layer.active for layer in (*blocks, before, after)) + scores
    if workload.parallelism is None:
        # counted like its compute, with the embeddings, which belong to no stage
        active = sum(parameter.active for parameter in parameters(workload.model)) + scores
        many, each = scenario.ranks * workload.local_batch_size, 1
    else:
        many, each = sequences(scenario), workload.parallelism.accelerators_per_rank
    many *= workload.training_steps_per_step
    tokens = many * workload.sequence_length
    assert workload.flops_utilisation is not None
    slowdowns = slowdowns_of(workload, scenario.rank_hosts(scenario.topology.resolve()))
    # the equivalent number of ranks with the workload's accelerator
    ranks = sum(1 / slowdowns.get(rank, 1.0) for rank in range(scenario.ranks))
    computing_s = PASSES * FLOPS * active * tokens / (ranks * each * workload.flops)
    return StepWork(tokens, computing_s, workload.flops_utilisation * arithmetic / active, many)


@dataclass(frozen=True)
class RecordedWork:
    """The work of a recorded step: its file or folder, and the compute time of the rank that computes most."""

    source: str
    computing_s: float


def recorded_work(scenario: Scenario) -> RecordedWork | None:
    """Return the work of a scenario with a trace, or None for others; raise ConfigError if the trace is invalid."""
    spec = scenario.workload
    if not spec.is_recorded:
        return None
    workload = workload_of(scenario, scenario.topology.resolve(), UNSCALED)
    return RecordedWork(str(spec.trace or spec.chakra), workload.compute_s)


def least_step_s(scenario: Scenario) -> float | None:
    """Return the seconds that compute alone takes, or None if unknown; raise ConfigError if a trace is invalid."""
    work = step_work(scenario) or recorded_work(scenario)
    return None if work is None else work.computing_s
