"""Background traffic of a scenario: other jobs whose flows share the network with the ranks' own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from testbed.spec.base_model import Finding, Strict
from testbed.spec.topology import Topology, expected_host
from testbed.spec.value_types import Dscp, Name, whole
from testbed.spec.yaml_loader import show


class BackgroundTrafficSpec(Strict):
    """Another job: its hosts send to each other across the WAN all the time, as fast as TCP lets them."""

    name: Name = Field(description="Name of the job.")
    hosts: tuple[str, ...] = Field(
        description="Its hosts, in two buildings or more; each sends to all in other buildings. They carry no ranks."
    )
    connections: Annotated[int, whole(1, 64)] = Field(
        default=4, description="Connections from each host to each other one."
    )
    dscp: Dscp = Field(default=0, description="DSCP of its packets.")

    def target_findings(self, topology: Topology, taken: Sequence[str]) -> Iterator[Finding]:
        """Whether its hosts exist, are free, and in two buildings or more. taken: hosts of ranks and of other jobs."""
        known = {host.name: host.building for host in topology.hosts}
        for position, name in enumerate(self.hosts):
            where = ("hosts", position)
            if name not in known:
                yield Finding(where, show(name), expected_host(topology, name, list(known)))
            elif name in taken or name in self.hosts[:position]:
                shown = f"{name}, which has a rank or background traffic already"
                yield Finding(where, shown, "a host that nobody uses")
        if len({known.get(name) for name in self.hosts}) < 2:
            yield Finding(("hosts",), f"[{', '.join(self.hosts)}]", "hosts in two buildings or more")
