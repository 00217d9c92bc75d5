"""Bootstrap "star": every rank sends its address to rank 0, which sends all addresses to every rank."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.transport.bootstrap import BootstrapReport, bootstrap
from testbed.comm.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job
from testbed.comm.transport.wire import Address


def exchange_addresses(method: str, job: Job) -> tuple[Sequence[Address], BootstrapReport]:
    """Run one of the methods of `bootstrap`."""
    rank, master, addresses, token, timeout_s = job
    return bootstrap(method, rank, len(addresses), master, addresses[rank], token, timeout_s)


@BOOTSTRAPS.register("star")
class Star(Bootstrap):
    """The bootstrap through rank 0 alone. Then every rank connects to every rank, as in NCCL's baseline."""

    connects_all = True

    @staticmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """See Bootstrap."""
        return exchange_addresses("star", job)
