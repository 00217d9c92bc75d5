"""The run of any program as the ranks of a job, on an emulated network or over loopback."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from testbed.comm.collectives import COLLECTIVES, TuningTable, collective_of
from testbed.comm.flight_recorder import DUMPS, FLIGHT, PATHS_FILE, NetworkPaths, dump_name, read_ring
from testbed.comm.flight_recorder.ring_buffer import ring_bytes
from testbed.contrib.torch.launch_env import DEFAULT_VARIABLE, VARIABLE, ProgramJob, ring_name
from testbed.errors import did_you_mean
from testbed.measure.execution.network_setup import Network, rank_count, require_command
from testbed.measure.execution.rank_network import NetworkCheck, bring_up
from testbed.measure.fidelity.verdict import Verdict, judge
from testbed.measure.ranks.programs import Programs
from testbed.measure.results.run_directory import chown_to_sudo_user
from testbed.net.virtual.guest import DEFAULT_MEMORY_BYTES
from testbed.spec.catalogue import accelerators
from testbed.spec.errors import option_error
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.spec.transport import TransportSpec
from testbed.version import VERSION
from testbed.workload.job.endpoint_resolution import resolve_endpoints
from testbed.workload.job.endpoints import RankEndpoint

SEED = 1
UNTRUSTED = 3
RANK_BYTES = 384 << 20  # guest memory for a program with PyTorch and a small model


def guest_bytes(ranks: int | None, topology: Path | None) -> int:
    """Return the default memory limit of a guest for programs; memory is only allocated when it is used."""
    return DEFAULT_MEMORY_BYTES + rank_count(ranks, topology) * RANK_BYTES


def require_program(arguments: Sequence[str]) -> list[str]:
    """Return a program and its arguments; raise ConfigError if there is no such program."""
    command = require_command(arguments)
    if shutil.which(command[0]) is None:
        raise option_error("COMMAND", command[0], "an executable program")
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
    """Run a program once per rank, each on its host, until all have ended; then remove all processes and the network.

    Args:
        command: The program and its arguments.
        network: The network to build; None for this machine's loopback.
        ranks: Number of ranks. On a network they use its first hosts, one each.
        show: Called with every line that a rank prints: the rank, whether the line is standard error, and the line.
        progress: Called with a line for each phase.
        options: Options of the PyTorch backend `testbed`.
        strict: Whether to measure the network before the programs and check it after them.
        output: Directory for flight recorder dumps if a rank fails; None for no flight recorders.

    Returns:
        The worst exit status; UNTRUSTED if that is 0 but the network did not behave as configured.

    Raises:
        FabricError: If the network cannot be built, or breaks.
        OSError: If the program cannot be started.
    """
    options = options or TorchOptions()
    # on loopback, the backend and the programs use different ports
    count = 2 * ranks if network is None else ranks
    scale = Scale() if network is None else network.scale
    with bring_up(network, count, SEED, progress, options.transport) as running:
        fabric = running.fabric
        if not scale.is_one:
            progress(str(scale))
        check = NetworkCheck(fabric, progress) if strict and fabric is not None else None
        began_s = time.monotonic()
        ends = [replace(one, rank=rank) for rank, one in enumerate(running.endpoints[-ranks:])]
        flight = None if output is None else ProgramFlight(ends, output)
        topology = None if fabric is None else fabric.topology
        with torch_environment(options, ends, topology, scale, SEED, flight) as environment:
            more = {**environment, **running.environment}
            looked_s = began_s

            def failure() -> str | None:
                nonlocal looked_s
                if check is not None and time.monotonic() - looked_s >= LOOK_INTERVAL_S:
                    looked_s = time.monotonic()
                    check.watch.look()
                return running.failure()

            programs = Programs(list(command), running.endpoints[:ranks], show, more, failure)
            status = _run(programs, flight, output, progress)
        if check is None or status:
            return status
        check.end()
        changes = [(change.time_s - began_s, change.words) for change in check.watch.changes]
        verdict = judge([*check.before(), *check.after(changes)])
        for line in verdict_lines(verdict):
            progress(line)
        return UNTRUSTED if verdict.status == "untrusted" else 0


def _run(
    programs: Programs, flight: ProgramFlight | None, output: Path | None, progress: Callable[[str], None]
) -> int:
    """Run the programs to their end, and report where flight recorder dumps are, if there are any."""
    if flight is None:
        return programs.run()

    def keep(ended: Mapping[int, str]) -> None:
        try:
            flight.keep(ended)
        except OSError as error:
            progress(f"cannot write the flight recorder dumps: {error}")

    programs.failing = keep
    try:
        return programs.run()
    finally:
        if flight.kept:
            progress(f"flight recorder dumps are kept; to analyse them: testbed diagnose {output}")


LOOK_INTERVAL_S = 5.0  # switches close connections that are silent for a minute


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the verdict and the failed invariants as lines of text."""
    broken = [f"{one.name}: {one.sentence}" for one in verdict.failed]
    return [f"the network: {verdict.status}, {len(verdict.invariants)} checks", *broken]


class ProgramFlight:
    """The flight recorders of the ranks of programs.

    `output` is the directory for dumps, which is created with the first dump. `kept` is true if dumps were written.
    """

    def __init__(self, endpoints: Sequence[RankEndpoint], output: Path) -> None:
        self._endpoints = endpoints
        self._output = output
        self._rings: dict[int, mmap.mmap] = {}
        self.kept = False

    def make(self, folder: Path) -> None:
        """Create every rank's ring buffer as a file in a directory; it remains mapped after the file is deleted."""
        for endpoint in self._endpoints:
            path = folder / ring_name(endpoint.rank)
            with path.open("x+b") as file:
                file.truncate(ring_bytes())
                self._rings[endpoint.rank] = mmap.mmap(file.fileno(), 0)

    def keep(self, ended: Mapping[int, str]) -> None:
        """Dump all flight recorders, unless no rank has started an operation; `ended` describes how each rank ended."""
        now_s = time.monotonic()
        dumps = [
            read_ring(self._rings[one.rank], one.host, now_s, ended.get(one.rank, ""))
            for one in self._endpoints
            if any(self._rings[one.rank][:8])  # the other ranks have created no process group
        ]
        if not any(dump.entries for dump in dumps):
            return
        folder = self._output / FLIGHT
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(DUMPS):
            old.unlink()  # there may be old dumps of more ranks
        for dump in dumps:
            dump.write(folder / dump_name(dump.rank))
        # the paths of pairs through the network are not known
        NetworkPaths({one.rank: one.host for one in self._endpoints}, one_clock=True).write(
            folder / PATHS_FILE
        )
        chown_to_sudo_user(self._output)
        self.kept = True


SITE = "testbed_torch_backend-{version}.dist-info"
ENTRY_POINTS = "[torch.backends]\ntestbed = testbed.contrib.torch:autoload\n"


@dataclass(frozen=True)
class TorchOptions:
    """Options of the PyTorch backend `testbed` for programs' process groups.

    `algorithms` has an algorithm per collective. With `default`, the backend `testbed` is used by programs that do not
    name a backend.
    """

    transport: TransportSpec = field(default_factory=TransportSpec)
    algorithms: Mapping[str, str] = field(default_factory=dict)
    tuning: TuningTable = field(default_factory=TuningTable)
    congestion_control: str | None = None
    default: bool = False


def parse_algorithm_options(asked: Sequence[str]) -> dict[str, str]:
    """Parse `COLLECTIVE=ALGORITHM` options; raise ConfigError if one is wrong."""
    found = {}
    for word in asked:
        collective, equals, algorithm = word.partition("=")
        if not equals or COLLECTIVES.expected(collective) is not None:
            known = did_you_mean(collective, COLLECTIVES)
            raise option_error("--collective", word, f"COLLECTIVE=ALGORITHM, of {known}")
        known_algorithms = collective_of(collective).algorithms
        if (expected := known_algorithms.expected(algorithm)) is not None:
            raise option_error("--collective", word, expected)
        found[collective] = algorithm
    return found


@contextlib.contextmanager
def torch_environment(
    options: TorchOptions,
    endpoints: Sequence[RankEndpoint],
    topology: Topology | None,
    scale: Scale,
    seed: int,
    flight: ProgramFlight | None = None,
) -> Iterator[dict[str, str]]:
    """Yield the environment variables of PyTorch programs; the directory that they refer to exists within the block.

    Args:
        options: Options of the backend.
        endpoints: Endpoints of the ranks, with ports that the programs do not use.
        topology: The emulated topology; None on loopback.
        scale: The scale in force.
        seed: Seed of the run.
        flight: The flight recorders; None for no recording.
    """
    wiring = resolve_endpoints(
        options.transport,
        scale,
        topology,
        endpoints,
        seed,
        congestion_control=options.congestion_control,
    )
    tuning = TuningTable(options.tuning.entries, scale.size_scale)
    job = ProgramJob(wiring, dict(options.algorithms), tuning, dict(accelerators()))
    with tempfile.TemporaryDirectory(prefix="testbed-torch-") as folder:
        if flight is not None:
            flight.make(Path(folder))
            job = replace(job, rings=folder)
        site = Path(folder) / "site"
        metadata = site / SITE.format(version=VERSION)
        metadata.mkdir(parents=True)
        (site / "testbed").symlink_to(Path(__file__).parents[2])
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: testbed-torch-backend\nVersion: {VERSION}\n"
        )
        (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
        file = Path(folder) / "job.json"
        job.write(file)
        before = os.environ.get("PYTHONPATH")
        yield {
            "PYTHONPATH": os.pathsep.join([str(site), *([before] if before else [])]),
            VARIABLE: str(file),
            **({DEFAULT_VARIABLE: "1"} if options.default else {}),
            # as torchrun does: ranks share this machine's cores
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
