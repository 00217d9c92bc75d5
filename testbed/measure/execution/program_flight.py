"""Flight recorders of programs that use the backend `testbed`: memory that outlives a rank, dumps when one fails."""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.comm.flight_recorder import DUMPS, FLIGHT, PATHS_FILE, NetworkPaths, dump_name, read_ring
from testbed.comm.flight_recorder.ring_buffer import ring_bytes
from testbed.contrib.torch.launch_env import ring_name
from testbed.measure.results.run_directory import hand_over
from testbed.workload.job.endpoints import RankEndpoint


class ProgramFlight:
    """Of the ranks at these endpoints. output: the folder that dumps go into, made when there are any.

    kept: whether there are.
    """

    def __init__(self, endpoints: Sequence[RankEndpoint], output: Path) -> None:
        self._endpoints = endpoints
        self._output = output
        self._rings: dict[int, mmap.mmap] = {}
        self.kept = False

    def make(self, folder: Path) -> None:
        """Every rank's ring as a file of its name in the folder; its memory is kept here when the folder is gone."""
        for endpoint in self._endpoints:
            path = folder / ring_name(endpoint.rank)
            with path.open("x+b") as file:
                file.truncate(ring_bytes())
                self._rings[endpoint.rank] = mmap.mmap(file.fileno(), 0)

    def keep(self, ended: Mapping[int, str]) -> None:
        """Dump what every rank's operations do now, unless none has begun any. ended: how ranks ended, by rank."""
        now_s = time.monotonic()
        dumps = [
            read_ring(self._rings[one.rank], one.host, now_s, ended.get(one.rank, ""))
            for one in self._endpoints
            if any(self._rings[one.rank][:8])  # the others have made no process group
        ]
        if not any(dump.entries for dump in dumps):
            return
        folder = self._output / FLIGHT
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(DUMPS):
            old.unlink()  # of more ranks, perhaps
        for dump in dumps:
            dump.write(folder / dump_name(dump.rank))
        # which parts of the network a pair crosses is not told
        NetworkPaths({one.rank: one.host for one in self._endpoints}, one_clock=True).write(
            folder / PATHS_FILE
        )
        hand_over(self._output)
        self.kept = True
