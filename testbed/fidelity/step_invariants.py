"""Whether steps are like their siblings and like the model. Pure; bounds: docs/fidelity.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from testbed.fidelity.verdict import Invariant

# Under the virtual clock, without chance: of a step by itself, and of one that is like the one before or after it, or
# among the first ones, in which TCP's windows open
ALIKE, DRIFT, ALIKE_S, SETTLING = 0.02, 0.05, 0.0005, 2
MODEL_S = 0.0005
REAL_MODEL, REAL_MODEL_S = 0.35, 0.01  # slower by the real clock, beside the model's own error


@dataclass(frozen=True)
class StepTime:
    """What one step took. resent: TCP segments that all hosts sent again in it."""

    trial: int
    time_s: float
    resent: int = 0


def steps_alike(steps: Sequence[StepTime], why_not: str = "", dropped: int = 0) -> Invariant:
    """Hold each step of a variant against the median of all: without chance they do the same.

    Args:
        steps: Of one variant.
        why_not: Why they need not be alike, as a sentence, if there is a reason.
        dropped: Frames that queues of the topology dropped in the whole run. Which ones they drop is chaos, so steps in
            which TCP sent segments again are then left out.
    """
    name, bound = "steps_alike", f"within {ALIKE:.0%}, {DRIFT:.0%} where steps drift, or {ALIKE_S * 1e3:g} ms"
    compared = [step for step in steps if not (dropped and step.resent)]
    if not why_not and len(compared) < 2:
        why_not = (
            "There is one step only." if len(steps) < 2 else "TCP sent segments again in all steps but one."
        )
    if why_not:
        return Invariant(name, bound, "not applicable", None, why_not)
    usual_s = median(step.time_s for step in compared)
    beyond_s = [_beyond_s(number, compared, usual_s) for number in range(len(compared))]
    worst = compared[max(range(len(compared)), key=beyond_s.__getitem__)]
    ok = max(beyond_s) <= 0
    words = (
        f"The step of trial {worst.trial} took {worst.time_s * 1e3:.4g} ms, the median of {len(compared)} "
    )
    words += f"{usual_s * 1e3:.4g}"
    words += "." if ok else ": nothing in the scenario makes steps differ."
    left_out = len(steps) - len(compared)
    words += f" Left out: {left_out} in which queues dropped packets." if left_out else ""
    return Invariant(name, bound, f"{worst.time_s / usual_s - 1:+.2%}", ok, words, severity="caution")


def _beyond_s(number: int, steps: Sequence[StepTime], usual_s: float) -> float:
    """By how much more than is allowed a step differs from the usual one; negative where it does not."""
    time_s = steps[number].time_s
    beside = [steps[other].time_s for other in (number - 1, number + 1) if 0 <= other < len(steps)]
    drifts = number < SETTLING or min(abs(time_s - other_s) for other_s in beside) <= ALIKE * usual_s
    return abs(time_s - usual_s) - max((DRIFT if drifts else ALIKE) * usual_s, ALIKE_S)


def model_error(
    steps: Sequence[StepTime],
    predicted_s: float | None,
    stated: float | None,
    exact: bool,
    singly: bool = True,
) -> Invariant:
    """Hold a variant's median, and each of its steps, against the model.

    Args:
        steps: Of one variant.
        predicted_s: What the model says of a step; None where it says nothing of such a scenario.
        stated: The model's own stated error for such scenarios, as a share; None where it was never measured.
        exact: Under the virtual clock; by the real one steps take longer than the model says.
        singly: Whether single steps count, too: not where chance makes them differ.
    """
    name = "model_error"
    if predicted_s is None or stated is None:
        words = "The model says nothing of such a scenario."
        if predicted_s is not None:
            words = "How far off the model is on such scenarios has not been measured."
        return Invariant(name, "the model's own", "not applicable", None, words)
    slower, absolute_s = (stated, MODEL_S) if exact else (stated + REAL_MODEL, REAL_MODEL_S)
    bound = f"-{stated:.1%} to +{slower:.1%}, or {absolute_s * 1e3:g} ms"

    def beyond_s(time_s: float) -> float:
        off_s = time_s - predicted_s
        return abs(off_s) - max((slower if off_s > 0 else stated) * predicted_s, absolute_s)

    middle_s = median(step.time_s for step in steps)
    worst = max(steps, key=lambda step: beyond_s(step.time_s))
    wrong_s = middle_s
    words = f"The median step took {middle_s * 1e3:.4g} ms, the model says {predicted_s * 1e3:.4g}"
    if beyond_s(middle_s) <= 0 < beyond_s(worst.time_s) and singly:
        wrong_s = worst.time_s
        words = f"The step of trial {worst.trial} took {wrong_s * 1e3:.4g} ms, the model says {predicted_s * 1e3:.4g}"
    ok = beyond_s(wrong_s) <= 0
    words += "." if ok else ": farther off than the model ever was on such scenarios."
    return Invariant(name, bound, f"{wrong_s / predicted_s - 1:+.1%}", ok, words, severity="caution")
