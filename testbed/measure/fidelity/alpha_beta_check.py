"""Whether a collective alone on the network takes what latency and bandwidth of its paths say."""

from __future__ import annotations

import math

from testbed.measure.fidelity.verdict import Invariant

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
