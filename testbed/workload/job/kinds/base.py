"""The registry of workloads: functions from a request, and a scenario's options, to every rank's plan."""

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
from testbed.workload.serving.request_plan import Serving


@dataclass(frozen=True, kw_only=True)
class JobRequest(WorkloadRequest):
    """A request with everything that is known of the job, for workloads that use the scenario's keys or the network.

    Attributes:
        scenario: The scenario, without variants; its topology and sizes are real.
        topology: The topology in figures of `scale`.
        hosts: Hosts of the ranks, in rank order.
        link_engine: Link engine on which the job will run.
    """

    scenario: Scenario
    topology: Topology
    hosts: tuple[Host, ...]
    link_engine: str = NETEM

    @classmethod
    def of(cls, scenario: Scenario, topology: Topology, scale: Scale, link_engine: str = NETEM) -> JobRequest:
        """Return the request of a scenario. `topology` is in figures of `scale`."""
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
        """The index of each rank's building, as plans have it."""
        return tuple(self.topology.building(name).index for name in self.buildings)


MakePlan = Callable[..., "JobPlan | Training | Serving"]
"""A workload's function; called with a JobRequest and the scenario's options.

It may return a plan with stages, and thus memory (`Training`), or one that answers requests (`Serving`).
"""


def _check(thing: object) -> str | None:
    if callable(thing) and not isinstance(thing, type):
        return None
    return "a function from a WorkloadRequest to a JobPlan"


WORKLOADS: Registry[MakePlan] = Registry(
    "workload", "testbed.workload.job.kinds", "testbed.workloads", _check
)
"""All named workloads. Each registers where it is defined: `@WORKLOADS.register("local_sgd")`."""


_signature = lru_cache(inspect.signature)


def make_plan(name: str, request: JobRequest, options: Mapping[str, Any]) -> JobPlan | Training | Serving:
    """Call a workload's function and check its result.

    Args:
        name: A workload of WORKLOADS, or FILE.py:NAME.
        request: The request.
        options: Arguments of the function besides the request.

    Raises:
        PluginError: The function raises, or a plug-in's result is no plan for these ranks; names file and line.
        ConfigError: The function refuses an option, by a PlanProblem with the option's name as `where`.
    """
    make = WORKLOADS.find(name)
    file, line = source_of(make)
    where = f"{file}:{line}: workload {name.rpartition(':')[2]}"
    try:
        _signature(make).bind(request, **options)
    except TypeError as error:
        raise PluginError(
            where=where, got=f"options that do not fit ({error})", expected=_describe_options(make)
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
    if is_plugin(name):
        _check_plugin_plan(made if isinstance(made, JobPlan) else made.plan, request, where)
    return made


def _check_plugin_plan(plan: JobPlan, request: JobRequest, where: str) -> None:
    try:
        check_plan(plan, request.ranks, request.itemsize)
    except PlanProblem as error:
        raise PluginError(where=where, got=error.found, expected=error.expected) from None


def is_plugin(name: str) -> bool:
    """Return whether a workload is a user's own, from a file or a package. Raises PluginError."""
    return not WORKLOADS.find(name).__module__.startswith("testbed.")


def source_of(make: MakePlan) -> tuple[str, int]:
    """Return the file and line of a function."""
    code = getattr(make, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else (make.__module__, 1)


def _describe_options(make: MakePlan) -> str:
    names = list(inspect.signature(make).parameters)[1:]
    return f"options: {', '.join(names)}" if names else "no options"
