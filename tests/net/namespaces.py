"""Throw-away network namespaces for tests: each lives as long as one sleeping process, which dies with the test run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from pyroute2 import IPRoute

from testbed.net.links import network_namespace

# Says when it is in its namespaces, then lives until its standard input, held by the test run, ends.
_KEEPER = "echo ready; exec cat"


@dataclass
class Namespace:
    """A network (and mount) namespace, known by the process that keeps it."""

    pid: int

    @contextlib.contextmanager
    def netlink(self) -> Iterator[IPRoute]:
        """A netlink socket inside."""
        with network_namespace(self.pid), IPRoute() as ipr:
            yield ipr


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[tuple[Namespace, ...]]:
    """Make `count` namespaces; they and all in them are gone at the end, also when the test run is killed."""
    keepers = []
    try:
        for _ in range(count):
            keeper = subprocess.Popen(
                ["mnexec", "-n", "sh", "-c", _KEEPER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sys.stderr,
            )
            keepers.append(keeper)
            assert keeper.stdout is not None
            assert keeper.stdout.readline() == b"ready\n"
        yield tuple(Namespace(keeper.pid) for keeper in keepers)
    finally:
        for keeper in keepers:
            keeper.kill()
            keeper.communicate()
