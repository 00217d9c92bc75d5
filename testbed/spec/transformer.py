"""A transformer in a scenario, by name or by its dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from testbed.errors import did_you_mean
from testbed.spec.base_model import Finding, StrictModel, ValueFormat, inlined_schema
from testbed.spec.catalogue import models
from testbed.spec.value_types import Count, CountOrZero

MODELS = tuple(models())


class ModelSpec(StrictModel):
    """Dimensions of a decoder-only transformer, dense like Llama 3 or with experts like Mixtral."""

    dim: Count
    """Width of the residual stream."""
    n_layers: Count
    """Transformer blocks."""
    n_heads: Count
    """Query heads; must divide `dim`."""
    n_kv_heads: Count
    """Key and value heads; must divide `n_heads`."""
    ffn_dim: Count
    """Width of the feed-forward layer."""
    vocab_size: Count
    """Tokens in the vocabulary."""
    experts: CountOrZero = 0
    """Experts in each feed-forward layer, each of width `ffn_dim`; 0 in dense models."""
    experts_per_token: CountOrZero = 0
    """Experts that process each token."""

    def checks(self) -> Iterator[Finding]:
        """Check that heads divide evenly, and that tokens do not need more experts than there are."""
        if not min(1, self.experts) <= self.experts_per_token <= self.experts:
            expected = (
                f"1 to {self.experts}, as there are experts" if self.experts else "0, as there are no experts"
            )
            yield Finding(("experts_per_token",), str(self.experts_per_token), expected)
        if self.dim % self.n_heads:
            yield Finding(("n_heads",), str(self.n_heads), f"a divisor of dim ({self.dim})")
        if self.n_heads % self.n_kv_heads:
            yield Finding(("n_kv_heads",), str(self.n_kv_heads), f"a divisor of n_heads ({self.n_heads})")


def _parse_model(value: object) -> str | ModelSpec:
    if isinstance(value, (Mapping, ModelSpec)):
        return ModelSpec.model_validate(value)
    if value not in MODELS:
        raise ValueError(
            f"a model ({did_you_mean(value, MODELS)}) or its dimensions ({', '.join(ModelSpec.file_keys())})"
        )
    return str(value)


MODEL = ValueFormat(
    _parse_model,
    lambda: {"anyOf": [{"enum": list(MODELS)}, inlined_schema(ModelSpec)]},
    lambda value: value.to_data() if isinstance(value, ModelSpec) else value,
)
