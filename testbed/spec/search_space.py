"""The search space of `testbed explore`: scenario values that may differ, and what a configuration must fit in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from testbed.spec.base_model import Finding, StrictModel, ValueFormat
from testbed.spec.catalogue import baselines
from testbed.spec.parallelism import RECORDED_JOB_KEYS
from testbed.spec.value_types import Count, Flag, SizeOrNone, choice
from testbed.spec.workload import WorkloadSpec
from testbed.spec.yaml_loader import show

BASELINES = tuple(baselines())
DEFAULT_BASELINES = tuple(name for name, entry in baselines().items() if entry.get("usual", True))
_OF_RECORDED = tuple(f"workload.{name}." for name in (*RECORDED_JOB_KEYS, "tuning"))


def _parse_space(value: object) -> dict[str, tuple[Any, ...]]:
    expected = "a mapping of paths to lists, such as {workload.schedule.microbatches: [8, 16, 32]}"
    if not isinstance(value, Mapping) or not value:
        raise ValueError(expected)
    found = {}
    for path, values in value.items():
        if not isinstance(path, str) or not all(path.split(".")):
            raise ValueError(f"{expected}; {show(path)} is not a path")
        if not isinstance(values, (list, tuple)) or not values:
            raise ValueError(f"for {path} a list of one or more values, not {show(values)}")
        twice = [one for number, one in enumerate(values) if one in values[:number]]
        if twice:
            raise ValueError(f"for {path} each value once; {show(twice[0])} is repeated")
        found[path] = tuple(values)
    return found


_SPACE = ValueFormat(
    _parse_space,
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "array", "minItems": 1}},
    lambda value: {path: list(values) for path, values in value.items()},
)


class ExploreSpec(StrictModel):
    """A search over configurations of this scenario."""

    space: Annotated[Mapping[str, tuple[Any, ...]], _SPACE] = {}
    """Values to search: `--set` paths, each with a list of values. All combinations are considered; infeasible ones are
    left out and counted. Default: all choices that the scenario allows, with common values (docs/how-to/explore.md).
    """
    whole: Flag = False
    """Also search keys that `space` does not list, over common values."""
    memory_bytes: SizeOrNone = None
    """Memory of an accelerator, in which weights, gradients, optimizer state and activations must fit. Default: the
    accelerator's; without an accelerator memory is not checked.
    """
    tries: Count = 500
    """Number of configurations to evaluate with the step model. If there are more, a closed form selects the best."""
    confirm: Count = 3
    """Number of best configurations to run on the emulated network."""
    candidates: Count = 8
    """Number of best predictions to compare on the emulated network, by successive halving: all run one trial, the
    faster half three, and so on. The best `confirm` of them remain. Predictions more than 20 % slower than the best are
    left out.
    """
    baselines: tuple[Annotated[str, choice("a baseline", BASELINES)], ...] = DEFAULT_BASELINES
    """Baselines to compare the best configurations with, from data/baselines.yaml; with `trace` or `chakra`: the job as
    given. Planners for mixed accelerators (amp, metis, hetccl) must be listed explicitly.
    """

    def checks(self) -> Iterator[Finding]:
        """Check that each baseline is listed once."""
        for position, name in enumerate(self.baselines):
            if name in self.baselines[:position]:
                yield Finding(("baselines", position), f"{name} again", "each baseline once")

    def findings_of(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Check that the workload can be searched."""
        if workload.is_recorded:
            yield from self._recorded_findings()
        elif workload.parallelism is None:
            expected = "a workload with it, or trace, or chakra"
            yield Finding((), "a search without workload.parallelism", expected)
        if workload.outer or workload.training_steps:
            yield Finding((), "a search with workload.outer or training_steps", "a single training step")

    def _recorded_findings(self) -> Iterator[Finding]:
        """Check that the search does not change keys that a recorded trace determines."""
        for path in self.space:
            if path.split(".")[0] == "workload" and not f"{path}.".startswith(_OF_RECORDED):
                expected = f"with trace or chakra one of {', '.join(name[:-1] for name in _OF_RECORDED)}"
                yield Finding(("space", path), f"{path}, which the trace determines", expected)
        if self.memory_bytes is not None:
            expected = "it only with workload.parallelism: a trace does not record memory use"
            yield Finding(("memory",), "memory with trace or chakra", expected)
        if self.baselines and self.baselines != DEFAULT_BASELINES:
            expected = "them only with workload.parallelism: the trace determines what they would choose"
            yield Finding(("baselines",), f"[{', '.join(self.baselines)}] with trace or chakra", expected)

    @property
    def size(self) -> int:
        """Number of combinations."""
        return math.prod(map(len, self.space.values()))
