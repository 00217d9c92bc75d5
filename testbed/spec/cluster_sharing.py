"""Sharing the cluster with other jobs: which hosts a scheduler gives a job, and other jobs' background traffic."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Annotated

from pydantic import Field

from testbed.errors import BadInput
from testbed.spec.base_model import Finding, StrictModel
from testbed.spec.buildings import Building, Host
from testbed.spec.topology import Topology, expected_host
from testbed.spec.value_types import Count, Dscp, Fraction, Name, choice, whole
from testbed.spec.yaml_loader import show

NEAR, SCATTERED = "near", "scattered"
HOSTS, RACKS = "hosts", "racks"
Racks = Sequence[Sequence[Host]]


class AllocationError(BadInput, ValueError):
    """A topology does not have what a job asks for; the message says what it has."""


class AllocationSpec(StrictModel):
    """Ranks per rack, zone and building, as Meta's scheduler MAST is told them (arXiv:2510.20171); and what is free.

    A rack is the hosts of a leaf switch, a zone that of a building with `clos`, else all of the building.
    """

    per_rack: Count | None = Field(
        default=None,
        description="Ranks on each rack that has any; a rack with fewer free hosts has none. By default as many as are "
        "free.",
    )
    per_zone: Count | None = Field(default=None, description="Likewise on each zone.")
    per_building: Count | None = Field(default=None, description="Likewise on each building.")
    order: Annotated[str, choice("an order", (NEAR, SCATTERED))] = Field(
        default=NEAR,
        description="near: consecutive ranks are next to each other; scattered: each next one is on another rack.",
    )
    busy: Fraction = Field(
        default=0.0, description="Part of all hosts that other jobs have, drawn by the seed."
    )
    busy_unit: Annotated[str, choice("a unit", (HOSTS, RACKS))] = Field(
        default=HOSTS, description="Whether other jobs have single hosts, or whole racks."
    )

    def checks(self) -> Iterator[Finding]:
        """Whole racks make a zone, whole zones a building."""
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
        """What is wrong with it in a scenario; named: hosts that this says by name, if any."""
        if named is not None:
            yield Finding(("allocation",), "allocation beside hosts", "one of both")
        if (expected := self.wrong_ranks(ranks)) is not None:
            yield Finding(("ranks",), str(ranks), expected)
            return
        try:
            allocate(topology, self, ranks, taken, seed)
        except AllocationError as error:
            yield Finding(("allocation",), error.found, error.expected)

    def hosts(
        self, topology: Topology, ranks: int, taken: Collection[str] = (), seed: int = 0
    ) -> tuple[Host, ...]:
        """Those of `allocate`; none where there is no room, which checks say."""
        try:
            return allocate(topology, self, ranks, taken, seed)
        except AllocationError:
            return ()

    def wrong_ranks(self, ranks: int) -> str | None:
        """What is expected of the number of ranks, where it is not so."""
        unit = self.per_building or self.per_zone or self.per_rack or 1
        return f"a multiple of allocation's {unit} ranks" if ranks % unit else None


def allocate(
    topology: Topology, spec: AllocationSpec, ranks: int, taken: Collection[str] = (), seed: int = 0
) -> tuple[Host, ...]:
    """Hosts of so many ranks, in the ranks' order, from the topology's first on. NoRoom.

    taken: names of hosts that are not to be had, beside those that are busy.
    """
    gone = {*taken, *(host.name for host in busy_hosts(topology, spec, seed))}
    found: list[list[Host]] = []
    for building in topology.buildings:
        left = ranks - sum(map(len, found))
        found += _exactly(
            _of_building(building, spec, gone, _want(spec.per_building, left)), spec.per_building
        )
    if (count := sum(map(len, found))) < ranks:
        asked = ", ".join(
            f"{getattr(spec, name)} {name}"
            for name in ("per_rack", "per_zone", "per_building")
            if getattr(spec, name)
        )
        raise AllocationError(
            got=f"{ranks} ranks" + (f", {asked}" if asked else ""),
            expected=f"at most {count}: {len(gone)} of {len(topology.hosts)} hosts are others'",
        )
    if spec.order == NEAR:
        return tuple(host for rack in found for host in rack)
    return tuple(host for turn in zip_longest(*found) for host in turn if host is not None)


def busy_hosts(topology: Topology, spec: AllocationSpec, seed: int) -> list[Host]:
    """Those that other jobs have: as many as are nearest to the part asked for."""
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


def _of_building(
    building: Building, spec: AllocationSpec, gone: Collection[str], want: int
) -> list[list[Host]]:
    """Hosts of a building's racks, up to so many in all."""
    zones = 1 if building.clos is None else building.clos.zones
    leaves = len(building.leaves) // zones
    found: list[list[Host]] = []
    for zone in range(zones):
        own: list[list[Host]] = []
        wanted = _want(spec.per_zone, want - sum(map(len, found)))
        for leaf in range(zone * leaves, (zone + 1) * leaves):
            free = [host for host in building.leaf_hosts(leaf) if host.name not in gone]
            most = _want(spec.per_rack, wanted - sum(map(len, own)))
            own += _exactly([free[:most]], spec.per_rack)
        found += _exactly(own, spec.per_zone)
    return found


def _want(unit: int | None, left: int) -> int:
    """How many to take where so many are left to be found: a unit, or none."""
    if unit is None:
        return left
    return unit if unit <= left else 0


def _exactly(racks: Racks, unit: int | None) -> list[list[Host]]:
    """Those, without empty ones, if they make up the unit; else none."""
    count = sum(map(len, racks))
    return [list(rack) for rack in racks if rack] if unit is None or count == unit else []


class BackgroundTrafficSpec(StrictModel):
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
