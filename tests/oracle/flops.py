"""A transformer's arithmetic and its gradients' bytes, from its published dimensions.

A matrix of a x b costs each token that it multiplies 2 a b operations forward and twice that backward
(arXiv:2001.08361, section 2.1). Attention's scores cost a layer 12 s d per token in sequences of s at width d
(arXiv:2204.02311, appendix B), where they are counted at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.oracle.quantities import quantity
from tests.oracle.raw import LOADER, Record, get

DATA = Path(__file__).parents[2] / "testbed" / "data"
# in 12 s d: left out, none; causal, half of all pairs; recomputed, products of scores once more in backward
SCORES = {"left_out": 0.0, "causal": 0.5, "full": 1.0, "recomputed": 7 / 6}
DEGREES = (
    "data_parallel_replicate",
    "data_parallel_shard",
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
)


@dataclass(frozen=True)
class Counts:
    """Elements of a model's tensors.

    total: all that are trained. active: those that multiply a token. looked_up: embeddings, norms and biases, which
    multiply nothing.
    """

    total: int
    active: float
    looked_up: int
    layers: int
    score_width: float


def counts_of(model: str | Mapping[str, Any]) -> Counts:
    """Of a published model, or of one's own dimensions, which make a Llama, or a Mixtral where there are experts."""
    family, own = "", dict(model) if not isinstance(model, str) else {}
    if isinstance(model, str):
        entry = yaml.load((DATA / "models.yaml").read_text(), Loader=LOADER)[model]
        family, own = entry["family"], entry["dimensions"]
    elif own.get("experts"):
        family = "mixtral"
    d, layers, ffn, vocabulary = (own[name] for name in ("dim", "n_layers", "ffn_dim", "vocab_size"))
    heads = own["n_heads"]
    # queries and output are d x d; keys and values have n_kv_heads of the heads each
    attention: float = 2 * d * d * (1 + own["n_kv_heads"] / heads)
    if family == "gpt2":
        matrices = layers * (4 * d * d + 2 * d * ffn) + vocabulary * d
        biases = layers * (3 * d + d + ffn + d)
        looked_up = biases + own["positions"] * d + (2 * layers + 1) * 2 * d
        return Counts(matrices + looked_up, matrices, looked_up, layers, d)
    looked_up = vocabulary * d + (2 * layers + 1) * d
    if family == "deepseek":
        q, kv, rope, each, value = (
            own[name] for name in ("q_rank", "kv_rank", "rope_dim", "head_dim", "value_dim")
        )
        attention = d * q + q * heads * (each + rope) + d * (kv + rope) + kv * heads * (each + value)
        attention += heads * value * d
        looked_up += layers * (q + kv)
        routed = layers - own["dense_layers"]
        expert = 3 * d * own["expert_ffn_dim"]
        always = own["dense_layers"] * 3 * d * ffn + routed * (
            own["shared_experts"] * expert + own["experts"] * d
        )
        matrices = layers * attention + always + vocabulary * d
        active = matrices + routed * own["experts_per_token"] * expert
        width = heads * (each + rope + value) / 2
        return Counts(
            round(matrices + routed * own["experts"] * expert + looked_up), active, looked_up, layers, width
        )
    if family == "mixtral":
        experts, chosen = own["experts"], own["experts_per_token"]
        matrices = layers * (attention + experts * d) + vocabulary * d
        expert = layers * 3 * d * ffn
        total = round(matrices + experts * expert + looked_up)
        return Counts(total, matrices + chosen * expert, looked_up, layers, d)
    matrices = layers * (attention + 3 * d * ffn) + vocabulary * d
    return Counts(round(matrices + looked_up), matrices, looked_up, layers, d)


@dataclass(frozen=True)
class StepOfTraining:
    """What one whole step trains: sequences, tokens, operations of the model, and the peak of all accelerators."""

    sequences: int
    tokens: int
    flops: float
    peak_flops: float


def step_of(settings: Record, ranks: int) -> StepOfTraining | None:
    """Of a scenario that trains a model; None of others, and where hosts have accelerators of their own."""
    workload = settings["workload"]
    model = workload.get("model")
    if model is None or workload.get("plan") or has_unlike_hosts(settings):
        return None
    counts = counts_of(model)
    per_rank = 1
    many = workload.get("local_batch_size", 1)
    if (parallelism := workload.get("parallelism")) is None:
        many *= ranks
    else:
        degree = {name: parallelism.get(f"{name}_degree", 1) for name in DEGREES}
        many *= degree["data_parallel_replicate"] * degree["data_parallel_shard"]
        many *= get(workload, "schedule.microbatches", 8)
        per_rank = parallelism.get("accelerators_per_rank", 1)
    many *= workload.get("training_steps") or get(workload, "outer.period", 1)
    tokens = many * workload.get("sequence_length", 8192)
    scores = SCORES[workload.get("attention_scores", "left_out")]
    of_scores = 12 * scores * counts.layers * workload.get("sequence_length", 8192) * counts.score_width
    return StepOfTraining(
        many, tokens, (6 * counts.active + of_scores) * tokens, ranks * per_rank * peak_flops(workload)
    )


def peak_flops(workload: Record) -> float:
    """Of one accelerator, dense, by its data sheet; or as the scenario says it."""
    if workload.get("peak_flops") is not None:
        return quantity(workload["peak_flops"])
    entry = yaml.load((DATA / "accelerators.yaml").read_text(), Loader=LOADER)[workload["accelerator"]]
    return float(entry["peak"][workload.get("compute_dtype", "bf16")])


def has_unlike_hosts(settings: Record) -> bool:
    """Whether any building has an accelerator of its own, or hosts that differ."""
    buildings = get(settings, "topology.buildings", {})
    return any(
        own.get("unlike") or own.get("accelerator") or own.get("compute_dtype")
        for own in buildings.values()
        if isinstance(own, Mapping)
    )
