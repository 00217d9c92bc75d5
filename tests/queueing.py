"""What queueing theory says of cards that serve requests in their order, each in the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

SETTLED = 1e-12  # of a probability, from one round to the next


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
    load = _load(rate_per_s, service_s, 1)
    return load * service_s / (2 * (1 - load))


def mdc_wait_s(rate_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait of one queue before several servers (Crommelin 1932). ValueError where there is no end.

    Whoever is there at one moment and in service has left a service time later, and nobody else has: so what is there
    then is what waited before and what has come meanwhile, of which this finds the stationary law; Little's does the
    rest. With equal service, servers that take turns do the same as one queue before all of them.
    """
    load = _load(rate_per_s, service_s, servers)
    mean = rate_per_s * service_s
    most = int(servers + 40 * max(1.0, math.sqrt(mean)) / (1 - load))
    counts = np.arange(most + 1)
    logs = counts * math.log(mean) - mean - np.array([math.lgamma(n + 1) for n in counts]) if mean else None
    coming = np.exp(logs) if logs is not None else np.eye(1, most + 1)[0]
    law = coming
    while True:
        waiting = np.concatenate([[law[: servers + 1].sum()], law[servers + 1 :]])
        following = np.convolve(waiting, coming)[: most + 1]
        following /= following.sum()
        if np.abs(following - law).max() < SETTLED * (1 - load):
            break
        law = following
    waiting_mean = float((np.maximum(counts - servers, 0) * law).sum())
    return waiting_mean / rate_per_s if rate_per_s else 0.0


def recent_waits_s(arrivals_s: Sequence[float], service_s: float, count: int) -> list[float]:
    """The same as `waits_s`, had the server been idle until `count` arrivals before each."""
    times = np.asarray(arrivals_s)
    found = np.zeros(len(times))
    for back in range(1, min(count, len(times) - 1) + 1):
        found[back:] = np.maximum(found[back:], back * service_s - (times[back:] - times[:-back]))
    return list(map(float, found))


def recent_wait_s(rate_per_s: float, service_s: float, count: int) -> float:
    """The mean of `recent_waits_s` with Poisson arrivals, exactly (Spitzer 1956); whatever the load."""
    load = rate_per_s * service_s
    found = 0.0
    for back in range(1, count + 1):
        # of so many gaps, a gamma variable, by how much it is short of so many services
        short = back * service_s * _at_least(back, back * load)
        found += (short - back / rate_per_s * _at_least(back + 1, back * load)) / back
    return found


def _at_least(count: int, mean: float) -> float:
    """The chance that a Poisson variable is at least so large."""
    term, less = math.exp(-mean), 0.0
    for number in range(count):
        less += term
        term *= mean / (number + 1)
    return 1.0 - less


def _load(rate_per_s: float, service_s: float, servers: int) -> float:
    load = rate_per_s * service_s / servers
    if not 0 <= load < 1:
        raise ValueError(f"a load of {load:g}, expected less than 1")
    return load
