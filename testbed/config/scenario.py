"""Scenarios: which training step to run on which topology, how, and how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from testbed.config.forms import (
    Count,
    CountOrNone,
    Factor,
    FlopRate,
    Name,
    Share,
    Size,
    Timeout,
    choice,
    pattern,
)
from testbed.config.loading import OVERRIDES, Document, did_you_mean, parse_override, read_document
from testbed.config.model import Form, Strict, validate
from testbed.config.topology import TopologySpec

MODELS = ("llama3-8b", "llama3-70b")
ALGORITHMS = ("ring", "hierarchical")
POLICIES = ("shortest", "ecmp")
DTYPES = ("float32", "float64")


class ModelSpec(Strict):
    """A decoder-only transformer of the Llama 3 kind, by its dimensions."""

    dim: Count = Field(description="Width of the residual stream.")
    n_layers: Count = Field(description="Transformer blocks.")
    n_heads: Count = Field(description="Query heads; must divide `dim`.")
    n_kv_heads: Count = Field(description="Key and value heads; must divide `n_heads`.")
    ffn_dim: Count = Field(description="Width of the feed-forward layer.")
    vocab_size: Count = Field(description="Tokens in the vocabulary.")


def _parse_model(value: object) -> str | ModelSpec:
    if isinstance(value, (Mapping, ModelSpec)):
        return ModelSpec.model_validate(value)
    if value not in MODELS:
        raise ValueError(
            f"a model ({did_you_mean(value, MODELS)}) or its dimensions ({', '.join(ModelSpec.keys())})"
        )
    return str(value)


_MODEL = Form(
    _parse_model,
    {"anyOf": [{"enum": list(MODELS)}, {**ModelSpec.model_json_schema(), "title": "ModelSpec"}]},
    lambda value: value.to_data() if isinstance(value, ModelSpec) else value,
)


class WorkloadSpec(Strict):
    """A data-parallel training step: its model's gradients and how long it computes."""

    model: Annotated[str | ModelSpec, _MODEL] = Field(description="A published model, or dimensions.")
    gradient_dtype: Annotated[str, choice("a type", DTYPES)] = Field(
        default="float32", description="Element type of the gradients that are reduced."
    )
    bucket_cap_bytes: Size = Field(
        default=25 * 1024**2,
        alias="bucket_cap",
        description="Gradients are reduced in buckets of about this size.",
    )
    first_bucket_cap_bytes: Size = Field(
        default=1024**2,
        alias="first_bucket_cap",
        description="Cap of the first bucket, smaller so that communication starts early.",
    )
    sequence_length: Count = Field(default=8192, description="Tokens in one sequence.")
    local_batch_size: Count = Field(default=1, description="Sequences per rank and step.")
    peak_flops: FlopRate = Field(description="Peak computing speed of one rank's accelerator.")
    flops_utilisation: Share = Field(default=0.4, description="Share of the peak that training reaches.")


class TransportSpec(Strict):
    """How ranks talk to each other."""

    congestion_control: Annotated[
        str,
        pattern(
            r"[a-z][a-z0-9_-]{0,14}", "a TCP congestion control by its kernel name, such as cubic or bbr"
        ),
    ] = Field(default="cubic", description="TCP congestion control of every connection.")
    timeout_s: Timeout = Field(default=30.0, alias="timeout", description="How long to wait for a peer.")


class ScaleSpec(Strict):
    """The scale model: rates and message sizes are divided by `size_scale`, times stay."""

    size_scale: Factor = Field(
        default="auto", description="A number, or auto: the smallest that the host carries."
    )


class Scenario(Strict):
    """A scenario as written in a file."""

    name: Name = Field(description="Name of the scenario.")
    topology: TopologySpec = Field(
        description="A topology file, relative to this file, or a topology itself."
    )
    ranks: Count = Field(
        default=None, description="How many ranks, on consecutive hosts; default: one per host."
    )
    workload: WorkloadSpec = Field(description="What every rank computes and reduces.")
    algorithms: tuple[Annotated[str, choice("an algorithm", ALGORITHMS)], ...] = Field(
        default=("ring",), description="All-reduce algorithms; one variant is run with each."
    )
    policy: Annotated[str, choice("a policy", POLICIES)] = Field(
        default="ecmp", description="How flows are put on WAN paths."
    )
    transport: TransportSpec = Field(default=TransportSpec(), description="How ranks talk to each other.")
    trials: Count = Field(default=5, description="Measured steps per variant.")
    warmup: CountOrNone = Field(default=1, description="Steps per variant before measuring starts.")
    seed: CountOrNone = Field(default=1, description="Seed of everything random.")
    scale: ScaleSpec = Field(default=ScaleSpec(), description="How real figures are mapped onto this host.")


def read_scenario(path: Path | str, overrides: Sequence[str] = ()) -> Document:
    """A scenario's document with its topology's file grafted in and overrides applied. ConfigError."""
    path = Path(path)
    document = read_document(path)
    parts = [override for override in overrides if parse_override(override)[0] != "topology"]
    for override in overrides:
        if override not in parts:
            document.override(override)
    topology = document.data.get("topology")
    if isinstance(topology, str):
        here = Path() if document.origins[("topology",)].file == OVERRIDES else path.parent
        document.graft("topology", read_document(here / topology))
    for override in parts:
        document.override(override)
    return document


def load_scenario(path: Path | str, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario file; `overrides` are "path=value". ConfigError with all problems of all files."""
    return validate(Scenario, read_scenario(path, overrides))
