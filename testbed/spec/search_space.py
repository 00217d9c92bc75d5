"""What `testbed explore` searches: values of a scenario that may differ, and what a configuration has to fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from testbed.spec.base_model import Finding, Form, StrictModel
from testbed.spec.catalogue import baselines
from testbed.spec.recorded_job import RECORDED_JOB_KEYS
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
            raise ValueError(f"{expected}; {show(path)} is no path")
        if not isinstance(values, (list, tuple)) or not values:
            raise ValueError(f"of {path} a list of one or more values; {show(values)} is none")
        twice = [one for number, one in enumerate(values) if one in values[:number]]
        if twice:
            raise ValueError(f"of {path} each value once; {show(twice[0])} is there again")
        found[path] = tuple(values)
    return found


_SPACE = Form(
    _parse_space,
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "array", "minItems": 1}},
    lambda value: {path: list(values) for path, values in value.items()},
)


class ExploreSpec(StrictModel):
    """A search over configurations of this scenario."""

    space: Annotated[Mapping[str, tuple[Any, ...]], _SPACE] = Field(
        default={},
        description="What may differ: paths as `--set` takes them, each with its values. All combinations are looked "
        "at; those that fit nowhere are left out, and counted. Default: all that there is to choose, with usual values "
        "(docs/how-to/explore.md).",
    )
    whole: Flag = Field(
        default=False, description="What `space` does not name is searched as well, over its usual values."
    )
    memory_bytes: SizeOrNone = Field(
        default=None,
        alias="memory",
        description="Of an accelerator, which weights, gradients, optimizer and activations have to fit in. Default: "
        "what the accelerator has; without one nothing is checked.",
    )
    tries: Count = Field(
        default=500,
        description="How many configurations the model of the step tries: of more, the best by a closed form.",
    )
    confirm: Count = Field(default=3, description="How many of the best are run on the emulated network.")
    candidates: Count = Field(
        default=8,
        description="Of how many of the best by the model those are chosen, on the emulated network: all are run for "
        "one trial, the quicker half for three, and so on. Those that the model has a fifth slower than the best are "
        "left out.",
    )
    baselines: tuple[Annotated[str, choice("a baseline", BASELINES)], ...] = Field(
        default=DEFAULT_BASELINES,
        description="What the best is held against, from data/baselines.yaml; with `trace` or `chakra` the job as "
        "given. Planners of unlike accelerators (amp, metis, hetccl) have to be named.",
    )

    def checks(self) -> Iterator[Finding]:
        """Each baseline once."""
        for position, name in enumerate(self.baselines):
            if name in self.baselines[:position]:
                yield Finding(("baselines", position), f"{name} again", "each baseline once")

    def findings_of(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """What of this search does not go with what ranks do."""
        if workload.recorded:
            yield from self._recorded_findings()
        elif workload.parallelism is None:
            expected = "a step that has it, or trace, or chakra"
            yield Finding((), "a search without workload.parallelism", expected)
        if workload.outer or workload.training_steps:
            yield Finding((), "a search with workload.outer or training_steps", "a step by itself")

    def _recorded_findings(self) -> Iterator[Finding]:
        """What there is to choose of a job that was recorded: what its ranks do is the trace's."""
        for path in self.space:
            if path.split(".")[0] == "workload" and not f"{path}.".startswith(_OF_RECORDED):
                expected = f"with trace or chakra one of {', '.join(name[:-1] for name in _OF_RECORDED)}"
                yield Finding(("space", path), f"{path}, which the trace says", expected)
        if self.memory_bytes is not None:
            expected = "it with workload.parallelism: a trace does not say what ranks keep in memory"
            yield Finding(("memory",), "memory with trace or chakra", expected)
        if self.baselines and self.baselines != DEFAULT_BASELINES:
            expected = "them with workload.parallelism: what they choose is the trace's"
            yield Finding(("baselines",), f"[{', '.join(self.baselines)}] with trace or chakra", expected)

    @property
    def size(self) -> int:
        """How many combinations there are."""
        count = 1
        for values in self.space.values():
            count *= len(values)
        return count
