"""A run from request to result: checked and prepared, then executed by a backend."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from testbed.errors import TestbedError
from testbed.measure.diagnosis import diagnose, read_evidence
from testbed.measure.diagnosis.verdicts import verdict_line
from testbed.measure.execution.event_player import beyond_engine, cards_touched
from testbed.measure.execution.guests import DATAPATH, LINK_ENGINE, Guests
from testbed.measure.execution.live_log import RunLive
from testbed.measure.execution.network_setup import (
    choose_guests,
    choose_network_backend,
    choose_scale,
    choose_virtual_scale,
    guest_settings,
    link_engine_for,
)
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.remote_guests import RemoteGuests
from testbed.measure.execution.resources import (
    forecast_text,
    guest_loads,
    halving_option,
    ranks_asked,
    room_for,
    stopping,
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
from testbed.prediction.dry_run import workloads_of
from testbed.prediction.executors import Executor
from testbed.prediction.executors.dask_cluster import Cluster
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.workload.job.endpoint_resolution import wants_rdma
from testbed.workload.job.job import Workload

CLOCKS = ("real", "virtual")


@dataclass(frozen=True)
class Request:
    """A scenario, where its run directory is to be, and how it is to be run; what is None is chosen.

    file: the scenario's, for messages. engine: whose workers carry guests; None, or processes: this machine, by itself.
    The rest is as on the command line of `testbed run`.
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
    """A run that can begin: all that could be refused has been looked at.

    expectation: what it is going to take, for people; empty by this machine's clock.
    """

    request: Request
    scale: Scale
    backend: Backend
    expectation: str = ""

    def execute(self, progress: Progress) -> Result:
        """Do everything; returns what stands in the run directory. FabricError, RunError and their kin."""
        return execute(self.request.scenario, self.backend, self.scale, self.request.output, progress)

    def slower(self) -> PreparedRun:
        """The same with its time stretched twice as far."""
        return replace(self, scale=replace(self.scale, time_dilation=self.scale.time_dilation * 2))


def prepare(request: Request) -> PreparedRun:
    """Refuse what cannot be run here: a plan that does not fit, rates that this machine does not carry, no kernel.

    ConfigError, RunExists, FabricError, VirtualClockError.
    """
    check_clock(request.clock)
    refuse_existing(request.output)
    if request.machines and request.clock == "virtual":
        raise ConfigError([Problem("command line", None, "--machines", "--clock virtual", "--clock real")])
    workloads = workloads_of(request.scenario, Scale())
    together = ranks_asked(request.ranks_per_process, request.scenario.ranks, request.scenario)
    if request.clock == "virtual":
        return _in_guests(request, workloads, together)
    if isinstance(request.engine, Cluster):  # what a machine's own clock measures is not carried to others
        raise ConfigError([Problem("command line", None, "--engine dask", "--clock real", "--clock virtual")])
    return _here(request, workloads.values(), together)


def check_here(scenario: Scenario, file: str, clock: str) -> None:
    """Refuse early what `prepare` would refuse of any scenario on this topology: ConfigError, FabricError and kin."""
    check_clock(clock)
    if clock == "virtual":
        find_image()
    else:
        _backend_and_scale(Request(scenario, Path(), file))


def check_clock(clock: str) -> None:
    """ConfigError for one that there is not."""
    if clock not in CLOCKS:
        raise ConfigError([Problem("command line", None, "--clock", clock, " or ".join(CLOCKS))])


def _in_guests(request: Request, workloads: Mapping[str, Workload], together: int | None) -> PreparedRun:
    scenario, datapath = request.scenario, request.datapath
    pauses = _pauses(scenario)
    link_engine = link_engine_for(request.link_engine, pauses)
    carries = PAUSE_ENGINE if pauses else LINK_ENGINE
    if link_engine not in (None, carries) or datapath not in (None, DATAPATH):
        asked = f"{link_engine or carries} and {datapath or DATAPATH}"
        offered = f"{carries} and {DATAPATH}"
        raise ConfigError([Problem("command line", None, "--clock virtual", asked, offered)])
    image = find_image()
    rank_bytes = max(workload.rank_bytes for workload in workloads.values())
    scale = choose_virtual_scale(scenario, rank_bytes)
    settings = guest_settings(
        request.memory, request.cpu_time, scenario.seed, request.stall_timeout, None, []
    )
    asked_bytes = settings.memory_bytes if request.memory else None
    loads = guest_loads(scenario, workloads, scale, together)
    expected = choose_guests(scenario, scale, rank_bytes, loads, request.jobs, asked_bytes)
    settings = replace(settings, memory_bytes=expected.ceiling_bytes, expected_bytes=room_for(expected))
    hint = halving_option(scenario, scale, loads, expected)
    if isinstance(request.engine, Cluster):
        return PreparedRun(
            request, scale, RemoteGuests(image, settings, expected, together, carries, request.engine)
        )
    guests = Guests(image, settings, expected, together, carries)
    return PreparedRun(request, scale, guests, forecast_text(expected, hint))


def _here(request: Request, workloads: Iterable[Workload], together: int | None) -> PreparedRun:
    scenario = request.scenario
    machines = machines_of(request.machines, scenario, workloads)
    backend, scale = _backend_and_scale(request)
    if hosts := beyond_engine(scenario.all_events, scenario.topology.resolve(), backend.link_engine):
        shown = f"a delay or loss of {', '.join(hosts)} with link engine {backend.link_engine}"
        expected = "cards that have a delay in the topology, another link engine (netem), or --clock virtual"
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
    """Whether any variant's network pauses: then all have its link engine."""
    return any(scenario.variant(name).topology.pauses for name in scenario.variant_names)


def _check_cards(scenario: Scenario, file: str) -> None:
    """ConfigError where ranks need cards with verbs, and this machine's kernel can give their hosts none."""
    if wants_rdma(scenario.transport) and (reason := soft_roce_obstacle()):
        shown = f"{scenario.transport.kind} by this machine's clock: {reason}"
        raise ConfigError(
            [Problem(file, None, "transport.kind", shown, "--clock virtual: docs/reference/rdma.md")]
        )


def machines_of(asked: str | None, scenario: Scenario, workloads: Iterable[Workload]) -> list[str]:
    """The names in `--machines`; ConfigError for what several machines cannot do. workloads: of all variants."""
    if not asked:
        return []
    refused = {
        "events that stop a rank": bool(stopping(scenario.all_events)),
        "events that change a card": bool(cards_touched(scenario.all_events)),
        "background_traffic": bool(scenario.background_traffic),
        "messages that wait for their receivers": any(
            workload.plan.holds_receivers for workload in workloads
        ),
    }
    if found := [what for what, there in refused.items() if there]:
        expected = f"a scenario without {' and '.join(found)}, or one machine"
        raise ConfigError([Problem("command line", None, "--machines", asked, expected)])
    return [name.strip() for name in asked.split(",")]


def execute(scenario: Scenario, backend: Backend, scale: Scale, output: Path, progress: Progress) -> Result:
    """Do everything; returns what stands in the run directory `output`, which is there only when all went well.

    RunExists, FabricError, RunError, VirtualClockError: nothing is left behind, but for finished parts under the
    virtual clock, with which the same run goes on, and what ranks did last, in `<output>.failed`.
    """
    directory = RunDirectory(output)
    shards = backend.shards(scenario)
    parts = None
    try:
        parts = ShardFolders(directory, backend.identity(scenario, scale))
        live = RunLive(directory.partial, parts.folder, scenario, shards, scale)
        progress = live.progress(progress)
        if there := len(parts.finished):
            progress.phase(f"{there} of {len(shards)} parts are there from before")
        carried = backend.carry_out(scenario, shards, scale, parts, progress)
        if len(shards) > 1:
            progress.phase("putting the parts together")
        result = write_run(directory, scenario, scale, carried)
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
            progress.phase(f"what every rank did last: {left}; testbed diagnose {left} says more")
        if parts is not None and (kept := parts.stop()):
            progress.phase(f"{kept} of {len(shards)} parts kept in {parts.folder}; the same command goes on")
        directory.discard()
        raise
    return result.at(output)


def failure_summary(left: Path) -> list[str]:
    """Who it was that a run failed for, in a line, by what is left of it; nothing where that does not say."""
    try:
        found = [diagnose(part.dumps, part.paths) for part in read_evidence(left)]
    except (TestbedError, OSError):
        return []
    return [verdict_line(own.verdicts[0]) for own in found if own.verdicts]


class Backend(Protocol):
    """Carries out shards, each in a network of its own."""

    @property
    def words(self) -> str:
        """For people: with what."""

    def shards(self, scenario: Scenario) -> list[Shard]:
        """How a run is cut."""

    def identity(self, scenario: Scenario, scale: Scale) -> str | None:
        """Names all that a shard's record depends on; None where it would not be the same again."""

    def carry_out(
        self,
        scenario: Scenario,
        shards: Sequence[Shard],
        scale: Scale,
        parts: ShardFolders,
        progress: Progress,
    ) -> BackendResult:
        """Measure all that are not finished, each in `parts.folder`/NUMBER. RunError, FabricError, VirtualClockError.

        When one fails, or the user stops it, nothing of it runs on; records of those that are done stay where they are.
        """


class LocalBackend:
    """One shard after the other in this process, as root.

    machines: those of the buildings, through SSH. ranks_per_process: None for what is quickest.
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
        """Link engine and datapath."""
        return f"link engine {self.network_backend.link_engine}, datapath {self.network_backend.datapath}"

    def shards(self, scenario: Scenario) -> list[Shard]:
        """Variants have networks of their own; algorithms alternate in one, which building it anew would cost time."""
        return whole_run_shard(scenario) if scenario.variants is None else split_into_shards(scenario)

    def identity(self, scenario: Scenario, scale: Scale) -> str | None:
        """None: what this machine measures is never quite the same again."""
        return None

    def carry_out(
        self,
        scenario: Scenario,
        shards: Sequence[Shard],
        scale: Scale,
        parts: ShardFolders,
        progress: Progress,
    ) -> BackendResult:
        """See `Backend`."""
        began_s = time.monotonic()
        records = []
        for shard in shards:
            own = shard.scenario(scenario)
            if len(shards) > 1:
                progress.phase(f"{shard.variant}, trial {shard.first_trial + 1} of {scenario.trials}")
            target = parts.folder / str(shard.number)
            target.mkdir(parents=True)
            records.append(self._measured(shard, own, scale, target, _among(shards, shard, own, progress)))
        return BackendResult(records, time.monotonic() - began_s)

    def _measured(
        self, shard: Shard, scenario: Scenario, scale: Scale, folder: Path, progress: Progress
    ) -> ShardRecord:
        backend, machines = self.network_backend, self.machines
        together = self.ranks_per_process
        return ShardRun(shard, scenario, backend, scale, folder, progress, machines, together).measure()


def _among(shards: Sequence[Shard], shard: Shard, scenario: Scenario, progress: Progress) -> Progress:
    """What one of them tells, as told of all; scenario: its own."""
    each = scenario.trials + scenario.warmup
    if len(shards) == 1:
        return progress

    def phase(line: str) -> None:
        if shard.number == 0:  # the others do the same
            progress.phase(line)

    def step(number: int, total: int) -> None:
        progress.step(shard.number * each + number, len(shards) * each)

    return Progress(phase, step)
