"""Bootstrap "ring_hybrid": rank 0 sends each rank its neighbour in a ring, and addresses go around the ring."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.transport.bootstrap import BootstrapReport
from testbed.comm.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job
from testbed.comm.transport.bootstraps.star import exchange_addresses
from testbed.comm.transport.wire import Address


@BOOTSTRAPS.register("ring_hybrid")
class RingHybrid(Bootstrap):
    """The ring bootstrap. Connections are made on first use."""

    @staticmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """See Bootstrap."""
        return exchange_addresses("ring_hybrid", job)
