"""Programs of anybody as the ranks of a job, on a network that is built for them, or on this machine's loopback."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from testbed.comm.transport import PROTOCOLS, TRANSPORTS
from testbed.measure.execution.networks import Network
from testbed.measure.execution.program_check import ProgramCheck, words_of
from testbed.measure.execution.program_flight import ProgramFlight
from testbed.measure.execution.resolve_backend import LOOPBACK_RANKS, command_given
from testbed.measure.execution.torch_programs import TorchOptions, torch_environment
from testbed.measure.ranks.programs import Programs
from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, clean_abandoned
from testbed.net.virtual.guest import DEFAULT_MEMORY_BYTES
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology
from testbed.workload.job.endpoint_resolution import (
    endpoints_on,
    loopback_endpoints,
    multipath_of,
    wants_rdma,
)

SEED = 1
CLOCKS = ("real", "virtual")
UNTRUSTED = 3
RANK_BYTES = 384 << 20  # of a guest, for a program with PyTorch and a small model


def check_words(transport: str, protocol: str, clock: str) -> None:
    """ConfigError names the first option whose value is none of those that there are."""
    for option, value, own in (("--transport", transport, TRANSPORTS), ("--protocol", protocol, PROTOCOLS)):
        if (expected := own.expected(value)) is not None:
            raise ConfigError([Problem("command line", None, option, value, expected)])
    if clock not in CLOCKS:
        raise ConfigError([Problem("command line", None, "--clock", clock, " or ".join(CLOCKS))])


def guest_bytes(ranks: int | None, topology: Path | None) -> int:
    """Memory that programs' guest may use, where nobody says how much: nothing of it is used before it is needed."""
    if ranks is None:
        ranks = len(load_topology(topology).resolve().hosts) if topology else LOOPBACK_RANKS
    return DEFAULT_MEMORY_BYTES + ranks * RANK_BYTES


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
    options: TorchOptions | None = None,
    strict: bool = False,
    output: Path | None = None,
) -> int:
    """Run a program once per rank, each in its host, to their end; nothing is left, however that comes.

    Args:
        command: The program and its arguments.
        network: The network to build; None: this machine's loopback, without one.
        ranks: How many; on a network at most as many as it has hosts, of which the first are taken.
        show: Called with every line that a rank prints: rank, whether to standard error, line.
        progress: Called with a line for each phase of building.
        options: Of collectives of programs with PyTorch that use the backend `testbed`.
        strict: Measure the network before, check it after.
        output: Where dumps of flight recorders go when a rank fails; None: nobody records.

    Returns:
        The worst exit status; UNTRUSTED where that is 0 and the network was not the one that was asked for.

    Raises:
        FabricError: When the network cannot be built, or breaks.
        OSError: When the program cannot be started.
    """
    options = options or TorchOptions()
    if network is None:
        with loopback_endpoints(2 * ranks) as endpoints:
            theirs, ours = endpoints[:ranks], endpoints[ranks:]  # ports for programs, and for the backend
            ours = [replace(one, rank=rank) for rank, one in enumerate(ours)]
            flight = None if output is None else ProgramFlight(ours, output)
            with torch_environment(options, ours, None, Scale(), SEED, flight) as environment:
                return _run(Programs(list(command), theirs, show, environment), flight, output, progress)
    clean_abandoned()
    resolved = network.topology.resolve(network.scale)
    multipath = multipath_of(options.transport, resolved.hosts[:ranks])
    with network.fabric(SEED, progress, multipath, wants_rdma(options.transport)) as fabric:
        if not network.scale.is_one:
            progress(str(network.scale))
        if strict:
            progress("measuring rate and delay of every WAN link")
        check = ProgramCheck(fabric) if strict else None
        endpoints = endpoints_on(resolved, resolved.hosts[:ranks], fabric.state.pids)
        flight = None if output is None else ProgramFlight(endpoints, output)
        with torch_environment(options, endpoints, resolved, network.scale, SEED, flight) as environment:
            environment[ENVIRONMENT_MARK] = fabric.state.id

            def failure() -> str | None:
                if check is not None:
                    check.look()
                return fabric.failure()

            programs = Programs(list(command), endpoints, show, environment, failure)
            status = _run(programs, flight, output, progress)
        if check is None or status:
            return status
        verdict = check.verdict()
        for line in words_of(verdict):
            progress(line)
        return UNTRUSTED if verdict.status == "untrusted" else 0


def _run(
    programs: Programs, flight: ProgramFlight | None, output: Path | None, progress: Callable[[str], None]
) -> int:
    """To their end; says where dumps are, if there are any."""
    if flight is None:
        return programs.run()

    def keep(ended: Mapping[int, str]) -> None:
        try:
            flight.keep(ended)
        except OSError as error:
            progress(f"what ranks' collectives did last cannot be kept: {error}")

    programs.failing = keep
    try:
        return programs.run()
    finally:
        if flight.kept:
            progress(f"what ranks' collectives did last: testbed diagnose {output}")
