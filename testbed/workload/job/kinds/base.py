"""What a workload is: a function from a request, and a scenario's options, to the plan of every rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from testbed.net.paths.hops import NETEM
from testbed.plugins import PluginError, Registry, attribute_errors
from testbed.spec.buildings import Host
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.topology import Topology
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.training import Training
from testbed.workload.plan import JobPlan
from testbed.workload.plans import PlanProblem, WorkloadRequest, check_plan
from testbed.workload.serving import Serving


@dataclass(frozen=True, kw_only=True)
class JobRequest(WorkloadRequest):
    """The same with all that is known of the job, for workloads that go by the scenario's keys or by the network.

    Attributes:
        scenario: Without variants; its topology and sizes are real ones.
        topology: In figures of `scale`.
        hosts: Of the ranks, in their order.
        link_engine: Which is to carry the job.
    """

    scenario: Scenario
    topology: Topology
    hosts: tuple[Host, ...]
    link_engine: str = NETEM

    @classmethod
    def of(cls, scenario: Scenario, topology: Topology, scale: Scale, link_engine: str = NETEM) -> JobRequest:
        """Of a scenario on its topology, which is in figures of `scale`."""
        hosts = tuple(scenario.rank_hosts(topology))
        return cls(
            tuple(host.building for host in hosts),
            scenario.workload.gradient_dtype,
            scale,
            scenario.seed,
            scenario=scenario,
            topology=topology,
            hosts=hosts,
            link_engine=link_engine,
        )

    @property
    def building_indices(self) -> tuple[int, ...]:
        """Of each rank's building, as plans have them."""
        return tuple(self.topology.building(name).index for name in self.buildings)


MakePlan = Callable[..., "JobPlan | Training | Serving"]
"""Called with a JobRequest and the scenario's options.

Training: a plan that has stages, and with them memory. Serving: one that answers requests.
"""


def _check(thing: object) -> str | None:
    if callable(thing) and not isinstance(thing, type):
        return None
    return "a function from a WorkloadRequest to a JobPlan"


WORKLOADS: Registry[MakePlan] = Registry(
    "workload", "testbed.workload.job.kinds", "testbed.workloads", _check
)
"""All that have a name. Each registers where it stands: `@WORKLOADS.register("local_sgd")`."""


_signature = lru_cache(inspect.signature)


def make_plan(name: str, request: JobRequest, options: Mapping[str, Any]) -> JobPlan | Training | Serving:
    """What one of WORKLOADS, or of a file, returns; options: what its function takes beside the request.

    PluginError, with file and line, where the function raises, or what an added one returns is no plan of these ranks.
    ConfigError where the function refuses an option: with a PlanProblem whose `where` is the option's name.
    """
    make = WORKLOADS.find(name)
    file, line = source_of(make)
    where = f"{file}:{line}: workload {name.rpartition(':')[2]}"
    try:
        _signature(make).bind(request, **options)
    except TypeError as error:
        raise PluginError(
            where=where, got=f"options that do not fit ({error})", expected=_taken(make)
        ) from None
    try:
        with attribute_errors(f"workload {name}", Path(file)):
            made: Any = make(request, **options)
    except PlanProblem as error:
        if error.where in inspect.signature(make).parameters:
            raise wrong_workload(f"options.{error.where}", error.got, error.expected) from None
        raise
    if not isinstance(made, JobPlan | Training | Serving):
        raise PluginError(where=where, got=f"a {type(made).__name__}", expected="a JobPlan")
    if is_added(name):
        _check_added(made if isinstance(made, JobPlan) else made.plan, request, where)
    return made


def _check_added(plan: JobPlan, request: JobRequest, where: str) -> None:
    try:
        check_plan(plan, request.ranks, request.itemsize)
    except PlanProblem as error:
        raise PluginError(where=where, got=error.found, expected=error.expected) from None


def is_added(name: str) -> bool:
    """Whether that is somebody's own workload, of a file or a package: nobody has tried it before. PluginError."""
    return not WORKLOADS.find(name).__module__.startswith("testbed.")


def source_of(make: MakePlan) -> tuple[str, int]:
    """File and line of a function."""
    code = getattr(make, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else (make.__module__, 1)


def _taken(make: MakePlan) -> str:
    names = list(inspect.signature(make).parameters)[1:]
    return f"options: {', '.join(names)}" if names else "no options"
