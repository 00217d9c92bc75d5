"""Choices a scenario makes for a recorded job: where its ranks are, and which algorithms its collectives use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from testbed.plugins import registry
from testbed.spec.base_model import ValueFormat
from testbed.spec.parallelism import BY_SPEED, CONSECUTIVE, MAPPINGS, mapping_format
from testbed.spec.value_types import algorithm_schema, expected_algorithm

AS_RECORDED = "as_recorded"
# compute times are as recorded, on any accelerator: speed is no criterion
RECORDED_MAPPINGS = tuple(name for name in MAPPINGS if name != BY_SPEED)
RECORDED_JOB_KEYS = ("placement", "mapping", "algorithms")  # keys of a workload with a trace


def _parse_placement(value: object) -> tuple[str, ...] | None:
    if value == AS_RECORDED:
        return None
    kinds = tuple(value) if isinstance(value, (list, tuple)) else ()
    if kinds and all(isinstance(kind, str) for kind in kinds) and len(set(kinds)) == len(kinds):
        return kinds
    raise ValueError(f"{AS_RECORDED}, or kinds of communication, outermost first, such as [replicate, shard]")


def _parse_algorithms(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of kinds to algorithms, such as {shard: hierarchical}")
    for kind, algorithm in value.items():
        if (expected := expected_algorithm(algorithm, tuple(registry("collectives")))) is not None:
            raise ValueError(f"for {kind} {expected}")
    return {str(kind): str(algorithm) for kind, algorithm in value.items()}


PLACEMENT = ValueFormat(
    _parse_placement,
    {"anyOf": [{"const": AS_RECORDED}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
    list,
)
_NAMED_OR_LISTED = mapping_format(RECORDED_MAPPINGS)
MAPPING = replace(
    _NAMED_OR_LISTED, parse=lambda value: None if value == CONSECUTIVE else _NAMED_OR_LISTED.parse(value)
)
KIND_ALGORITHMS = ValueFormat(
    _parse_algorithms,
    lambda: {"type": "object", "additionalProperties": algorithm_schema(tuple(registry("collectives")))},
)
