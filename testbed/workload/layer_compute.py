"""Computations of one rank for a layer, or for all layers of an action; equal ones are shared among plans."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.spec.scale import Scale
from testbed.workload.operations import COMPUTE, Computing, replace_fields
from testbed.workload.schedules import Action, Kind
from testbed.workload.stages import Part

MAX_CACHED_OPERATIONS = 200_000

Named = dict[Action, tuple[Computing, ...]]


class _ActionCache:
    """A bounded cache of the computations of actions, keyed by layer durations and kept memory."""

    def __init__(self) -> None:
        self._known: dict[tuple[Kind, tuple[float, ...], float], Named] = {}
        self._operations = 0

    def of(self, kind: Kind, durations_s: tuple[float, ...], kept: float) -> Named:
        """Return the cached actions of one stage and kind; the caller adds to them."""
        return self._known.setdefault((kind, durations_s, kept), {})

    def count(self, operations: int) -> None:
        """Note that this many operations were added."""
        self._operations += operations
        if self._operations > MAX_CACHED_OPERATIONS:
            self._known.clear()
            self._operations = 0


_action_cache = _ActionCache()


class LayerComputations:
    """Makes the computations of a rank.

    Attributes:
        scale: Scale of the emulation.
        slowdown: Factor by which the rank computes more slowly.
    """

    def __init__(self, scale: Scale, slowdown: float) -> None:
        self._scale, self._slowdown = scale, slowdown
        self._computings: dict[tuple[Kind, float], Computing] = {}
        # by stage and kind: numbered computations of the layers without names, and the actions made from them
        self._by_stage: dict[tuple[int, Kind], tuple[list[tuple[int, Computing]], Named]] = {}

    def template(self, kind: Kind, seconds: float) -> Computing:
        """Return a computation of this many real seconds, without name and dependencies."""
        if (template := self._computings.get((kind, seconds))) is None:
            duration_s = self._scale.emulated_s(seconds) * self._slowdown
            template = Computing("", COMPUTE, kind.name.lower(), duration_s=duration_s)
            self._computings[kind, seconds] = template
        return template

    def layers_of(self, action: Action, parts: Sequence[Part], kept: float) -> tuple[Computing, ...]:
        """Return the computations of all layers of an action, without dependencies."""
        key = action.stage, action.kind
        if key not in self._by_stage:
            templates = [self.template(action.kind, compute_s(part, action.kind)) for part in parts]
            named = list(zip(range(len(templates)), templates, strict=True))
            if action.kind is not Kind.FORWARD:
                named.reverse()
            durations_s = tuple(template.duration_s for template in templates)
            self._by_stage[key] = named, _action_cache.of(action.kind, durations_s, kept)
        named, known = self._by_stage[key]
        if action not in known:
            _action_cache.count(len(named))
            made = [replace_fields(template, name=f"{action} layer {number}") for number, template in named]
            known[action] = tuple(with_memory(made, action, kept))
        return known[action]


def with_memory(computing: list[Computing], action: Action, kept: float) -> list[Computing]:
    """Return the computations of an action with the memory that they allocate at its start, or free at its end."""
    if action.kind is Kind.FORWARD:
        computing[0] = replace_fields(computing[0], holds=kept)
    elif action.kind is not Kind.BACKWARD_INPUT:
        computing[-1] = replace_fields(computing[-1], gives=kept / action.parts)
    return computing


def compute_s(part: Part, kind: Kind) -> float:
    """Return the real seconds that an action of this kind takes for a layer."""
    # not by a mapping: kinds are slow to hash, and this is asked for every layer of every action
    if kind is Kind.FORWARD:
        return part.forward_s
    if kind is Kind.BACKWARD_INPUT:
        return part.input_s
    if kind is Kind.BACKWARD_WEIGHT:
        return part.weight_s
    return part.input_s + part.weight_s
