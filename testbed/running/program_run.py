"""Programs of anybody as the ranks of a job, on a network that is built for them, or on this machine's loopback."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from testbed.config import ConfigError, Problem
from testbed.fabric.state import ENVIRONMENT_MARK, clean_abandoned
from testbed.job.resolving import endpoints_on, loopback_endpoints
from testbed.ranks.programs import Programs
from testbed.running.choosing import command_given
from testbed.running.networks import Network

SEED = 1


def program_given(arguments: Sequence[str]) -> list[str]:
    """A program that there is, and its arguments. ConfigError."""
    command = command_given(arguments)
    if shutil.which(command[0]) is None:
        raise ConfigError([Problem("command line", None, "COMMAND", command[0], "a program that there is")])
    return command


def run_programs(
    command: Sequence[str],
    network: Network | None,
    ranks: int,
    show: Callable[[int, bool, str], None],
    progress: Callable[[str], None],
) -> int:
    """Run a program once per rank, each in its host, to their end; nothing is left, however that comes.

    Args:
        command: The program and its arguments.
        network: The network to build; None: this machine's loopback, without one.
        ranks: How many; on a network at most as many as it has hosts, of which the first are taken.
        show: Called with every line that a rank prints: rank, whether to standard error, line.
        progress: Called with a line for each phase of building.

    Returns:
        The worst exit status.

    Raises:
        FabricError: When the network cannot be built, or breaks.
        OSError: When the program cannot be started.
    """
    if network is None:
        with loopback_endpoints(ranks) as endpoints:
            return Programs(list(command), endpoints, show).run()
    clean_abandoned()
    resolved = network.topology.resolve(network.scale)
    with network.fabric(SEED, progress) as fabric:
        if not network.scale.is_one:
            progress(str(network.scale))
        endpoints = endpoints_on(resolved, resolved.hosts[:ranks], fabric.state.pids)
        environment = {ENVIRONMENT_MARK: fabric.state.id}
        return Programs(list(command), endpoints, show, environment, fabric.failure).run()
