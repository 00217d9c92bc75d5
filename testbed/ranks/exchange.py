"""Small messages of a pipeline of two stages, there and back, one microbatch after the other."""

from __future__ import annotations

import numpy as np

from testbed.collectives import Communicator, count_wrong, fill
from testbed.job.spec import JobSpec
from testbed.workload import Exchange, partners

ACTIVATION, GRADIENT = 1, 2  # tags


def exchange(communicator: Communicator, job: JobSpec, action: Exchange, salt: int) -> int | None:
    """This rank's share; how many elements came wrong, None where it has none."""
    buildings = job.wiring.buildings
    peer = partners(buildings).get(communicator.rank)
    if peer is None:
        return None
    ours, theirs = (np.empty(action.numel, job.dtype) for _ in range(2))
    leads = buildings[communicator.rank] == min(buildings)
    out, back = (ACTIVATION, GRADIENT) if leads else (GRADIENT, ACTIVATION)
    wrong = 0
    for number in range(action.messages):
        # what rank 0 of a sum over one rank holds: the same at both ends
        fill(ours, 0, salt + number + out)
        if leads:
            communicator.send(ours, peer, out)
            communicator.recv(theirs, peer, back)
        else:
            communicator.recv(theirs, peer, back)
            communicator.sleep(action.compute_s)
            communicator.send(ours, peer, out)
        wrong += count_wrong(theirs, 1, salt + number + back)
    return wrong
