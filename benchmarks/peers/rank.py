"""One rank of `compare.py`: an all-reduce at several sizes by one library; rank 0 prints seconds per call as JSON.

Started by `testbed launch` or by `compare.py`, in the environment of `benchmarks/peers/requirements.txt` for gloo and
mpich, in the project's own for ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Reduce = Callable[[], object]


class Ours:
    """The testbed's communicator, by `auto` or the algorithm named."""

    def __init__(self, algorithm: str = "auto") -> None:
        import psutil

        from testbed.comm.collectives import Communicator
        from testbed.comm.transport import MeshSettings, TcpTransport
        from testbed.comm.transport.bootstrap import bootstrap

        self.rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        interface = psutil.net_if_addrs()[os.environ["GLOO_SOCKET_IFNAME"]]
        own = next(entry.address for entry in interface if entry.family.name == "AF_INET")
        master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        addresses, _ = bootstrap("ring_hybrid", self.rank, size, master, (own, 29_500), "peers")
        transport = TcpTransport(self.rank, addresses, MeshSettings("peers", congestion_control="cubic"))
        groups = [int(word) for word in os.environ["TESTBED_BUILDINGS"].split(",")]
        self.communicator = Communicator(transport, groups)
        self.algorithm = algorithm
        self.close = transport.close

    def prepare(self, array: np.ndarray[Any, Any]) -> Reduce:
        """What reduces this array."""
        return lambda: self.communicator.all_reduce(array, algorithm=self.algorithm)

    def barrier(self) -> None:
        """Wait for all."""
        self.communicator.barrier()


class Gloo:
    """PyTorch's gloo."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.torch, self.dist, self.rank = torch, dist, dist.get_rank()
        self.close = dist.destroy_process_group

    def prepare(self, array: np.ndarray[Any, Any]) -> Reduce:
        """What reduces this array."""
        tensor = self.torch.from_numpy(array)
        return lambda: self.dist.all_reduce(tensor)

    def barrier(self) -> None:
        """Wait for all."""
        self.dist.barrier()


class Mpich:
    """MPICH over TCP."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        self.in_place, self.rank = MPI.IN_PLACE, self.world.rank
        self.close = lambda: None

    def prepare(self, array: np.ndarray[Any, Any]) -> Reduce:
        """What reduces this array."""
        return lambda: self.world.Allreduce(self.in_place, array)

    def barrier(self) -> None:
        """Wait for all."""
        self.world.Barrier()


def main() -> None:
    """Arguments: library, sizes in bytes with commas between, timed repetitions, repetitions before."""
    library, sizes, iterations, warmup = sys.argv[1:5]
    name, _, algorithm = library.partition(":")
    ours = Ours(algorithm or "auto") if name == "ours" else None
    used: Ours | Gloo | Mpich = ours or (Gloo() if name == "gloo" else Mpich())
    found = {}
    for size_bytes in map(int, sizes.split(",")):
        array = np.ones(size_bytes // 4, np.float32)
        reduce = used.prepare(array)
        for _ in range(int(warmup)):
            reduce()
        array[:] = 1
        used.barrier()
        # large ones less often: they take long, and vary little
        count = max(3, int(iterations) * min(1, 65_536 // size_bytes) or 3)
        begun_s = time.perf_counter()
        for _ in range(count):
            reduce()
        found[size_bytes] = (time.perf_counter() - begun_s) / count
        used.barrier()
        array[:] = 1
        reduce()
        assert (array == int(os.environ["WORLD_SIZE"])).all(), "wrong"
    if used.rank == 0:
        print(json.dumps(found), flush=True)
    used.barrier()
    used.close()


if __name__ == "__main__":
    main()
