"""Everybody tells rank 0, which tells everybody."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.transport.bootstrap import BootstrapReport, bootstrap
from testbed.comm.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job
from testbed.comm.transport.wire import Address


def exchange_addresses(method: str, job: Job) -> tuple[Sequence[Address], BootstrapReport]:
    """By one of the methods of `bootstrap`."""
    rank, master, addresses, token, timeout_s = job
    return bootstrap(method, rank, len(addresses), master, addresses[rank], token, timeout_s)


@BOOTSTRAPS.register("star")
class Star(Bootstrap):
    """Then everybody connects to everybody, as in NCCL's baseline."""

    connects_all = True

    @staticmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """Through rank 0 alone."""
        return exchange_addresses("star", job)
