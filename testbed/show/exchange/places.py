"""Places on Earth, and how long a link between two of them may be."""

from __future__ import annotations

import math

from testbed.show.exchange.attribute_account import Element, number

EARTH_KM = 6371.0
_ROUNDED_KM = 2.0
"""By how much places that are given as cities may be nearer to each other than files' coordinates say."""
_ROUNDED_SHARE = 0.05
_MOST_DETOUR = 4.0
_MOST_DETOUR_KM = 50.0


def least_km(away_km: float) -> float:
    """Return how short a link over a great circle may be when places are rounded."""
    return max(away_km * (1 - _ROUNDED_SHARE) - _ROUNDED_KM, 0.0)


def is_plausible(length_km: float, away_km: float) -> bool:
    """Return whether a link may be so long between two places: not shorter than the great circle, no vast detour."""
    return least_km(away_km) <= length_km <= away_km * _MOST_DETOUR + _MOST_DETOUR_KM


def great_circle_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the distance of two places, by latitude and longitude in degrees, on a sphere as large as the Earth."""
    (lat, lon), (there_lat, there_lon) = (tuple(map(math.radians, place)) for place in (one, other))
    half = math.sin((there_lat - lat) / 2) ** 2
    half += math.cos(lat) * math.cos(there_lat) * math.sin((there_lon - lon) / 2) ** 2
    return 2 * EARTH_KM * math.asin(min(math.sqrt(half), 1.0))


def place_of(node: Element, names: tuple[str | None, str | None]) -> tuple[float, float] | None:
    """Return latitude and longitude; None where a node has none, or they are on no Earth."""
    if None in names:
        return None
    lat, lon = (number(node.attributes[name or ""]) for name in names)
    if lat is None or lon is None or abs(lat) > 90 or abs(lon) > 180:
        for name in names:
            node.reject(name or "", "no place on Earth, in degrees")
        return None
    return lat, lon
