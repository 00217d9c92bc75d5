"""A rank's plan under construction: computations of a layer or of an action's layers, shared between plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from testbed.spec.scale import Scale
from testbed.workload.operations import COMPUTE, Computing, Operation, replace_fields
from testbed.workload.schedules import Action, Kind
from testbed.workload.schedules.actions import seconds_of
from testbed.workload.stages import Part

Named = dict[Action, tuple[Computing, ...]]


@lru_cache(32)
def _shared_actions(kind: Kind, durations_s: tuple[float, ...], kept: float) -> Named:
    """Return the cached data on actions of stages with these layers; the caller adds to it."""
    return {}


class ComputePlanner:
    """A rank's plan under construction, with computations that wait for a gate.

    Attributes:
        rank: The rank.
        plan: Its operations so far.
        gate: Dependencies of the next computation.
        computed: Computations so far, in order.
    """

    def __init__(self, rank: int, scale: Scale, slowdown: float) -> None:
        self.rank = rank
        self.plan: list[Operation] = []
        self.gate: list[int] = []
        self.computed: list[int] = []
        self._scale, self._slowdown = scale, slowdown
        self._computings: dict[tuple[Kind, float], Computing] = {}
        # by stage and kind: numbered computations of the layers, without names, and the actions made from them
        self._by_stage: dict[tuple[int, Kind], tuple[list[tuple[int, Computing]], Named]] = {}

    def add(self, operation: Operation) -> int:
        """Append an operation and return its index in the plan."""
        self.plan.append(operation)
        return len(self.plan) - 1

    def compute(self, name: str, kind: Kind, seconds: float) -> None:
        """Compute for this many real seconds after the gate opens."""
        after, self.gate = tuple(self.gate), []
        template = self._template(kind, seconds)
        self.computed.append(self.add(replace_fields(template, name=name, after=after)))

    def compute_layers(self, action: Action, parts: Sequence[Part], kept: float) -> None:
        """Add an action that consists only of computation.

        Args:
            action: The action.
            parts: The layers of the action.
            kept: Bytes of activations kept from forward to the end of backward.
        """
        first, after = len(self.plan), tuple(self.gate)
        self.gate = []
        self.plan += self._layers_of(action, parts, kept)
        if after:
            self.plan[first] = replace_fields(self.plan[first], after=after)
        self.computed += range(first, len(self.plan))

    def _template(self, kind: Kind, seconds: float) -> Computing:
        """Return a computation of this many real seconds, without a name and dependencies."""
        if (template := self._computings.get((kind, seconds))) is None:
            duration_s = self._scale.emulated_s(seconds) * self._slowdown
            template = Computing("", COMPUTE, kind.name.lower(), duration_s=duration_s)
            self._computings[kind, seconds] = template
        return template

    def _layers_of(self, action: Action, parts: Sequence[Part], kept: float) -> tuple[Computing, ...]:
        """Return the computations of all layers of an action, without dependencies."""
        key = action.stage, action.kind
        if key not in self._by_stage:
            templates = [self._template(action.kind, compute_s(part, action.kind)) for part in parts]
            numbered = list(enumerate(templates))
            if action.kind is not Kind.FORWARD:
                numbered.reverse()
            durations_s = tuple(template.duration_s for template in templates)
            self._by_stage[key] = numbered, _shared_actions(action.kind, durations_s, kept)
        numbered, known = self._by_stage[key]
        if action not in known:
            made = [replace_fields(own, name=f"{action} layer {number}") for number, own in numbered]
            known[action] = tuple(with_memory(made, action, kept))
        return known[action]


def with_memory(computing: list[Computing], action: Action, kept: float) -> list[Computing]:
    """Return an action's computations with the memory that they allocate at its start or free at its end."""
    if action.kind is Kind.FORWARD:
        computing[0] = replace_fields(computing[0], holds=kept)
    elif action.kind is not Kind.BACKWARD_INPUT:
        computing[-1] = replace_fields(computing[-1], gives=kept / action.parts)
    return computing


def compute_s(part: Part, kind: Kind) -> float:
    """Return the real seconds that an action of this kind takes for a layer."""
    return seconds_of(kind, (part.forward_s, part.input_s, part.weight_s))
