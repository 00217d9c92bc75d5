"""What was asked of links against what is found in force."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from testbed.net.links.errors import SettingMismatch
from testbed.net.links.wire import LinkWire
from testbed.spec.link_direction import Direction, LossBursts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# How far a kernel's own units may be from what was asked: it keeps whole bytes per second and, for shares, 2^-32;
# tc shows microseconds, cut off.
TOLERANCES = {"rate_bps": 8.0, "delay_s": 1.5e-6, "jitter_s": 1.5e-6}
SHARE_TOLERANCE = 1e-6
RATE_TOLERANCE = 1e-6


def asked_of(wires: Iterable[LinkWire]) -> dict[tuple[str, str], Direction]:
    """Every direction's settings, by (link name, direction)."""
    return {(wire.name, which): getattr(wire, which) for wire in wires for which in ("a_to_b", "b_to_a")}


def compare_settings(
    asked: Mapping[tuple[str, str], Direction], found: Mapping[tuple[str, str], Direction]
) -> None:
    """SettingMismatch names the first setting that is not what was asked."""
    for (link, which), direction in asked.items():
        compare_fields(f"link {link} {which}", direction, found[link, which])


def compare_fields(where: str, asked: DataclassInstance, found: DataclassInstance) -> None:
    """SettingMismatch names the first field that is not as asked, within what the kernel's own units allow."""
    for field in fields(asked):
        wanted, seen = getattr(asked, field.name), getattr(found, field.name)
        if not _same(field.name, wanted, seen):
            raise SettingMismatch(where, field.name, wanted, seen)


def _same(name: str, wanted: object, seen: object) -> bool:
    if isinstance(wanted, LossBursts) and isinstance(seen, LossBursts):
        return all(
            _same(field.name, getattr(wanted, field.name), getattr(seen, field.name))
            for field in fields(LossBursts)
        )
    if isinstance(wanted, float) and isinstance(seen, float):
        tolerance = TOLERANCES.get(name, SHARE_TOLERANCE)
        return abs(wanted - seen) <= max(tolerance, RATE_TOLERANCE * wanted if name == "rate_bps" else 0.0)
    return wanted == seen
