"""An emulated network that is asked for, before it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from testbed.config import TopologySpec
from testbed.controller import PolicyChoice
from testbed.fabric.network import Fabric
from testbed.fabric.plan import Multipath
from testbed.fidelity.capacity import NetworkBackend
from testbed.scale import Scale


@dataclass(frozen=True)
class Network:
    """An emulated network to put ranks on."""

    topology: TopologySpec
    backend: NetworkBackend
    scale: Scale
    policy: PolicyChoice

    def fabric(
        self, seed: int, progress: Callable[[str], None], multipath: Multipath | None = None
    ) -> Fabric:
        """The network to be built; multipath: for MPTCP."""
        return Fabric(
            self.topology.resolve(self.scale),
            policy=self.policy,
            multipath=multipath,
            link_engine=self.backend.link_engine,
            datapath=self.backend.datapath,
            scale=self.scale,
            seed=seed,
            progress=progress,
        )
