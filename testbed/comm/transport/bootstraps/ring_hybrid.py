"""Rank 0 tells each rank its neighbour in a ring, round which addresses go."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.transport.bootstrap import BootstrapReport
from testbed.comm.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job
from testbed.comm.transport.bootstraps.star import exchange_addresses
from testbed.comm.transport.wire import Address


@BOOTSTRAPS.register("ring_hybrid")
class RingHybrid(Bootstrap):
    """Connections are made when used."""

    @staticmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """Round the ring."""
        return exchange_addresses("ring_hybrid", job)
