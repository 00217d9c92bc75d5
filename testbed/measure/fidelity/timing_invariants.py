"""Invariants of step and collective times, against each other and the model. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from testbed.measure.fidelity.verdict import Invariant

# Under the virtual clock, without chance: of a step by itself, and of one that is like the one before or after it, or
# among the first ones, in which TCP's windows open
ALIKE, DRIFT, ALIKE_S, SETTLING = 0.02, 0.05, 0.0002, 2
# Where most later steps are the same and no queue drops anything: times the usual deviation, and at least
DEVIATIONS, EQUAL, ENOUGH = 10, 0.005, 3
MODEL_S = 0.001
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
            which TCP sent segments again are then left out, and others may differ more.
    """
    name, bound = "steps_alike", f"within {ALIKE:.0%}, or {ALIKE_S * 1e3:g} ms"
    compared = [step for step in steps if not (dropped and step.resent)]
    if not why_not and len(compared) < 2:
        why_not = (
            "There is one step only." if len(steps) < 2 else "TCP sent segments again in all steps but one."
        )
    if why_not:
        return Invariant(name, bound, "not applicable", None, why_not)
    settled = compared[SETTLING:] if len(compared) >= SETTLING + ENOUGH else compared
    usual_s = median(step.time_s for step in settled)
    alike, drift = DRIFT if dropped else ALIKE, DRIFT  # losses leave windows smaller in the steps behind
    if settled is not compared and not dropped:
        spread = median(abs(step.time_s - usual_s) for step in settled) / usual_s
        alike = min(ALIKE, max(EQUAL, DEVIATIONS * spread))
        drift = DRIFT if alike == ALIKE else alike
    bound = f"within {alike:.1%}, or {ALIKE_S * 1e3:g} ms"
    beyond_s = []
    for number, step in enumerate(compared):
        beside = [compared[other].time_s for other in (number - 1, number + 1) if 0 <= other < len(compared)]
        drifts = min(abs(step.time_s - other_s) for other_s in beside) <= ALIKE * usual_s
        allowed = DRIFT if number < SETTLING else drift if drifts else alike
        beyond_s.append(abs(step.time_s - usual_s) - max(allowed * usual_s, ALIKE_S))
    worst = compared[max(range(len(compared)), key=beyond_s.__getitem__)]
    ok = max(beyond_s) <= 0
    words = f"The step of trial {worst.trial} took {worst.time_s * 1e3:.4g} ms, the median of {len(settled)} "
    words += f"{usual_s * 1e3:.4g}"
    words += "." if ok else ": nothing in the scenario makes steps differ."
    left_out = len(steps) - len(compared)
    words += f" Left out: {left_out} in which queues dropped packets." if left_out else ""
    return Invariant(name, bound, f"{worst.time_s / usual_s - 1:+.2%}", ok, words, severity="caution")


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


# How far off: shares below and above, and seconds.
EXACT, REAL_CLOCK = (0.9, 1.1, 0.0005), (0.9, 1.35, 0.01)


def model_agreement(
    measured_s: float | None,
    model_s: float,
    exact: bool,
    slowest_s: float | None = None,
    lossy: bool = False,
    what: str = "A ring all-reduce",
) -> Invariant:
    """Whether the collective took what the model says; `exact` under the virtual clock, where nothing else does.

    slowest_s: the same on the worst of parallel links, where it depends on the policy which one is taken. lossy:
    packets are lost on the way, which no such model knows of, and which may make it as slow as TCP is then. what: the
    collective, in words.
    """
    faster, slower, absolute_s = EXACT if exact else REAL_CLOCK
    slowest_s = max(slowest_s or 0.0, model_s)
    low_s, high_s = faster * model_s - absolute_s, slower * slowest_s + absolute_s
    made = f"{model_s * 1e3:.4g}"
    if slowest_s > 1.01 * model_s:
        made += f" to {slowest_s * 1e3:.4g}, by the plane that it takes"
    bound = f"{faster - 1:+.0%} to {slower - 1:+.0%}, or {absolute_s * 1e3:g} ms"
    if lossy:
        high_s = math.inf
        bound = f"at least {faster - 1:+.0%}, or {absolute_s * 1e3:g} ms"
        made += "; links lose packets, which makes it longer"
    if measured_s is None:
        return Invariant("model_agreement", bound, "not applicable", None, "There is one rank only.")
    return Invariant(
        "model_agreement",
        bound=bound,
        measured=f"{measured_s / model_s - 1:+.1%}",
        ok=low_s <= measured_s <= high_s,
        sentence=f"{what} alone on the network, before the steps, took {measured_s * 1e3:.4g} ms; "
        f"latency and bandwidth of its paths make {made}.",
        severity="caution",
    )
