"""Sharing the cluster with other jobs: the hosts a scheduler allocates to a job, and other jobs' background traffic."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Annotated

from testbed.errors import BadInput
from testbed.spec.base_model import Finding, StrictModel
from testbed.spec.buildings import Building, Host
from testbed.spec.topology import Topology, expected_host
from testbed.spec.value_types import Count, Dscp, Fraction, Name, choice, integer
from testbed.spec.yaml_loader import show

NEAR, SCATTERED = "near", "scattered"
HOSTS, RACKS = "hosts", "racks"
Racks = Sequence[Sequence[Host]]


class AllocationError(BadInput, ValueError):
    """A topology has too few hosts for a job. The message has the available number."""


class AllocationSpec(StrictModel):
    """Ranks per rack, zone and building, as given to Meta's scheduler MAST (arXiv:2510.20171), and the busy hosts.

    A rack has the hosts of one leaf switch. Zones are those of a building with `clos`; any other building is one zone.
    """

    per_rack: Count | None = None
    """Ranks in each rack in use; racks with fewer free hosts are not used. Default: all free hosts."""
    per_zone: Count | None = None
    """Ranks in each zone in use; zones with fewer free hosts are not used. Default: all free hosts."""
    per_building: Count | None = None
    """Ranks in each building in use; buildings with fewer free hosts are not used. Default: all free hosts."""
    order: Annotated[str, choice("an order", (NEAR, SCATTERED))] = NEAR
    """near: consecutive ranks are neighbours. scattered: consecutive ranks are in different racks."""
    busy: Fraction = 0.0
    """Share of all hosts that other jobs occupy, drawn with the seed."""
    busy_unit: Annotated[str, choice("a unit", (HOSTS, RACKS))] = HOSTS
    """The unit that other jobs occupy: single hosts or whole racks."""

    def checks(self) -> Iterator[Finding]:
        """Check that a zone has whole racks, and a building whole zones."""
        given = [
            (name, count)
            for name in ("per_rack", "per_zone", "per_building")
            if (count := getattr(self, name))
        ]
        for (inner, less), (outer, more) in pairwise(given):
            if more % less:
                yield Finding((outer,), str(more), f"a multiple of {inner}, {less}")

    def findings(
        self, topology: Topology, ranks: int, taken: Collection[str], seed: int, named: object
    ) -> Iterator[Finding]:
        """Check that a scenario's ranks can be allocated; `named`: hosts that the scenario names, if any."""
        if named is not None:
            yield Finding(("allocation",), "allocation with hosts", "only one of the two")
        if (expected := self.expected_ranks(ranks)) is not None:
            yield Finding(("ranks",), str(ranks), expected)
            return
        try:
            allocate(topology, self, ranks, taken, seed)
        except AllocationError as error:
            yield Finding(("allocation",), error.found, error.expected)

    def hosts(
        self, topology: Topology, ranks: int, taken: Collection[str] = (), seed: int = 0
    ) -> tuple[Host, ...]:
        """Return the hosts of `allocate`, or none if there is no room, which the checks report."""
        try:
            return allocate(topology, self, ranks, taken, seed)
        except AllocationError:
            return ()

    def expected_ranks(self, ranks: int) -> str | None:
        """Return the expected number of ranks if this one does not fit, else None."""
        unit = self.per_building or self.per_zone or self.per_rack or 1
        return f"a multiple of allocation's {unit} ranks" if ranks % unit else None


def allocate(
    topology: Topology, spec: AllocationSpec, ranks: int, taken: Collection[str] = (), seed: int = 0
) -> tuple[Host, ...]:
    """Return hosts for the ranks, in rank order, from the topology's first host on.

    Args:
        topology: the resolved topology.
        spec: units and order of the allocation.
        ranks: number of ranks.
        taken: names of hosts that are not available, in addition to the busy ones.
        seed: seed of the busy hosts.

    Raises:
        AllocationError: there are too few free hosts.
    """
    unavailable = {*taken, *(host.name for host in busy_hosts(topology, spec, seed))}
    found: list[list[Host]] = []
    for building in topology.buildings:
        left = ranks - sum(map(len, found))
        found += _whole_unit(
            _allocate_in_building(building, spec, unavailable, _units_to_take(spec.per_building, left)),
            spec.per_building,
        )
    if (count := sum(map(len, found))) < ranks:
        asked = ", ".join(
            f"{getattr(spec, name)} {name}"
            for name in ("per_rack", "per_zone", "per_building")
            if getattr(spec, name)
        )
        raise AllocationError(
            got=f"{ranks} ranks" + (f", {asked}" if asked else ""),
            expected=f"at most {count}: {len(unavailable)} of {len(topology.hosts)} hosts are taken",
        )
    if spec.order == NEAR:
        return tuple(host for rack in found for host in rack)
    return tuple(host for turn in zip_longest(*found) for host in turn if host is not None)


def busy_hosts(topology: Topology, spec: AllocationSpec, seed: int) -> list[Host]:
    """Return the hosts that other jobs occupy: the count closest to the requested share."""
    rng = random.Random(f"{seed}/allocation")
    count = round(spec.busy * len(topology.hosts))
    if spec.busy_unit == HOSTS:
        return rng.sample(list(topology.hosts), count)
    racks = [
        building.leaf_hosts(leaf) for building in topology.buildings for leaf in range(len(building.leaves))
    ]
    rng.shuffle(racks)
    found: list[Host] = []
    for rack in racks:
        if len(found) + len(rack) / 2 <= count:
            found += rack
    return found


def _allocate_in_building(
    building: Building, spec: AllocationSpec, unavailable: Collection[str], want: int
) -> list[list[Host]]:
    """Return up to `want` free hosts of a building, by rack."""
    zones = 1 if building.clos is None else building.clos.zones
    leaves = len(building.leaves) // zones
    found: list[list[Host]] = []
    for zone in range(zones):
        own: list[list[Host]] = []
        wanted = _units_to_take(spec.per_zone, want - sum(map(len, found)))
        for leaf in range(zone * leaves, (zone + 1) * leaves):
            free = [host for host in building.leaf_hosts(leaf) if host.name not in unavailable]
            most = _units_to_take(spec.per_rack, wanted - sum(map(len, own)))
            own += _whole_unit([free[:most]], spec.per_rack)
        found += _whole_unit(own, spec.per_zone)
    return found


def _units_to_take(unit: int | None, left: int) -> int:
    """Return how many hosts to take when `left` are still missing: all, one whole unit, or none."""
    if unit is None:
        return left
    return unit if unit <= left else 0


def _whole_unit(racks: Racks, unit: int | None) -> list[list[Host]]:
    """Return the non-empty racks if they make up the unit, else none."""
    count = sum(map(len, racks))
    return [list(rack) for rack in racks if rack] if unit is None or count == unit else []


class BackgroundTrafficSpec(StrictModel):
    """Another job, whose hosts continuously send to each other across the WAN, as fast as TCP allows."""

    name: Name
    """Name of the job."""
    hosts: tuple[str, ...]
    """Hosts of the job, in at least two buildings; each sends to all hosts in other buildings. They have no ranks."""
    connections: Annotated[int, integer(1, 64)] = 4
    """Connections from each host to each peer."""
    dscp: Dscp = 0
    """DSCP of its packets."""

    def target_findings(self, topology: Topology, taken: Sequence[str]) -> Iterator[Finding]:
        """Check that the hosts exist, are free, and span two buildings. `taken`: hosts of ranks and other jobs."""
        known = {host.name: host.building for host in topology.hosts}
        for position, name in enumerate(self.hosts):
            where = ("hosts", position)
            if name not in known:
                yield Finding(where, show(name), expected_host(topology, name, list(known)))
            elif name in taken or name in self.hosts[:position]:
                shown = f"{name}, which already has a rank or background traffic"
                yield Finding(where, shown, "an unused host")
        if len({known.get(name) for name in self.hosts}) < 2:
            yield Finding(("hosts",), f"[{', '.join(self.hosts)}]", "hosts in two buildings or more")
