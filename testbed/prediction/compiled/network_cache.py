"""Steps on one network: what is found out of it for one is there for the next."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from testbed.caches import IdentityCache
from testbed.comm.transport import Software
from testbed.net.paths.network import Members, Network
from testbed.prediction.compiled.network_columns import Ways
from testbed.prediction.compiled.simulation import Fold, Outcome, play
from testbed.prediction.symmetry import (
    CollectiveFlow,
    Folder,
    Isolated,
    alone_key,
    alone_plan,
    alone_software,
)
from testbed.workload.plan import GroupCollective, JobPlan

_alone: IdentityCache[JobPlan] = IdentityCache(256)  # collectives, which searches have on many networks


class _NotPlain(Exception):
    """A collective alone has to be played by `simulate`."""


class OnNetwork:
    """alone: what collectives take there by themselves, which `simulate` shares."""

    def __init__(self, network: Network, ranks: int, itemsize: int, software: Software) -> None:
        self.network, self.itemsize, self.software = network, itemsize, software
        self.ways = Ways(network, ranks, itemsize)
        self.alone: dict[Hashable, Isolated] = {}
        self._flows: dict[Hashable, CollectiveFlow | None] = {}

    def play(self, plan: JobPlan, *, folded: bool) -> Outcome | None:
        """What comes of a plan, see `simulate`; None where that has to play it."""
        try:
            return play(plan, self.ways, self.software, self._fold(plan) if folded else None)
        except _NotPlain:
            return None

    def _fold(self, plan: JobPlan) -> Fold:
        folder = Folder(self.network, self.itemsize, partial(self._isolated, plan))

        def fold(operation: GroupCollective) -> CollectiveFlow | None:
            _, members = plan.groups[operation.group]
            key = alone_key(plan, operation, members, plan.dscp(operation))
            if key not in self._flows:
                self._flows[key] = folder.flow(operation, plan)
            return self._flows[key]

        return fold

    def _isolated(self, plan: JobPlan, operation: GroupCollective, members: Members, dscp: int) -> Isolated:
        key = alone_key(plan, operation, members, dscp)
        if key not in self.alone:
            alone = _alone.of(
                (), lambda: alone_plan(plan, operation, members, dscp), (key, operation.kind, len(plan.ranks))
            )
            found = play(alone, self.ways, alone_software(self.software))
            if found is None:
                raise _NotPlain
            self.alone[key] = Isolated(found.step_time_s, found.worked_s.tolist(), found.burst_bytes)
        return self.alone[key]
