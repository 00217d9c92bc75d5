"""An emulated network that is asked for, before it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.net.controller import PolicyChoice
from testbed.net.fabric.daemon import start_background
from testbed.net.fabric.network import Fabric
from testbed.net.fabric.plan import Multipath
from testbed.spec.catalogue import locate_file
from testbed.spec.scale import Scale
from testbed.spec.topology import TopologySpec


@dataclass(frozen=True)
class Network:
    """An emulated network to put ranks on."""

    topology: TopologySpec
    backend: NetworkBackend
    scale: Scale
    policy: PolicyChoice

    def fabric(
        self,
        seed: int,
        progress: Callable[[str], None],
        multipath: Multipath | None = None,
        rdma: bool = False,
    ) -> Fabric:
        """The network to be built; multipath: for MPTCP; rdma: whether hosts' cards have verbs."""
        return Fabric(
            self.topology.resolve(self.scale),
            policy=self.policy,
            multipath=multipath,
            link_engine=self.backend.link_engine,
            datapath=self.backend.datapath,
            scale=self.scale,
            seed=seed,
            rdma=rdma,
            progress=progress,
        )

    def start(self, file: Path, progress: Callable[[str], None]) -> str:
        """Bring it up in a process of its own, which stays: its id. file: its topology's. FabricError."""
        options = {
            "policy": self.policy.to_data(),
            "link_engine": self.backend.link_engine,
            "datapath": self.backend.datapath,
            "scale": asdict(self.scale),
        }
        return start_background(locate_file(file, ("topologies",)).resolve(), options, progress)
