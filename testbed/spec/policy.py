"""Transport policies in a scenario: a name, or a name with options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from testbed.errors import did_you_mean
from testbed.plugins import registry, resolve_file_names
from testbed.spec.base_model import Finding, StrictModel, ValueFormat, inlined_schema
from testbed.spec.value_types import (
    OPTIONS,
    CountOrZero,
    Dscps,
    FlagOrNone,
    Fraction,
    Name,
    Share,
    integer,
    registered_name,
)

_NAME = registered_name("policies")


class QueueSpec(StrictModel):
    """A traffic class, by DSCP, and its guarantee."""

    name: Name
    """Name of the class."""
    dscp: Dscps
    """One DSCP, or a list."""
    share: Fraction = 0.0
    """Share of every WAN link's rate that is guaranteed, whatever the classes before it send."""


class LimitSpec(StrictModel):
    """A traffic class, by DSCP, and its rate limit."""

    name: Name
    """Name of the class."""
    dscp: Dscps
    """One DSCP, or a list."""
    limit: Share
    """Highest share of every WAN link's rate."""


class JobShareSpec(StrictModel):
    """A job: hosts that share a guarantee."""

    name: Name
    """Name of the job."""
    hosts: tuple[str, ...]
    """Hosts of the job, such as [east1, west1]."""
    share: Share
    """Share of every WAN link's rate that is guaranteed."""


class PathSpec(StrictModel):
    """A pinned path, used in both directions."""

    source: str = Field(alias="from")
    """A building or host at one end."""
    to: str
    """A building or host at the other end."""
    links: tuple[str, ...]
    """The WAN links on the path, in order, such as [east-west-0]."""
    channel: Annotated[int | None, integer(0)] = None
    """Only this connection of each pair of ranks, from 0."""


KEYS = ("over", "detours", "classes", "jobs", "limits", "paths")
"""Options with their own keys, which are checked here. A policy lists those it takes in `known_options`."""


def _path_policies() -> list[str]:
    return [name for name, policy in registry("policies").items() if policy.finds_paths]


def _parse_over(value: object) -> str:
    if value not in (known := _path_policies()):
        raise ValueError(f"a policy: {did_you_mean(value, known)}")
    return str(value)


_OVER = ValueFormat(_parse_over, lambda: {"enum": _path_policies()})


DEFAULT_POLICY = "ecmp"  # for scenarios, commands and the Python API: what most networks use


class PolicySpec(StrictModel):
    """How the network treats traffic: paths, queues, and the reaction to failed links."""

    name: Annotated[str, _NAME]
    """A policy, or your own as FILE.py:NAME."""
    over: Annotated[str | None, _OVER] = None
    """The policy that chooses paths, for policies that do not choose them themselves (default: ecmp; for failover:
    shortest).
    """
    replan: FlagOrNone = None
    """Recompute paths when a link fails; default: the policy's own."""
    detours: CountOrZero | None = None
    """te: how many more links than the shortest path a path may have; default: 0."""
    classes: tuple[QueueSpec, ...] | None = None
    """priority: traffic classes, highest priority first."""
    jobs: tuple[JobShareSpec, ...] | None = None
    """isolate: jobs and their guaranteed shares."""
    limits: tuple[LimitSpec, ...] | None = None
    """limit: traffic classes and their limits."""
    paths: tuple[PathSpec, ...] | None = None
    """pinned: paths; the first match wins."""
    options: Annotated[Mapping[str, Any] | None, OPTIONS] = None
    """Options of your own policy."""

    def checks(self) -> Iterator[Finding]:
        """Check that the policy takes the given options, and that guarantees add up to at most 100 %."""
        policies = registry("policies")
        policy = policies.get(self.name)  # None for one from a file, which checks its options itself
        for key in KEYS:
            if getattr(self, key) is not None and (policy is None or key not in policy.known_options):
                taking = [name for name, one in policies.items() if key in one.known_options]
                yield Finding((key,), f"{key} with policy {self.name}", f"it only with {' or '.join(taking)}")
        if (
            self.options is not None
            and policy is not None
            and not set(policy.known_options) - {*KEYS, "replan"}
        ):
            expected = "them only with a policy of your own"
            yield Finding(("options",), f"options with policy {self.name}", expected)
        for needed in policy.needed_options if policy is not None else ():
            if not getattr(self, needed, None) and needed not in (self.options or {}):
                yield Finding((needed,), "nothing", f"what policy {self.name} is to do")
        for key in ("classes", "jobs"):
            total = sum(entry.share for entry in getattr(self, key) or ())
            if total > 1.0 + 1e-9:
                yield Finding((key,), f"shares of {total:.4g} in all", "at most 1, or 100 %")
        for key in ("classes", "limits"):
            seen: dict[int, str] = {}
            for position, entry in enumerate(getattr(self, key) or ()):
                for dscp in entry.dscp:
                    if dscp in seen:
                        shown = f"{dscp}, which is in {seen[dscp]}"
                        yield Finding((key, position, "dscp"), shown, "each DSCP in one class only")
                    seen[dscp] = entry.name

    def to_choice(self) -> dict[str, Any]:
        """Return name, options and replan in the form that the controller takes."""
        written = self.model_dump(by_alias=True, exclude_none=True, exclude={"name", "replan", "options"})
        return {
            "name": self.name,
            "options": written | dict(self.options or {}),
            "replan": self.replan,
        }

    @property
    def label(self) -> str:
        """Name for display; for FILE.py:NAME only NAME."""
        return self.name.rpartition(":")[2]


def _parse_policy(value: object) -> PolicySpec:
    if isinstance(value, (Mapping, PolicySpec)):
        return PolicySpec.model_validate(value)
    return PolicySpec(name=_NAME.parse(value))


def _write_policy(value: PolicySpec) -> Any:
    written = value.to_data()
    return value.name if list(written) == ["name"] else written


POLICY = ValueFormat(
    _parse_policy,
    lambda: {"anyOf": [_NAME.json_schema, inlined_schema(PolicySpec)]},
    _write_policy,
)
Policy = Annotated[PolicySpec, POLICY]


def parse_policy(text: str) -> PolicySpec:
    """Return a policy that needs no options, from its name on a command line. A ValueError says what is expected."""
    name = _NAME.parse(resolve_file_names(text, Path()))
    policies = registry("policies")
    if name in policies and policies[name].needed_options:
        simple = ", ".join(name for name, policy in policies.items() if not policy.needed_options)
        raise ValueError(f"a policy that needs no options: {simple}")
    return PolicySpec(name=name)
