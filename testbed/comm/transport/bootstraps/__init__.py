"""Bootstraps by name: each method finds the addresses of all ranks from what a rank knows at the start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from testbed.comm.transport.bootstrap import BootstrapReport
from testbed.comm.transport.wire import Address
from testbed.plugins import Registry, derived_from


class Job(NamedTuple):
    """The information that one rank has at the start.

    Attributes:
        rank: This rank.
        master: The address on which rank 0 listens during the bootstrap.
        addresses: The addresses that all ranks are to have.
        token: The job's secret.
        timeout_s: The limit of the bootstrap.
    """

    rank: int
    master: Address
    addresses: Sequence[Address]
    token: str
    timeout_s: float


class Bootstrap(ABC):
    """A method by which the ranks of a job find each other."""

    connects_all: ClassVar[bool] = False
    """Whether all ranks then connect to each other; otherwise connections are made on first use."""

    @staticmethod
    @abstractmethod
    def find(job: Job) -> tuple[Sequence[Address], BootstrapReport]:
        """Return the addresses of all ranks, and the cost of finding them for this rank. Raises TransportError."""


BOOTSTRAPS: Registry[type[Bootstrap]] = Registry(
    "bootstrap", "testbed.comm.transport.bootstraps", "testbed.bootstraps", derived_from(Bootstrap)
)
"""All bootstraps by name. Each registers itself in its module: `@BOOTSTRAPS.register("star")`."""
