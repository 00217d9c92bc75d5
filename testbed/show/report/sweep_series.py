"""A sweep as it is drawn and told: lines of figures along one axis, or panels of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.measure.results.sweep_result import Sweep, SweepAxis, SweepFigure
from testbed.spec.sweep_axes import Place


@dataclass(frozen=True)
class Series:
    """Figures of one variant, and of one word of the other axis where that has words. by_index: of the axis' values.

    colour, pattern: which it has, from 0; of one variant alike where several words tell lines apart.
    """

    name: str
    by_index: Mapping[int, SweepFigure]
    colour: int = 0
    pattern: int = 0


@dataclass(frozen=True)
class Curves:
    """Lines along an axis; where its values are words, points."""

    axis: SweepAxis
    series: Sequence[Series]


@dataclass(frozen=True)
class Panel:
    """A variant at all values of two axes."""

    name: str
    figures: Mapping[Place, SweepFigure]


@dataclass(frozen=True)
class Maps:
    """A panel for each variant; across: the first axis, upwards: the second."""

    across: SweepAxis
    upwards: SweepAxis
    panels: Sequence[Panel]


def laid_out(sweep: Sweep) -> Curves | Maps:
    """Curves of one axis, or of two of which one has words; else maps."""
    axes = sweep.axes
    if len(axes) == 1:
        names = enumerate(sweep.variants)
        return Curves(
            axes[0], [Series(name, _along(sweep, name, 0, {}), index, index) for index, name in names]
        )
    worded = [number for number, axis in enumerate(axes) if axis.numbers is None]
    if len(worded) != 1:
        return Maps(axes[0], axes[1], [Panel(name, _figures(sweep, name)) for name in sweep.variants])
    words, along = worded[0], 1 - worded[0]
    series = []
    for number, name in enumerate(sweep.variants):
        for index, text in enumerate(axes[words].texts):
            alone = len(sweep.variants) == 1
            by_index = _along(sweep, name, along, {words: index})
            series.append(
                Series(text if alone else f"{name}, {text}", by_index, index if alone else number, index)
            )
    return Curves(axes[along], series)


def _figures(sweep: Sweep, variant: str) -> dict[Place, SweepFigure]:
    return {
        point.at: figure for point in sweep.points for figure in point.figures if figure.variant == variant
    }


def _along(sweep: Sweep, variant: str, along: int, fixed: Mapping[int, int]) -> dict[int, SweepFigure]:
    return {
        place[along]: figure
        for place, figure in _figures(sweep, variant).items()
        if all(place[number] == index for number, index in fixed.items())
    }
