"""What ranks keep of activations: the input of each block, from the begin of forward to the end of backward."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import yaml

from tests.oracle.expected import degrees_of
from tests.oracle.flops import DATA
from tests.oracle.raw import COMPUTING, LOADER, Record, Step
from tests.oracle.variant import MeasuredVariant

VALUE_BYTES = 2
_ACTION = re.compile(r"(\d+)([FBW])(\d+)(?:\.\d+/\d+)?(?: layer (\d+).*)?")


def activation_peaks(own: MeasuredVariant, step: Step) -> list[float] | None:
    """By rank, the most that is kept at once; None of what is no pipeline of a model, or where blocks cannot be told.

    A block's input has 2 bytes for each value of a token, for all tokens of a rank's accelerators that have their own;
    tensor-parallel ranks share a token's values, context-parallel ones the tokens of a sequence.
    """
    workload = own.settings["workload"]
    parallelism = workload.get("parallelism")
    if workload.get("model") is None or parallelism is None:
        return None
    actions = [
        (entry["rank"], int(found[1]), found[2], found[3], int(found[4] or -1), entry)
        for entry in step.operations
        if entry["operation"] in COMPUTING and (found := _ACTION.fullmatch(entry["name"]))
    ]
    stages = 1 + max(stage for _, stage, *_ in actions)
    last_layers: dict[int, int] = {}
    for _, stage, _, _, layer, _ in actions:
        last_layers[stage] = max(last_layers.get(stage, -1), layer)
    if min(last_layers.values()) < 0:
        return None
    # the first stage looks tokens up before its blocks, the last one has the head behind them
    blocks = {stage: last + 1 - (stage == 0) - (stage == stages - 1) for stage, last in last_layers.items()}
    each = VALUE_BYTES * _values(workload, parallelism)
    spans: dict[tuple[int, int, str], list[float]] = defaultdict(lambda: [float("inf"), 0.0])
    for rank, stage, kind, number, _, entry in actions:
        span = spans[rank, stage, number]
        if kind == "F":
            span[0] = min(span[0], entry["start_s"])
        else:
            span[1] = max(span[1], entry["end_s"])
    changes: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (rank, stage, _), (begin_s, end_s) in spans.items():
        kept = blocks[stage] * each
        changes[rank] += [(begin_s, kept), (end_s, -kept)]
    return [_peak(changes[rank]) for rank in range(own.ranks)]


def _peak(changes: list[tuple[float, float]]) -> float:
    alive = peak = 0.0
    for _, change in sorted(changes):  # what ends at a moment ends before anything begins then
        alive += change
        peak = max(peak, alive)
    return peak


def _values(workload: Record, parallelism: Record) -> float:
    """Of a block's input for one microbatch, on all accelerators of a rank."""
    model: Any = workload["model"]
    if isinstance(model, str):
        model = yaml.load((DATA / "models.yaml").read_text(), Loader=LOADER)[model]["dimensions"]
    tokens = workload.get("sequence_length", 8192) * workload.get("local_batch_size", 1)
    tokens /= parallelism.get("context_parallel_degree", 1)
    _, outside, within = degrees_of(parallelism)
    for name in ("data_parallel_replicate", "data_parallel_shard", "context_parallel"):
        tokens *= within[name]
    return float(tokens * model["dim"] / outside["tensor_parallel"])
