"""Ranks are told all addresses at the start."""

from __future__ import annotations

from testbed.transport.bootstrap import Address, BootstrapReport
from testbed.transport.bootstraps.base import BOOTSTRAPS, Bootstrap, Job


@BOOTSTRAPS.register("static")
class Static(Bootstrap):
    """Nothing is asked of anybody."""

    @staticmethod
    def find(job: Job) -> tuple[list[Address], BootstrapReport]:
        """What the rank was told."""
        return job.addresses, BootstrapReport("static")
