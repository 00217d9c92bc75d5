"""What ranks do in a step, as a scenario says it: a model to train, or collectives and messages by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from testbed.plugins import OWN_FILE
from testbed.spec.base_model import Finding, StrictModel
from testbed.spec.catalogue import accelerators
from testbed.spec.hardware import Hardware
from testbed.spec.parallelism import ParallelismSpec, ScheduleSpec, StageSpec
from testbed.spec.recorded_job import KIND_ALGORITHMS, MAPPING, PLACEMENT, RECORDED_JOB_KEYS
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
    named,
    pattern,
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
"""Names of workloads that go by keys of their own; the first with one of its keys there is what a file describes."""

PLAN_KEYS = (
    *("model", "parallelism", "schedule", "stage", "outer", "training_steps"),
    *("collectives", "exchange", "compute_s"),
)
"""Keys of what a plan or a trace says by itself."""


_ALGORITHM = rf"[a-z][a-z0-9_]*|{OWN_FILE.pattern}"


class CollectiveSpec(StrictModel):
    """One collective over all ranks."""

    collective: Annotated[str, COLLECTIVE] = Field(
        description="Which one. all_to_all_v: every pair of ranks has another size, from nothing to its part of `size`."
    )
    size_bytes: Size = Field(
        alias="size", description="Of a rank's larger array: what it gathers, has to scatter, or to exchange."
    )
    algorithm: Annotated[str, pattern(_ALGORITHM, "the name of an algorithm, such as auto or ring")] = Field(
        default="auto", description="As `testbed bench` takes them; auto: by size and buildings."
    )
    dscp: Dscp = Field(default=0, description="DSCP of its packets.")


class ExchangeSpec(StrictModel):
    """Small messages that a pipeline of two stages sends, there and back, between the first and the last building."""

    messages: Count = Field(description="How many microbatches, one after the other.")
    size_bytes: Size = Field(alias="size", description="Of an activation, and of its gradient.")
    compute_s: Duration = Field(
        default=0.0, alias="compute", description="Computing of the second stage between the two."
    )
    dscp: Dscp = Field(default=0, description="DSCP of the packets.")


class WorkloadSpec(StrictModel):
    """A step: data-parallel training of a model, or collectives and messages by themselves.

    Collectives are all started at the beginning, in their order; messages go on meanwhile.
    """

    computed = frozenset({"flops_utilisation"})

    model: Annotated[str | ModelSpec | None, MODEL] = Field(
        default=None, description="A published model, or dimensions."
    )
    plan: Annotated[str | None, named("workloads")] = Field(
        default=None,
        description="What ranks do, in place of a model or collectives: a workload, or one of your own as "
        "FILE.py:FUNCTION, which yields every rank's plan. data_parallel, collectives, parallel_training, trace, "
        "chakra and inference are what `model`, `collectives`, `parallelism`, `trace`, `chakra` and `inference` "
        "describe, and need not be named.",
    )
    trace: str | None = Field(
        default=None,
        description="A file that says what every rank of somebody's job did in a step, as `testbed capture` writes it, "
        "in place of a model or collectives; as many ranks as it has.",
    )
    chakra: str | None = Field(
        default=None,
        description="A folder of Chakra execution traces, one NAME.RANK.et per rank, in place of a model or "
        "collectives; or FOLDER/NAME where it has several. Computing of which they say operations and bytes alone "
        "takes what it takes on `accelerator`.",
    )
    placement: Annotated[tuple[str, ...] | None, PLACEMENT] = Field(
        default=None,
        description="With `trace` or `chakra`: kinds of its communication, outermost first. Ranks that the last one "
        "joins are next to each other, then those of the one before; so the first one crosses buildings. Default: "
        "as_recorded, ranks in their own order.",
    )
    mapping: Annotated[str | tuple[int, ...] | None, MAPPING] = Field(
        default=None,
        description="With `trace` or `chakra`: on which of the scenario's ranks those of the trace are, in the order "
        "of `placement`: consecutive (the default), scattered, topology_aware, by_distance, or a list, as with "
        "`parallelism.mapping`.",
    )
    algorithms: Annotated[Mapping[str, str] | None, KIND_ALGORITHMS] = Field(
        default=None,
        description="With `trace` or `chakra`: algorithms of the collectives of a kind, such as {shard: hierarchical}, "
        "where these have one of that name. Of all others: that of the trace, or else all-reduces by the scenario's "
        "`algorithms`, and others auto.",
    )
    inference: InferenceSpec | None = Field(
        default=None,
        description="Requests that nodes of accelerator cards answer, in place of training: buildings have `nodes`. A "
        "step is all requests.",
    )
    options: Annotated[Mapping[str, Any] | None, OPTIONS] = Field(
        default=None, description="What the function of `plan` is called with."
    )
    parallelism: ParallelismSpec | None = Field(
        default=None,
        description="How training is spread over ranks; without it each rank trains a replica of the model.",
    )
    schedule: ScheduleSpec | None = Field(
        default=None, description="Microbatches and their order, with `parallelism`; default: 1F1B with 8."
    )
    stage: StageSpec | None = Field(
        default=None, description="What a pipeline's stage takes, in place of a model, with `parallelism`."
    )
    outer: LocalSgdSpec | None = Field(
        default=None,
        description="What replicas of `parallelism` exchange once in some steps, in place of gradients in every step.",
    )
    training_steps: CountOrNone = Field(
        default=None,
        description="Training steps in a row that a step of the scenario is, with `parallelism`; default: with `outer` "
        "from one exchange to the next, otherwise 1. Variants have equally many, so that their times compare.",
    )
    collectives: tuple[CollectiveSpec, ...] | None = Field(
        default=None, description="What is done in place of training a model."
    )
    exchange: ExchangeSpec | None = Field(
        default=None, description="Messages of a pipeline, beside `collectives`."
    )
    compute_s: DurationOrNone = Field(
        default=None,
        alias="compute",
        description="Computing before `collectives` start, where there is no model.",
    )
    tuning: str | None = Field(
        default=None,
        description="A table that algorithms named auto go by, as `testbed bench --tune` writes it, of sizes at "
        "`size_scale` 1; default: a rule by size and buildings.",
    )
    gradient_dtype: Annotated[str, choice("a type", tuple(ITEMSIZES))] = Field(
        default="float32", description="Element type of what is reduced or moved."
    )
    bucket_cap_bytes: Size = Field(
        default=25 * 1024**2,
        alias="bucket_cap",
        description="Gradients are reduced in buckets; one is closed when it reaches this size.",
    )
    first_bucket_cap_bytes: Size = Field(
        default=1024**2,
        alias="first_bucket_cap",
        description="Cap of the first bucket, smaller so that communication starts early.",
    )
    sequence_length: Count = Field(default=8192, description="Tokens in one sequence.")
    attention_scores: Annotated[str, choice("a way to count", ATTENTION_SCORES)] = Field(
        default="left_out",
        description="Whether computing has attention's scores beside 6 operations per parameter and token: full, "
        "another 12 L s d per token of a model of L layers and width d in sequences of s (PaLM, arXiv:2204.02311, "
        "appendix B); causal, half of these, as kernels have it that skip what the mask hides; recomputed, 14 L s d, "
        "as PyTorch counts, and so `testbed capture`, where backward finds the scores once more; left_out, none.",
    )
    local_batch_size: Count = Field(default=1, description="Sequences per rank and step.")
    accelerator: Annotated[str | None, ACCELERATOR] = Field(
        default=None,
        description="What computes in each rank: its data sheet's peak, and the part of it that training reaches.",
    )
    compute_dtype: Annotated[str, choice("a type", COMPUTE_DTYPES)] = Field(
        default="bf16", description="In which the accelerator multiplies."
    )
    peak_flops: FlopRateOrNone = Field(
        default=None, description="Peak computing speed of one rank, in place of an accelerator's."
    )
    flops_utilisation: ShareOrNone = Field(
        default=None,
        description="Share of the peak that training reaches; default: the accelerator's, or 40 %.",
    )

    @classmethod
    def completed(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """What training reaches on the accelerator."""
        if data.get("model") is None and data.get("chakra") is None:
            return data
        name = data.get("accelerator")
        entry = accelerators().get(name) if isinstance(name, str) else None
        return {"flops_utilisation": float(entry["utilisation"]) if entry else UTILISATION, **data}

    def checks(self) -> Iterator[Finding]:
        """There is something to do, once."""
        if self.model is not None and self.peak_flops is None and self.accelerator is None:
            expected = f"an accelerator ({', '.join(ACCELERATORS)}), or peak_flops"
            yield Finding(("accelerator",), "nothing", expected)
        if self.peak_flops is not None and self.accelerator is not None:
            yield Finding(("peak_flops",), "peak_flops beside an accelerator", "one of both")
        if self.model is not None and (self.collectives or self.exchange or self.compute_s):
            yield Finding(("model",), "a model beside collectives, exchange or compute", "one of both")
        if not self.recorded:
            for key in RECORDED_JOB_KEYS:
                if getattr(self, key) is not None:
                    yield Finding((key,), f"{key} without trace or chakra", "it with one of them")
        if self.plan is not None and self.plan not in WORKLOAD_KEYS:
            yield from self._beside("a plan", "trace", "chakra", "inference")
        elif self.trace is not None:
            yield from self._beside("a trace", "options", "chakra", "inference")
        elif self.chakra is not None:
            yield from self._beside("traces", "options", "inference")
        elif self.inference is not None:
            yield from self._beside("requests", "options")
        else:
            yield from self._described()

    def _described(self) -> Iterator[Finding]:
        """The keys that are there describe a workload, and the one that is named where one is."""
        if self.plan is not None and self.plan != self.kind_described:
            yield self._other_keys()
            return
        if self.options is not None:
            yield Finding(("options",), "options without a plan", "them with a plan")
        if self.model is None and not self.collectives and self.exchange is None and self.stage is None:
            expected = "a model, or collectives, or exchange, or a stage, or a plan, or traces, or inference"
            yield Finding(("model",), "nothing", expected)
        if self.parallelism is None:
            for key in ("schedule", "stage", "outer", "training_steps"):
                if getattr(self, key) is not None:
                    yield Finding((key,), f"{key} without parallelism", "it with parallelism")
        elif (self.model is None) == (self.stage is None):
            yield Finding(("parallelism",), "parallelism", "it with a model, or with a stage")
        else:
            yield from self._rows()
        for position, entry in enumerate(self.collectives or ()):
            if (wanted := expected_algorithm(entry.algorithm, [entry.collective])) is not None:
                yield Finding(("collectives", position, "algorithm"), show(entry.algorithm), wanted)

    def _rows(self) -> Iterator[Finding]:
        """Steps in a row end where exchanges do, and replicas have something to exchange."""
        parallelism, outer, steps = self.parallelism, self.outer, self.training_steps
        assert parallelism is not None
        if parallelism.faults is not None:
            for key in ("outer", "training_steps"):
                if getattr(self, key) is not None:
                    yield Finding((key,), f"{key} beside parallelism.faults", "one of both")
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

    def _other_keys(self) -> Finding:
        """A workload is named whose keys are not there."""
        assert self.plan is not None
        expected = f"it with {' or '.join(WORKLOAD_KEYS[self.plan])}"
        return Finding(
            ("plan",), f"{self.plan} with keys of {self.kind_described or 'nothing to do'}", expected
        )

    def _beside(self, what: str, *more: str) -> Iterator[Finding]:
        """A plan, or a trace, says all that ranks do."""
        if self.plan in WORKLOAD_KEYS and self.plan != self.kind_described:
            yield self._other_keys()
        for key in (*PLAN_KEYS, *more):
            if getattr(self, key) is not None:
                name = key.removesuffix("_s")
                yield Finding((name,), f"{name} beside {what}", "one of both")

    @property
    def kind(self) -> str:
        """Which workload this is, by its name in the registry or of a file: `plan`, or what the other keys describe."""
        kind = self.plan or self.kind_described
        assert kind is not None  # by the checks
        return kind

    @property
    def kind_described(self) -> str | None:
        """By the keys that are there, `plan` aside; None where they describe none."""
        there = (name for name, keys in WORKLOAD_KEYS.items() if any(getattr(self, key) for key in keys))
        return next(there, None)

    @property
    def training_steps_of_step(self) -> int:
        """Training steps in a row that a step is."""
        return self.training_steps or (self.outer.period if self.outer else 1)

    @property
    def recorded(self) -> bool:
        """Whether a trace says what ranks do."""
        return self.trace is not None or self.chakra is not None

    @property
    def itemsize(self) -> int:
        """Bytes of an element of what is reduced or moved."""
        return ITEMSIZES[self.gradient_dtype]

    @property
    def flops(self) -> float:
        """Computing speed of one rank in flop/s: peak times utilisation. Only where something says the peak."""
        peak = self.peak_flops
        if self.accelerator is not None:
            peak = float(accelerators()[self.accelerator]["peak"][self.compute_dtype])
        assert peak is not None
        assert self.flops_utilisation is not None
        return peak * self.flops_utilisation

    def flops_of(self, hardware: Hardware) -> float:
        """`flops` of a rank with that in place of its own; likewise. A type of its own needs an accelerator."""
        accelerator = hardware.accelerator or self.accelerator
        if accelerator is None:
            return self.flops
        assert self.flops_utilisation is not None
        entry, own = accelerators()[accelerator], accelerators().get(self.accelerator or "")
        usual = float(own["utilisation"]) if own else UTILISATION
        # by 1 exactly where they are one
        reached = float(entry["utilisation"]) / usual * self.flops_utilisation
        return float(entry["peak"][hardware.compute_dtype or self.compute_dtype]) * reached

    @property
    def gemm_half_rows(self) -> float:
        """Rows of a matrix at which products run at half the accelerator's speed; 0 where only a peak is said."""
        return float(accelerators()[self.accelerator]["gemm_half_rows"]) if self.accelerator else 0.0
