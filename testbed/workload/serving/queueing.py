"""What queueing theory says of one card that serves requests in their order, each in the same time."""

from __future__ import annotations

from collections.abc import Sequence


def waits_s(arrivals_s: Sequence[float], service_s: float) -> list[float]:
    """How long each waits before it is served (Lindley 1952), one server, first come first served."""
    found: list[float] = []
    free_s = 0.0
    for arrival_s in arrivals_s:
        begin_s = max(arrival_s, free_s)
        found.append(begin_s - arrival_s)
        free_s = begin_s + service_s
    return found


def md1_wait_s(rate_per_s: float, service_s: float) -> float:
    """Mean wait with Poisson arrivals and equal service (Pollaczek-Khinchine). ValueError where there is no end."""
    load = rate_per_s * service_s
    if not 0 <= load < 1:
        raise ValueError(f"a load of {load:g}, expected less than 1")
    return load * service_s / (2 * (1 - load))
