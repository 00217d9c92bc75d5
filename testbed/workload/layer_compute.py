"""One rank's computing for a layer, or for all layers of an action: alike ones made once, for many plans."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.spec.scale import Scale
from testbed.workload.operations import COMPUTE, Computing, replace_fields
from testbed.workload.schedules import Action, Kind
from testbed.workload.stages import Part

MOST_OPERATIONS = 200_000  # remembered, of all actions' layers

Named = dict[Action, tuple[Computing, ...]]


class _Remembered:
    """Computing of actions' layers, by what each layer takes and is kept: the same in many plans."""

    def __init__(self) -> None:
        self._known: dict[tuple[Kind, tuple[float, ...], float], Named] = {}
        self._operations = 0

    def of(self, kind: Kind, durations_s: tuple[float, ...], kept: float) -> Named:
        """Of one stage and kind; more is added to it."""
        return self._known.setdefault((kind, durations_s, kept), {})

    def count(self, operations: int) -> None:
        """So many were added."""
        self._operations += operations
        if self._operations > MOST_OPERATIONS:
            self._known.clear()
            self._operations = 0


_remembered = _Remembered()


class LayerComputing:
    """scale: of seconds. slowdown: by which factor the rank takes longer."""

    def __init__(self, scale: Scale, slowdown: float) -> None:
        self._scale, self._slowdown = scale, slowdown
        self._computings: dict[tuple[Kind, float], Computing] = {}
        # by stage and kind, computing of each layer, but for its name, and that of actions which were asked for
        self._alike: dict[tuple[int, Kind], tuple[list[tuple[int, Computing]], Named]] = {}

    def like(self, kind: Kind, seconds: float) -> Computing:
        """Of so long, in real seconds, but for its name and what it waits for."""
        if (like := self._computings.get((kind, seconds))) is None:
            duration_s = self._scale.emulated_s(seconds) * self._slowdown
            like = Computing("", COMPUTE, kind.name.lower(), duration_s=duration_s)
            self._computings[kind, seconds] = like
        return like

    def layers_of(self, action: Action, parts: Sequence[Part], kept: float) -> tuple[Computing, ...]:
        """Computing of all layers of an action, which does not wait for more than its turn."""
        key = action.stage, action.kind
        if key not in self._alike:
            likes = [self.like(action.kind, computing_s(part, action.kind)) for part in parts]
            named = list(zip(range(len(likes)), likes, strict=True))
            if action.kind is not Kind.FORWARD:
                named.reverse()
            durations_s = tuple(like.duration_s for like in likes)
            self._alike[key] = named, _remembered.of(action.kind, durations_s, kept)
        named, known = self._alike[key]
        if action not in known:
            _remembered.count(len(named))
            made = [replace_fields(like, name=f"{action} layer {number}") for number, like in named]
            known[action] = tuple(accounted(made, action, kept))
        return known[action]


def accounted(computing: list[Computing], action: Action, kept: float) -> list[Computing]:
    """All of an action's, with the bytes that it keeps from its beginning, or gives back at its end."""
    if action.kind is Kind.FORWARD:
        computing[0] = replace_fields(computing[0], holds=kept)
    elif action.kind is not Kind.BACKWARD_INPUT:
        computing[-1] = replace_fields(computing[-1], gives=kept / action.parts)
    return computing


def computing_s(part: Part, kind: Kind) -> float:
    """What an action of this kind takes for a layer."""
    # not by a mapping: kinds are slow to hash, and this is asked for every layer of every action
    if kind is Kind.FORWARD:
        return part.forward_s
    if kind is Kind.BACKWARD_INPUT:
        return part.input_s
    if kind is Kind.BACKWARD_WEIGHT:
        return part.weight_s
    return part.input_s + part.weight_s
