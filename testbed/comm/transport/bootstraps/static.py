"""Bootstrap "static": ranks are given all addresses at the start."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.comm.transport.bootstrap import BootstrapReport
from testbed.comm.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job
from testbed.comm.transport.wire import Address


@BOOTSTRAPS.register("static")
class Static(Bootstrap):
    """The bootstrap without any communication."""

    @staticmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """See Bootstrap."""
        return job.addresses, BootstrapReport("static")
