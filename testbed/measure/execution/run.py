"""A run from request to result: check and prepare it, then execute it on a backend."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.errors import TestbedError
from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.dumps import read_evidence
from testbed.measure.diagnosis.verdicts import verdict_line
from testbed.measure.execution.event_player import affected_cards, hosts_beyond_engine
from testbed.measure.execution.guests import DATAPATH, LINK_ENGINE, Guests
from testbed.measure.execution.network_setup import (
    check_clock,
    choose_guests,
    choose_network_backend,
    choose_scale,
    choose_virtual_scale,
    guest_settings,
    link_engine_for,
)
from testbed.measure.execution.progress import Progress, RunLive
from testbed.measure.execution.resources import (
    forecast_text,
    guest_loads,
    halving_option,
    parse_ranks_per_process,
    required_bytes,
    stopping_events,
)
from testbed.measure.execution.shard_run import ShardRun
from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import RunDirectory, refuse_existing
from testbed.measure.results.shards import Shard, ShardRecord, split_into_shards, whole_run_shard
from testbed.measure.results.unfinished_run import ShardFolders, keep_failed
from testbed.measure.results.writer import BackendResult, write_run
from testbed.net.links.pause import PAUSE_ENGINE
from testbed.net.links.setup import soft_roce_obstacle
from testbed.net.virtual.guest import STALL_TIMEOUT_S
from testbed.net.virtual.kernel_image import find_image
from testbed.prediction.compiled.library import load_library
from testbed.prediction.dry_run import workloads_of
from testbed.prediction.executors import Executor
from testbed.prediction.executors.dask_cluster import Cluster
from testbed.spec.errors import ConfigError, Problem, option_error
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.workload.job.endpoint_resolution import wants_rdma
from testbed.workload.job.job import Workload


@dataclass(frozen=True)
class Request:
    """A request to run a scenario; values of fields that are None are chosen automatically.

    `output` is the run directory to create, and `file` is the scenario's file for messages. `engine` runs the guests;
    None, or processes, means this machine. The other fields are the options of the command `testbed run`.
    """

    scenario: Scenario
    output: Path
    file: str = "scenario"
    clock: str = "real"
    jobs: int | None = None
    ranks_per_process: str | None = None
    memory: str | None = None
    cpu_time: str = "free"
    stall_timeout: str = f"{STALL_TIMEOUT_S:g} s"
    link_engine: str | None = None
    datapath: str | None = None
    machines: str | None = None
    engine: Executor | None = None


@dataclass(frozen=True)
class PreparedRun:
    """A checked run that is ready to start.

    `expectation` is a forecast of time and memory as text; it is empty on the real clock.
    """

    request: Request
    scale: Scale
    backend: Backend
    expectation: str = ""

    def execute(self, progress: Progress) -> Result:
        """Run all shards of the scenario and return the result, which is also written to the request's output.

        The run directory is created only if the run succeeds. After a failure, two things are kept. Under the virtual
        clock, these are finished shards, from which the same run resumes. In all cases, `<output>.failed` has the
        flight recorders' dumps.

        Raises:
            RunExists: If the output already exists.
            FabricError: If the network cannot be built.
            RunError: If a rank or another part fails.
            VirtualClockError: If a guest fails.
        """
        scenario, output = self.request.scenario, self.request.output
        directory = RunDirectory(output)
        shards = self.backend.shards(scenario)
        parts = None
        try:
            parts = ShardFolders(directory, self.backend.identity(scenario, self.scale))
            live = RunLive(directory.partial, parts.folder, scenario, shards, self.scale)
            progress = live.progress(progress)
            if there := len(parts.finished):
                progress.phase(f"resuming: {there} of {len(shards)} parts were already done")
            outcome = self.backend.run_shards(scenario, shards, self.scale, parts, progress)
            if len(shards) > 1:
                progress.phase("merging the parts")
            result = write_run(directory, scenario, self.scale, outcome)
            live.end()
            parts.remove()
            directory.finish()
        except BaseException as error:
            if (
                parts is not None
                and isinstance(error, TestbedError)
                and (left := keep_failed(output, parts.folder, str(error)))
            ):
                for line in failure_summary(left):
                    progress.phase(line)
                progress.phase(f"flight recorder dumps: {left}; to analyse them: testbed diagnose {left}")
            if parts is not None and (kept := parts.stop()):
                progress.phase(
                    f"{kept} of {len(shards)} parts kept in {parts.folder}; the same command resumes"
                )
            directory.discard()
            raise
        return result.at(output)

    def slower(self) -> PreparedRun:
        """Return the same run with twice the time dilation."""
        return replace(self, scale=replace(self.scale, time_dilation=self.scale.time_dilation * 2))


def prepare(request: Request) -> PreparedRun:
    """Check that a request can run here, and choose its backend and scale.

    Raises:
        ConfigError: If an option or the plan does not fit, or the host cannot carry the rates.
        RunExists: If the run directory already exists.
        FabricError: If this host cannot build a network.
        VirtualClockError: If the virtual clock's kernel is missing.
        NoCompilerError: If the model, with which the verdict compares steps, cannot be compiled.
    """
    load_library()
    check_clock(request.clock)
    refuse_existing(request.output)
    if request.machines and request.clock == "virtual":
        raise option_error("--machines", "--clock virtual", "--clock real")
    workloads = workloads_of(request.scenario, Scale())
    together = parse_ranks_per_process(request.ranks_per_process, request.scenario.ranks, request.scenario)
    if request.clock == "virtual":
        return _in_guests(request, workloads, together)
    if isinstance(request.engine, Cluster):  # real-clock measurements run on this machine only
        raise option_error("--engine dask", "--clock real", "--clock virtual")
    return _here(request, workloads.values(), together)


def check_here(scenario: Scenario, file: str, clock: str) -> None:
    """Raise early the errors that `prepare` would raise for any scenario on this topology."""
    check_clock(clock)
    if clock == "virtual":
        find_image()
    else:
        _backend_and_scale(Request(scenario, Path(), file))


def _in_guests(request: Request, workloads: Mapping[str, Workload], together: int | None) -> PreparedRun:
    scenario, datapath = request.scenario, request.datapath
    pauses = _pauses(scenario)
    link_engine = link_engine_for(request.link_engine, pauses)
    guest_engine = PAUSE_ENGINE if pauses else LINK_ENGINE
    if link_engine not in (None, guest_engine) or datapath not in (None, DATAPATH):
        asked = f"{link_engine or guest_engine} and {datapath or DATAPATH}"
        offered = f"{guest_engine} and {DATAPATH}"
        raise option_error("--clock virtual", asked, offered)
    image = find_image()
    rank_bytes = max(workload.rank_bytes for workload in workloads.values())
    scale = choose_virtual_scale(scenario, rank_bytes)
    settings = guest_settings(
        request.memory, request.cpu_time, scenario.seed, request.stall_timeout, None, []
    )
    asked_bytes = settings.memory_bytes if request.memory else None
    loads = guest_loads(scenario, workloads, scale, together)
    expected = choose_guests(scenario, scale, rank_bytes, loads, request.jobs, asked_bytes)
    settings = replace(settings, memory_bytes=expected.ceiling_bytes, expected_bytes=required_bytes(expected))
    hint = halving_option(scenario, scale, loads, expected)
    cluster = request.engine if isinstance(request.engine, Cluster) else None
    guests = Guests(image, settings, expected, together, guest_engine, cluster)
    return PreparedRun(request, scale, guests, "" if cluster else forecast_text(expected, hint))


def _here(request: Request, workloads: Iterable[Workload], together: int | None) -> PreparedRun:
    scenario = request.scenario
    machines = parse_machines(request.machines, scenario, workloads)
    backend, scale = _backend_and_scale(request)
    if hosts := hosts_beyond_engine(scenario.all_events, scenario.topology.resolve(), backend.link_engine):
        shown = f"a delay or loss of {', '.join(hosts)} with link engine {backend.link_engine}"
        expected = "NICs that have a delay in the topology, another link engine (netem), or --clock virtual"
        raise ConfigError([Problem(request.file, None, "events", shown, expected)])
    return PreparedRun(request, scale, LocalBackend(backend, machines, together))


def _backend_and_scale(request: Request) -> tuple[NetworkBackend, Scale]:
    scenario = request.scenario
    _check_cards(scenario, request.file)
    backend = choose_network_backend(
        link_engine_for(request.link_engine, _pauses(scenario)), request.datapath
    )
    size, dilation = scenario.scale.size_scale, scenario.scale.time_dilation
    return backend, choose_scale(
        scenario.topology.resolve, size, dilation, backend, scenario.ranks, request.file
    )


def _pauses(scenario: Scenario) -> bool:
    """Return whether any variant's network has pause frames; if so, all variants use the engine that supports them."""
    return any(scenario.variant(name).topology.pauses for name in scenario.variant_names)


def _check_cards(scenario: Scenario, file: str) -> None:
    """Raise ConfigError if ranks need RDMA NICs and this host's kernel cannot provide them."""
    if wants_rdma(scenario.transport) and (reason := soft_roce_obstacle()):
        shown = f"{scenario.transport.kind} with the real clock: {reason}"
        raise ConfigError(
            [Problem(file, None, "transport.kind", shown, "--clock virtual: docs/reference/rdma.md")]
        )


def parse_machines(asked: str | None, scenario: Scenario, workloads: Iterable[Workload]) -> list[str]:
    """Return the names in `--machines`; raise ConfigError if the scenario cannot run on several machines."""
    if not asked:
        return []
    refused = {
        "events that stop a rank": bool(stopping_events(scenario.all_events)),
        "events that change a NIC": bool(affected_cards(scenario.all_events)),
        "background_traffic": bool(scenario.background_traffic),
        "messages that wait for their receivers": any(
            workload.plan.holds_receivers for workload in workloads
        ),
    }
    if found := [feature for feature, is_used in refused.items() if is_used]:
        expected = f"a scenario without {' and '.join(found)}, or one machine"
        raise option_error("--machines", asked, expected)
    return [name.strip() for name in asked.split(",")]


def failure_summary(left: Path) -> list[str]:
    """Return the cause of a failed run as one line, from its flight recorder dumps; empty if they do not show it."""
    try:
        found = [diagnose(part.dumps, part.paths) for part in read_evidence(left)]
    except (TestbedError, OSError):
        return []
    return [verdict_line(own.verdicts[0]) for own in found if own.verdicts]


class LocalBackend:
    """A backend that runs the shards one after another in this process, as root.

    `machines` are those of the buildings, reached through SSH. `ranks_per_process` is None for the fastest choice.
    """

    def __init__(
        self,
        network_backend: NetworkBackend,
        machines: Sequence[str] = (),
        ranks_per_process: int | None = None,
    ) -> None:
        self.network_backend = network_backend
        self.machines = machines
        self.ranks_per_process = ranks_per_process

    @property
    def words(self) -> str:
        """The link engine and the datapath."""
        return f"link engine {self.network_backend.link_engine}, datapath {self.network_backend.datapath}"

    def shards(self, scenario: Scenario) -> list[Shard]:
        """Split by variant, as variants have different networks; algorithms alternate on one network to save time."""
        return whole_run_shard(scenario) if scenario.variants is None else split_into_shards(scenario)

    def identity(self, scenario: Scenario, scale: Scale) -> str | None:
        """Return None, since real-clock measurements are not reproducible."""
        return None

    def run_shards(
        self,
        scenario: Scenario,
        shards: Sequence[Shard],
        scale: Scale,
        parts: ShardFolders,
        progress: Progress,
    ) -> BackendResult:
        """Measure the shards in turn, each in `parts.folder`/NUMBER; see `Guests.run_shards`."""
        began_s = time.monotonic()
        records = []
        for shard in shards:
            own = shard.scenario(scenario)
            if len(shards) > 1:
                progress.phase(f"{shard.variant}, trial {shard.first_trial + 1} of {scenario.trials}")
            target = parts.folder / str(shard.number)
            target.mkdir(parents=True)
            records.append(
                self._measure(shard, own, scale, target, _shard_progress(shards, shard, own, progress))
            )
        return BackendResult(records, time.monotonic() - began_s)

    def _measure(
        self, shard: Shard, scenario: Scenario, scale: Scale, folder: Path, progress: Progress
    ) -> ShardRecord:
        backend, machines = self.network_backend, self.machines
        together = self.ranks_per_process
        return ShardRun(shard, scenario, backend, scale, folder, progress, machines, together).measure()


def _shard_progress(
    shards: Sequence[Shard], shard: Shard, scenario: Scenario, progress: Progress
) -> Progress:
    """Return a progress callback that reports one shard's steps as part of all shards' steps."""
    each = scenario.trials + scenario.warmup
    if len(shards) == 1:
        return progress

    def phase(line: str) -> None:
        if shard.number == 0:  # the other shards go through the same phases
            progress.phase(line)

    def step(number: int, total: int) -> None:
        progress.step(shard.number * each + number, len(shards) * each)

    return Progress(phase, step)


Backend = LocalBackend | Guests
"""Runs shards, each in its own network."""
