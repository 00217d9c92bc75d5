"""Built-in bootstraps: through rank 0 alone, around a ring, or static, with all addresses given."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.transport.bootstrap import BootstrapReport, bootstrap
from testbed.comm.transport.bootstraps import BOOTSTRAPS, Bootstrap, Job
from testbed.comm.transport.wire import Address


def _exchange_addresses(method: str, job: Job) -> tuple[Sequence[Address], BootstrapReport]:
    rank, master, addresses, token, timeout_s = job
    return bootstrap(method, rank, len(addresses), master, addresses[rank], token, timeout_s)


@BOOTSTRAPS.register("star")
class Star(Bootstrap):
    """Every rank sends its address to rank 0, which sends all addresses to every rank.

    Then every rank connects to every other rank, as in NCCL's baseline.
    """

    connects_all = True

    @staticmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """See Bootstrap."""
        return _exchange_addresses("star", job)


@BOOTSTRAPS.register("ring_hybrid")
class RingHybrid(Bootstrap):
    """Rank 0 sends each rank its neighbour in a ring, and addresses go around the ring."""

    @staticmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """See Bootstrap."""
        return _exchange_addresses("ring_hybrid", job)


@BOOTSTRAPS.register("static")
class Static(Bootstrap):
    """Ranks are given all addresses at the start."""

    @staticmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """See Bootstrap."""
        return job.addresses, BootstrapReport("static")
