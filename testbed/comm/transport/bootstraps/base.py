"""What a bootstrap is: from what a rank knows at the start to the addresses of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from testbed.comm.transport.bootstrap import BootstrapReport
from testbed.comm.transport.wire import Address
from testbed.plugins import Registry, derived_from


class Job(NamedTuple):
    """What one rank is told. master: where rank 0 listens meanwhile; addresses: of all ranks, as they are to be."""

    rank: int
    master: Address
    addresses: Sequence[Address]
    token: str
    timeout_s: float


class Bootstrap(ABC):
    """A way for the ranks of a job to find each other."""

    connects_all: ClassVar[bool] = False
    """Whether everybody connects to everybody then; else connections are made when used."""

    @staticmethod
    @abstractmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """The addresses of all ranks, and what finding them cost this one. TransportError."""


BOOTSTRAPS: Registry[type[Bootstrap]] = Registry(
    "bootstrap", "testbed.comm.transport.bootstraps", "testbed.bootstraps", derived_from(Bootstrap)
)
"""All that have a name. Each registers where it stands: `@BOOTSTRAPS.register("star")`."""
