"""Rank 0 tells each rank its neighbour in a ring, round which addresses go."""

from __future__ import annotations

from testbed.transport.bootstrap import Address, BootstrapReport
from testbed.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job
from testbed.transport.bootstraps.star import exchange


@BOOTSTRAPS.register("ring_hybrid")
class RingHybrid(Bootstrap):
    """Connections are made when used."""

    @staticmethod
    def find(job: Job) -> tuple[list[Address], BootstrapReport]:
        """Round the ring."""
        return exchange("ring_hybrid", job)
