"""What a run's link engine counted of pauses, for its records and its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.measure.fidelity import Invariant
from testbed.measure.fidelity.pause_invariants import lossless, no_circle
from testbed.net.fabric.bridges import cables
from testbed.net.links.link_engine import EngineStats
from testbed.net.paths.buffer_checks import find_pause_cycle
from testbed.spec.link_direction import DIRECTIONS, Direction
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology


def paused_links(
    topology: Topology, first: EngineStats, last: EngineStats, scale: Scale
) -> list[dict[str, Any]]:
    """Return a `PausedLink` for each link of a network that pauses; none for any other network."""
    if not topology.pauses:
        return []
    found = []
    for (link, which), direction in _directions(topology).items():
        early, late = first.directions[link, which], last.directions[link, which]
        buffer_bytes = direction.pause.buffer_bytes if direction.pause else 0
        found.append(
            {
                "link": link,
                "direction": which,
                "pauses": late.pauses - early.pauses,
                "paused_share": (late.paused_s - early.paused_s) / (last.time_s - first.time_s),
                "buffer_bytes": round(scale.real_bytes(buffer_bytes)),
                "buffer_peak_bytes": round(scale.real_bytes(late.buffer_peak_bytes)),
                "dropped": late.buffer_drops - early.buffer_drops,
            }
        )
    return found


def _directions(topology: Topology) -> dict[tuple[str, str], Direction]:
    """Of all that the link engine carries. To a host nobody pauses who sends."""
    found = {(link.name, which): getattr(link, which) for link in topology.wan for which in DIRECTIONS}
    hosts = {host.name for host in topology.hosts}
    for cable in cables(topology):
        assert cable.direction is not None
        found[cable.name, "a_to_b"] = cable.direction
        if cable.a[0] not in hosts:
            found[cable.name, "b_to_a"] = cable.direction
    return found


def pause_invariants(topology: Topology, rows: Sequence[Mapping[str, Any]]) -> list[Invariant]:
    """Of a network that pauses; none of another."""
    if not topology.pauses:
        return []
    shares = {f"{row['link']} {row['direction']}": _filled(row) for row in rows}
    fullest = max(shares, key=shares.__getitem__)
    dropped, pauses = (sum(row[name] for row in rows) for name in ("dropped", "pauses"))
    return [
        lossless(dropped, pauses, fullest, shares[fullest]),
        no_circle(find_pause_cycle(topology)),
    ]


def _filled(row: Mapping[str, Any]) -> float:
    return row["buffer_peak_bytes"] / row["buffer_bytes"] if row["buffer_bytes"] else 0.0
