"""A run that is asked for: what is settled before anything is built, and then the run itself, wherever it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.measure.execution.backend import Backend, ThisMachine
from testbed.measure.execution.event_timeline import beyond_engine, cards_touched
from testbed.measure.execution.guest_shard import DATAPATH, LINK_ENGINE
from testbed.measure.execution.guests import Guests
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.rank_packing import ranks_asked, stopping
from testbed.measure.execution.remote_guests import GuestsElsewhere
from testbed.measure.execution.resolve_backend import (
    choose_guests,
    choose_network_backend,
    choose_scale,
    choose_virtual_scale,
    guest_settings,
    link_engine_for,
)
from testbed.measure.execution.resource_forecast import guest_loads, halving, room_for, words_on
from testbed.measure.execution.run import execute
from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import refuse_existing
from testbed.net.links.pause import PAUSING_ENGINE
from testbed.net.links.setup import soft_roce_reason
from testbed.net.virtual.guest import STALL_TIMEOUT_S
from testbed.net.virtual.kernel_image import find_image
from testbed.prediction.dry_run import workloads_of
from testbed.prediction.executors import Engine
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
    engine: Engine | None = None


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
    carries = PAUSING_ENGINE if pauses else LINK_ENGINE
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
    hint = halving(scenario, scale, loads, expected)
    if isinstance(request.engine, Cluster):
        return PreparedRun(
            request, scale, GuestsElsewhere(image, settings, expected, together, carries, request.engine)
        )
    guests = Guests(image, settings, expected, together, carries)
    return PreparedRun(request, scale, guests, words_on(expected, hint))


def _here(request: Request, workloads: Iterable[Workload], together: int | None) -> PreparedRun:
    scenario = request.scenario
    machines = machines_of(request.machines, scenario, workloads)
    backend, scale = _backend_and_scale(request)
    if hosts := beyond_engine(scenario.happenings, scenario.topology.resolve(), backend.link_engine):
        shown = f"a delay or loss of {', '.join(hosts)} with link engine {backend.link_engine}"
        expected = "cards that have a delay in the topology, another link engine (netem), or --clock virtual"
        raise ConfigError([Problem(request.file, None, "events", shown, expected)])
    return PreparedRun(request, scale, ThisMachine(backend, machines, together))


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
    if wants_rdma(scenario.transport) and (reason := soft_roce_reason()):
        shown = f"{scenario.transport.kind} by this machine's clock: {reason}"
        raise ConfigError(
            [Problem(file, None, "transport.kind", shown, "--clock virtual: docs/reference/rdma.md")]
        )


def machines_of(asked: str | None, scenario: Scenario, workloads: Iterable[Workload]) -> list[str]:
    """The names in `--machines`; ConfigError for what several machines cannot do. workloads: of all variants."""
    if not asked:
        return []
    refused = {
        "events that stop a rank": bool(stopping(scenario.happenings)),
        "events that change a card": bool(cards_touched(scenario.happenings)),
        "background_traffic": bool(scenario.background_traffic),
        "messages that wait for their receivers": any(
            workload.plan.holds_receivers for workload in workloads
        ),
    }
    if found := [what for what, there in refused.items() if there]:
        expected = f"a scenario without {' and '.join(found)}, or one machine"
        raise ConfigError([Problem("command line", None, "--machines", asked, expected)])
    return [name.strip() for name in asked.split(",")]
