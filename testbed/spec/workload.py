"""The work of ranks in a step: training, a recorded job, requests to serve, or bare collectives and messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from testbed.plugins import OWN_FILE
from testbed.spec.base_model import Finding, StrictModel
from testbed.spec.catalogue import accelerators
from testbed.spec.hardware import Hardware
from testbed.spec.parallelism import (
    KIND_ALGORITHMS,
    MAPPING,
    PLACEMENT,
    RECORDED_JOB_KEYS,
    ParallelismSpec,
    ScheduleSpec,
    StageSpec,
)
from testbed.spec.replicas import REDUCED_BITS, LocalSgdSpec
from testbed.spec.serving import InferenceSpec
from testbed.spec.transformer import MODEL, ModelSpec
from testbed.spec.value_types import (
    ACCELERATOR,
    ACCELERATORS,
    COLLECTIVE,
    COMPUTE_DTYPES,
    OPTIONS,
    Count,
    CountOrNone,
    Dscp,
    Duration,
    DurationOrNone,
    FlopRateOrNone,
    ShareOrNone,
    Size,
    choice,
    expected_algorithm,
    pattern,
    registered_name,
)
from testbed.spec.yaml_loader import show

UTILISATION = 0.4
ATTENTION_SCORES = ("left_out", "causal", "full", "recomputed")
ITEMSIZES = {"float32": 4, "float64": 8}
DATA_PARALLEL, COLLECTIVES, PARALLEL = "data_parallel", "collectives", "parallel_training"
TRACE, CHAKRA, INFERENCE = "trace", "chakra", "inference"
REPLICATE = "data_parallel_replicate"
WORKLOAD_KEYS = {
    TRACE: ("trace",),
    CHAKRA: ("chakra",),
    INFERENCE: ("inference",),
    PARALLEL: ("parallelism",),
    DATA_PARALLEL: ("model",),
    COLLECTIVES: ("collectives", "exchange"),
}
"""Workloads with their own keys. A file describes the first workload for which it sets a key."""

PLAN_KEYS = (
    *("model", "parallelism", "schedule", "stage", "outer", "training_steps"),
    *("collectives", "exchange", "compute_s"),
)
"""Keys that a plan or a trace replaces."""


_ALGORITHM = rf"[a-z][a-z0-9_]*|{OWN_FILE.pattern}"


class CollectiveSpec(StrictModel):
    """One collective over all ranks."""

    collective: Annotated[str, COLLECTIVE]
    """Which collective. all_to_all_v: every pair of ranks exchanges a different size, from nothing to its share of
    `size`.
    """
    size_bytes: Size
    """Size of a rank's larger array: the output of a gather, the input of a scatter or exchange."""
    algorithm: Annotated[str, pattern(_ALGORITHM, "the name of an algorithm, such as auto or ring")] = "auto"
    """An algorithm, under the same names as in `testbed bench`; auto: chosen by size and buildings."""
    dscp: Dscp = 0
    """DSCP of its packets."""


class ExchangeSpec(StrictModel):
    """Small messages of a two-stage pipeline, in both directions, between the first and the last building."""

    messages: Count
    """Number of microbatches, one after the other."""
    size_bytes: Size
    """Size of an activation, and of its gradient."""
    compute_s: Duration = 0.0
    """Compute time of the second stage between the two messages."""
    dscp: Dscp = 0
    """DSCP of the packets."""


class WorkloadSpec(StrictModel):
    """A step: training of a model, a recorded job, requests to serve, or bare collectives and messages.

    All collectives start at the beginning, in their order; messages are exchanged meanwhile.
    """

    derived_fields = frozenset({"flops_utilisation"})

    model: Annotated[str | ModelSpec | None, MODEL] = None
    """A published model, or its dimensions."""
    plan: Annotated[str | None, registered_name("workloads")] = None
    """A workload by name, or your own as FILE.py:FUNCTION, which yields every rank's plan; in place of a model or
    collectives. data_parallel, collectives, parallel_training, trace, chakra and inference follow from the keys
    `model`, `collectives`, `parallelism`, `trace`, `chakra` and `inference` and need not be named.
    """
    trace: str | None = None
    """A recorded step of a real job, written by `testbed capture`, in place of a model or collectives. The scenario has
    as many ranks as the trace.
    """
    chakra: str | None = None
    """A folder of Chakra execution traces, one NAME.RANK.et per rank, in place of a model or collectives; or
    FOLDER/NAME if it has several. Compute nodes that give only operations and bytes are timed on `accelerator`.
    """
    placement: Annotated[tuple[str, ...] | None, PLACEMENT] = None
    """With `trace` or `chakra`: kinds of its communication, outermost first. Ranks joined by the last kind are
    adjacent, then those joined by the one before; so the first kind crosses buildings. Default: as_recorded, ranks in
    their recorded order.
    """
    mapping: Annotated[str | tuple[int, ...] | None, MAPPING] = None
    """With `trace` or `chakra`: which rank of the scenario replays each rank of the trace, in the order of `placement`:
    consecutive (the default), scattered, topology_aware, by_distance, or a list, as in `parallelism.mapping`.
    """
    algorithms: Annotated[Mapping[str, str] | None, KIND_ALGORITHMS] = None
    """With `trace` or `chakra`: algorithms by kind of communication, such as {shard: hierarchical}, for collectives
    that have an algorithm of that name. Other collectives use the trace's own algorithm. If it has none, all-reduces
    use the scenario's `algorithms`, and the others use auto.
    """
    inference: InferenceSpec | None = None
    """Requests that nodes of accelerator cards serve, in place of training; needs buildings with `nodes`. One step has
    all requests.
    """
    options: Annotated[Mapping[str, Any] | None, OPTIONS] = None
    """Keyword arguments for the function of `plan`."""
    parallelism: ParallelismSpec | None = None
    """How training is spread over ranks; default: each rank trains a replica of the model."""
    schedule: ScheduleSpec | None = None
    """Microbatches and their order, with `parallelism`; default: 1F1B with 8."""
    stage: StageSpec | None = None
    """Times and sizes of a pipeline stage, in place of a model, with `parallelism`."""
    outer: LocalSgdSpec | None = None
    """Local SGD: replicas of `parallelism` exchange weight changes every few steps, instead of gradients in every step.
    """
    training_steps: CountOrNone = None
    """Training steps per step of the scenario, with `parallelism`; default: with `outer` the steps from one exchange to
    the next, otherwise 1. All variants must have the same number, so that their times can be compared.
    """
    collectives: tuple[CollectiveSpec, ...] | None = None
    """Collectives to run in place of training a model."""
    exchange: ExchangeSpec | None = None
    """Messages of a pipeline, in addition to `collectives`."""
    compute_s: DurationOrNone = None
    """Compute time before `collectives` start, where there is no model."""
    tuning: str | None = None
    """A tuning table for algorithm auto, written by `testbed bench --tune`, with sizes at `size_scale` 1; default: a
    rule by size and buildings.
    """
    gradient_dtype: Annotated[str, choice("a type", tuple(ITEMSIZES))] = "float32"
    """Data type of the elements that are reduced or moved."""
    bucket_cap_bytes: Size = 25 * 1024**2
    """Gradients are reduced in buckets; a bucket is closed when it reaches this size."""
    first_bucket_cap_bytes: Size = 1024**2
    """Size of the first bucket, smaller so that communication starts early."""
    sequence_length: Count = 8192
    """Tokens per sequence."""
    attention_scores: Annotated[str, choice("a count", ATTENTION_SCORES)] = "left_out"
    """Operations for attention scores in addition to 6 per parameter and token. full: 12 L s d per token for L layers
    of width d and sequences of s (PaLM, arXiv:2204.02311, appendix B). causal: half of that, as in kernels that skip
    masked scores. recomputed: 14 L s d, which PyTorch and `testbed capture` count, because the backward pass recomputes
    the scores. left_out: none.
    """
    local_batch_size: Count = 1
    """Sequences per rank and step."""
    accelerator: Annotated[str | None, ACCELERATOR] = None
    """Accelerator of each rank. It determines the peak, from its data sheet, and the utilisation that training reaches.
    """
    compute_dtype: Annotated[str, choice("a type", COMPUTE_DTYPES)] = "bf16"
    """Data type of the accelerator's matrix products."""
    peak_flops: FlopRateOrNone = None
    """Peak compute speed of one rank, in place of an accelerator's."""
    flops_utilisation: ShareOrNone = None
    """Share of peak compute that training reaches; default: the accelerator's, or 40 %."""

    @classmethod
    def with_defaults(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill in the utilisation that training reaches on the accelerator."""
        if data.get("model") is None and data.get("chakra") is None:
            return data
        name = data.get("accelerator")
        entry = accelerators().get(name) if isinstance(name, str) else None
        return {"flops_utilisation": float(entry["utilisation"]) if entry else UTILISATION, **data}

    def checks(self) -> Iterator[Finding]:
        """Check that the keys describe exactly one workload."""
        if self.model is not None and self.peak_flops is None and self.accelerator is None:
            expected = f"an accelerator ({', '.join(ACCELERATORS)}), or peak_flops"
            yield Finding(("accelerator",), "nothing", expected)
        if self.peak_flops is not None and self.accelerator is not None:
            yield Finding(("peak_flops",), "peak_flops with an accelerator", "only one of the two")
        if self.model is not None and (self.collectives or self.exchange or self.compute_s):
            yield Finding(("model",), "a model with collectives, exchange or compute", "only one of the two")
        if not self.is_recorded:
            yield from self.reject(RECORDED_JOB_KEYS, "without trace or chakra", "one of them as well")
        if self.plan is not None and self.plan not in WORKLOAD_KEYS:
            yield from self._conflicts("a plan", "trace", "chakra", "inference")
        elif self.trace is not None:
            yield from self._conflicts("a trace", "options", "chakra", "inference")
        elif self.chakra is not None:
            yield from self._conflicts("traces", "options", "inference")
        elif self.inference is not None:
            yield from self._conflicts("requests", "options")
        else:
            yield from self._described()

    def _described(self) -> Iterator[Finding]:
        """Check a workload that is described by its keys, with or without its name."""
        if self.plan is not None and self.plan != self.described_kind:
            yield self._plan_mismatch()
            return
        yield from self.reject(["options"], "without a plan", "a plan as well")
        if self.model is None and not self.collectives and self.exchange is None and self.stage is None:
            expected = "a model, or collectives, or exchange, or a stage, or a plan, or traces, or inference"
            yield Finding(("model",), "nothing", expected)
        if self.parallelism is None:
            needing = ("schedule", "stage", "outer", "training_steps")
            yield from self.reject(needing, "without parallelism", "parallelism as well")
        elif (self.model is None) == (self.stage is None):
            yield Finding(("parallelism",), "parallelism", "either a model or a stage with it")
        else:
            yield from self._outer_findings()
        for position, entry in enumerate(self.collectives or ()):
            if (wanted := expected_algorithm(entry.algorithm, [entry.collective])) is not None:
                yield Finding(("collectives", position, "algorithm"), show(entry.algorithm), wanted)

    def _outer_findings(self) -> Iterator[Finding]:
        """Check that training steps are whole exchange periods, and that replicas have something to exchange."""
        parallelism, outer, steps = self.parallelism, self.outer, self.training_steps
        assert parallelism is not None
        if parallelism.faults is not None:
            excluded = ("outer", "training_steps")
            yield from self.reject(excluded, "with parallelism.faults", "only one of the two")
        if outer is None:
            return
        if steps is not None and steps % outer.period:
            expected = f"a multiple of {outer.period}, training steps from one exchange to the next"
            yield Finding(("training_steps",), str(steps), expected)
        if parallelism.data_parallel_replicate_degree == 1:
            yield Finding(
                ("outer",), "outer without replicas", "data_parallel_replicate_degree of at least 2"
            )
        if outer.bits < REDUCED_BITS and REPLICATE in parallelism.collectives:
            found = f"{outer.bits} with collectives.{REPLICATE}: {parallelism.collectives[REPLICATE]}"
            expected = "the collective left out, as so few bits are gathered and not reduced; or 16 or 32"
            yield Finding(("outer", "bits"), found, expected)

    def _plan_mismatch(self) -> Finding:
        """Report that the named workload does not fit the keys."""
        assert self.plan is not None
        expected = f"{' or '.join(WORKLOAD_KEYS[self.plan])} with it"
        return Finding(
            ("plan",), f"{self.plan} with keys of {self.described_kind or 'no workload'}", expected
        )

    def _conflicts(self, what: str, *more: str) -> Iterator[Finding]:
        """Report keys that a plan or a trace replaces."""
        if self.plan in WORKLOAD_KEYS and self.plan != self.described_kind:
            yield self._plan_mismatch()
        yield from self.reject((*PLAN_KEYS, *more), f"with {what}", "only one of the two")

    @property
    def kind(self) -> str:
        """Name of the workload in the registry or of its file: `plan`, or what the other keys describe."""
        kind = self.plan or self.described_kind
        assert kind is not None  # by the checks
        return kind

    @property
    def described_kind(self) -> str | None:
        """Workload that the keys other than `plan` describe; None if they describe none."""
        described = (name for name, keys in WORKLOAD_KEYS.items() if any(getattr(self, key) for key in keys))
        return next(described, None)

    @property
    def training_steps_per_step(self) -> int:
        """Training steps per step of the scenario."""
        return self.training_steps or (self.outer.period if self.outer else 1)

    @property
    def is_recorded(self) -> bool:
        """Whether ranks replay a trace."""
        return self.trace is not None or self.chakra is not None

    @property
    def itemsize(self) -> int:
        """Bytes per element that is reduced or moved."""
        return ITEMSIZES[self.gradient_dtype]

    @property
    def flops(self) -> float:
        """Compute speed of one rank in flop/s: peak times utilisation. Requires an accelerator or a peak."""
        peak = self.peak_flops
        if self.accelerator is not None:
            peak = float(accelerators()[self.accelerator]["peak"][self.compute_dtype])
        assert peak is not None
        assert self.flops_utilisation is not None
        return peak * self.flops_utilisation

    def flops_of(self, hardware: Hardware) -> float:
        """Return a rank's compute speed in flop/s on other hardware. A compute type needs an accelerator."""
        accelerator = hardware.accelerator or self.accelerator
        if accelerator is None:
            return self.flops
        assert self.flops_utilisation is not None
        entry, own = accelerators()[accelerator], accelerators().get(self.accelerator or "")
        usual = float(own["utilisation"]) if own else UTILISATION
        # the ratio is exactly 1 for the same accelerator
        reached = float(entry["utilisation"]) / usual * self.flops_utilisation
        return float(entry["peak"][hardware.compute_dtype or self.compute_dtype]) * reached

    @property
    def gemm_half_rows(self) -> float:
        """Rows of a matrix at which products run at half the accelerator's speed; 0 if only a peak is given."""
        return float(accelerators()[self.accelerator]["gemm_half_rows"]) if self.accelerator else 0.0
