"""Checks of step and collective times, compared with each other and with the model. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from testbed.measure.fidelity.verdict import Finding, check

# Allowed deviation under the virtual clock without randomness: ALIKE for an isolated step, and DRIFT for a step that
# matches its neighbour or is among the first SETTLING steps, in which TCP's windows grow
ALIKE, DRIFT, ALIKE_S, SETTLING = 0.02, 0.05, 0.0002, 2
# If most later steps are equal and no queue drops packets: DEVIATIONS times the usual deviation, but at least EQUAL
DEVIATIONS, EQUAL, ENOUGH = 10, 0.005, 3
MODEL_S = 0.001
REAL_MODEL, REAL_MODEL_S = (
    0.35,
    0.01,
)  # on the real clock: slack for slow steps, in addition to the model's error


@dataclass(frozen=True)
class StepTime:
    """The time of one step; `resent` counts the TCP segments that all hosts retransmitted during it."""

    trial: int
    time_s: float
    resent: int = 0


@check(f"within {ALIKE:.0%}, or {ALIKE_S * 1e3:g} ms", "caution")
def steps_alike(steps: Sequence[StepTime], why_not: str = "", dropped: int = 0) -> Finding:
    """Compare each step of a variant with the median: without randomness they should take the same time.

    Args:
        steps: The steps of one variant.
        why_not: A sentence that explains why steps may differ; empty if there is no reason.
        dropped: Number of frames that the topology's queues dropped in the whole run. The choice of dropped frames is
            chaotic, so steps with retransmissions are left out in this case, and the others may differ more.
    """
    compared = [step for step in steps if not (dropped and step.resent)]
    if not why_not and len(compared) < 2:
        why_not = "There is only one step." if len(steps) < 2 else "TCP retransmitted in all steps but one."
    if why_not:
        return Finding("not applicable", why_not)
    settled = compared[SETTLING:] if len(compared) >= SETTLING + ENOUGH else compared
    usual_s = median(step.time_s for step in settled)
    alike, drift = DRIFT if dropped else ALIKE, DRIFT  # losses leave smaller windows for later steps
    if settled is not compared and not dropped:
        spread = median(abs(step.time_s - usual_s) for step in settled) / usual_s
        alike = min(ALIKE, max(EQUAL, DEVIATIONS * spread))
        drift = DRIFT if alike == ALIKE else alike
    bound = f"within {alike:.1%}, or {ALIKE_S * 1e3:g} ms"
    beyond_s = []
    for number, step in enumerate(compared):
        neighbours = [compared[at].time_s for at in (number - 1, number + 1) if 0 <= at < len(compared)]
        drifts = min(abs(step.time_s - other_s) for other_s in neighbours) <= ALIKE * usual_s
        allowed = DRIFT if number < SETTLING else drift if drifts else alike
        beyond_s.append(abs(step.time_s - usual_s) - max(allowed * usual_s, ALIKE_S))
    worst = compared[max(range(len(compared)), key=beyond_s.__getitem__)]
    ok = max(beyond_s) <= 0
    sentence = f"The step of trial {worst.trial} took {worst.time_s * 1e3:.4g} ms, the median of {len(settled)} steps "
    sentence += f"{usual_s * 1e3:.4g} ms"
    sentence += "." if ok else ": nothing in the scenario explains the difference."
    left_out = len(steps) - len(compared)
    sentence += f" Left out: {left_out} in which queues dropped packets." if left_out else ""
    return Finding(f"{worst.time_s / usual_s - 1:+.2%}", sentence, ok, bound=bound)


@check(
    f"the model's own error, or {MODEL_S * 1e3:g} ms; by the real clock up to {REAL_MODEL:.0%} slower still, or "
    f"{REAL_MODEL_S * 1e3:g} ms",
    "caution",
)
def model_error(
    steps: Sequence[StepTime],
    predicted_s: float | None,
    stated: float | None,
    exact: bool,
    singly: bool = True,
) -> Finding:
    """Compare a variant's median, and each of its steps, with the model.

    Args:
        steps: The steps of one variant.
        predicted_s: The predicted step time in seconds; None if the model does not cover the scenario.
        stated: The model's documented relative error for such scenarios; None if it was never measured.
        exact: Whether the run used the virtual clock; on the real clock, steps take longer than predicted.
        singly: Whether to check single steps, too; this must be false if randomness makes them differ.
    """
    if predicted_s is None or stated is None:
        sentence = "The model does not cover this scenario."
        if predicted_s is not None:
            sentence = "The model's error on this kind of scenario has not been measured."
        return Finding("not applicable", sentence, bound="the model's own")
    slower, absolute_s = (stated, MODEL_S) if exact else (stated + REAL_MODEL, REAL_MODEL_S)
    bound = f"-{stated:.1%} to +{slower:.1%}, or {absolute_s * 1e3:g} ms"

    def beyond_s(time_s: float) -> float:
        off_s = time_s - predicted_s
        return abs(off_s) - max((slower if off_s > 0 else stated) * predicted_s, absolute_s)

    median_s = median(step.time_s for step in steps)
    worst = max(steps, key=lambda step: beyond_s(step.time_s))
    checked_s, which = median_s, "The median step"
    if beyond_s(median_s) <= 0 < beyond_s(worst.time_s) and singly:
        checked_s, which = worst.time_s, f"The step of trial {worst.trial}"
    ok = beyond_s(checked_s) <= 0
    sentence = f"{which} took {checked_s * 1e3:.4g} ms, the model predicts {predicted_s * 1e3:.4g} ms"
    sentence += "." if ok else ": a larger error than the model ever had on such scenarios."
    return Finding(f"{checked_s / predicted_s - 1:+.1%}", sentence, ok, bound=bound)


# Bounds against the model: lower and upper factor, and seconds.
EXACT, REAL_CLOCK = (0.9, 1.1, 0.0005), (0.9, 1.35, 0.01)


def _range(bounds: tuple[float, float, float]) -> str:
    faster, slower, absolute_s = bounds
    return f"{faster - 1:+.0%} to {slower - 1:+.0%}, or {absolute_s * 1e3:g} ms"


@check(f"{_range(EXACT)}; by the real clock {_range(REAL_CLOCK)}", "caution")
def model_agreement(
    measured_s: float | None,
    model_s: float,
    exact: bool,
    slowest_s: float | None = None,
    lossy: bool = False,
    what: str = "A ring all-reduce",
) -> Finding:
    """Check that the isolated collective took as long as the model predicts.

    Args:
        measured_s: Measured time in seconds; None if there is only one rank.
        model_s: Predicted time in seconds.
        exact: Whether the run used the virtual clock, which has tighter bounds.
        slowest_s: Prediction for the slowest of several parallel links, if the policy decides which one is taken.
        lossy: Whether links lose packets. The model ignores losses, so in this case there is no upper bound.
        what: Name of the collective in the sentence.
    """
    faster, slower, absolute_s = bounds = EXACT if exact else REAL_CLOCK
    slowest_s = max(slowest_s or 0.0, model_s)
    low_s, high_s = faster * model_s - absolute_s, slower * slowest_s + absolute_s
    prediction = f"{model_s * 1e3:.4g} ms"
    if slowest_s > 1.01 * model_s:
        prediction = f"{model_s * 1e3:.4g} to {slowest_s * 1e3:.4g} ms, depending on the plane"
    bound = _range(bounds)
    if lossy:
        high_s = math.inf
        bound = f"at least {faster - 1:+.0%}, or {absolute_s * 1e3:g} ms"
        prediction += "; links lose packets, which makes it longer"
    if measured_s is None:
        return Finding("not applicable", "There is only one rank.", bound=bound)
    return Finding(
        f"{measured_s / model_s - 1:+.1%}",
        f"{what} alone on the network, before the steps, took {measured_s * 1e3:.4g} ms; "
        f"from latency and bandwidth of its paths it should take {prediction}.",
        low_s <= measured_s <= high_s,
        bound=bound,
    )
