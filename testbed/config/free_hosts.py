"""How many hosts a scenario has for its ranks, before it is known whether it is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.config.model import look
from testbed.config.nodes import hosts_of


def free_hosts(data: Mapping[str, Any]) -> int | None:
    """Hosts for ranks in a scenario that is not validated yet; None if they cannot be counted."""
    if isinstance(named := data.get("hosts"), list | tuple):
        return len(named)
    background = data.get("background_traffic")
    entries = background if isinstance(background, list | tuple) else ()
    taken = [look(entry, "hosts") for entry in entries if isinstance(entry, Mapping)]
    count = _host_count(data)
    return None if count is None else count - sum(len(hosts) for hosts in taken if isinstance(hosts, list))


def _host_count(data: Mapping[str, Any]) -> int | None:
    """Hosts of a scenario that is not validated yet; None if they cannot be counted."""
    buildings = look(data, "topology", "buildings")
    counts = list(map(hosts_of, buildings.values())) if isinstance(buildings, Mapping) else []
    return sum(counts) if counts and all(isinstance(count, int) and count > 0 for count in counts) else None
