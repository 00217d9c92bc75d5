"""The registry of workloads: functions that map a request and a scenario's options to every rank's plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from testbed.plugins import PluginError, Registry, attribute_errors
from testbed.workload.job.errors import wrong_workload
from testbed.workload.job.training import JobRequest, Training
from testbed.workload.plan import JobPlan
from testbed.workload.plans import PlanProblem, check_plan
from testbed.workload.serving.request_plan import Serving

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
        options: Arguments of the function in addition to the request.

    Raises:
        PluginError: If the function raises, or a plug-in's result is not a plan for these ranks; it names file and
            line.
        ConfigError: If the function rejects an option with a PlanProblem that has the option's name as `where`.
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
    """Return whether a workload is a user's own, from a file or a package; raise PluginError on failure."""
    return not WORKLOADS.find(name).__module__.startswith("testbed.")


def source_of(make: MakePlan) -> tuple[str, int]:
    """Return the file and line of a function."""
    code = getattr(make, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else (make.__module__, 1)


def _describe_options(make: MakePlan) -> str:
    names = list(inspect.signature(make).parameters)[1:]
    return f"options: {', '.join(names)}" if names else "no options"
