"""Transport policies, as a scenario says them: a name, or a name with options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from testbed.errors import did_you_mean
from testbed.plugins import registry, resolve_file_names
from testbed.spec.base_model import Finding, Form, StrictModel, inlined_schema
from testbed.spec.value_types import (
    OPTIONS,
    CountOrZero,
    Dscps,
    FlagOrNone,
    Fraction,
    Name,
    Share,
    named,
    whole,
)

_NAME = named("policies")


class QueueSpec(StrictModel):
    """Packets with some DSCPs, and what they are guaranteed."""

    name: Name = Field(description="Name of the class.")
    dscp: Dscps = Field(description="One DSCP, or a list.")
    share: Fraction = Field(
        default=0.0,
        description="Guaranteed part of every WAN link's rate, whatever the classes before it do.",
    )


class LimitSpec(StrictModel):
    """Packets with some DSCPs, and the most that they get."""

    name: Name = Field(description="Name of the class.")
    dscp: Dscps = Field(description="One DSCP, or a list.")
    limit: Share = Field(description="Most of every WAN link's rate.")


class JobShareSpec(StrictModel):
    """Hosts that share a guarantee."""

    name: Name = Field(description="Name of the job.")
    hosts: tuple[str, ...] = Field(description="Its hosts, such as [east1, west1].")
    share: Share = Field(description="Guaranteed part of every WAN link's rate.")


class PathSpec(StrictModel):
    """A path by hand, taken in both directions."""

    source: str = Field(alias="from", description="A building or a host.")
    to: str = Field(description="A building or a host.")
    links: tuple[str, ...] = Field(description="The WAN links on the path, in order, such as [east-west-0].")
    channel: Annotated[int | None, whole(0)] = Field(
        default=None, description="Only this connection of each pair of ranks, counted from 0."
    )


KEYS = ("over", "detours", "classes", "jobs", "limits", "paths")
"""Options that have keys of their own, checked here; a policy says in `known_options` which of them it takes."""


def _path_policies() -> list[str]:
    return [name for name, policy in registry("policies").items() if policy.finds_paths]


def _parse_over(value: object) -> str:
    if value not in (known := _path_policies()):
        raise ValueError(f"a policy: {did_you_mean(value, known)}")
    return str(value)


_OVER = Form(_parse_over, lambda: {"enum": _path_policies()})


DEFAULT_POLICY = "ecmp"  # of scenarios, commands and the Python API: what most networks do


class PolicySpec(StrictModel):
    """How the network treats the traffic: which paths flows take, what waits for what, what happens when links die."""

    name: Annotated[str, _NAME] = Field(description="A policy, or one of your own as FILE.py:NAME.")
    over: Annotated[str | None, _OVER] = Field(
        default=None,
        description="Which policy the paths are left to, where the policy is about something else (ecmp; failover: "
        "shortest).",
    )
    replan: FlagOrNone = Field(
        default=None,
        description="Whether paths are computed anew when a link dies; by default as the policy has it.",
    )
    detours: CountOrZero | None = Field(
        default=None, description="te: how many links more than the shortest path a path may have (0)."
    )
    classes: tuple[QueueSpec, ...] | None = Field(default=None, description="priority: the first goes first.")
    jobs: tuple[JobShareSpec, ...] | None = Field(default=None, description="isolate: who has which share.")
    limits: tuple[LimitSpec, ...] | None = Field(default=None, description="limit: what is held back.")
    paths: tuple[PathSpec, ...] | None = Field(
        default=None, description="pinned: the first that fits counts."
    )
    options: Annotated[Mapping[str, Any] | None, OPTIONS] = Field(
        default=None, description="What a policy of your own is made with."
    )

    def checks(self) -> Iterator[Finding]:
        """Only what says something is given; guarantees add up to at most everything."""
        policies = registry("policies")
        policy = policies.get(self.name)  # None for one of a file, which says itself what it does not know
        for key in KEYS:
            if getattr(self, key) is not None and (policy is None or key not in policy.known_options):
                taking = [name for name, one in policies.items() if key in one.known_options]
                yield Finding((key,), f"{key} with policy {self.name}", f"it with {' or '.join(taking)} only")
        if (
            self.options is not None
            and policy is not None
            and not set(policy.known_options) - {*KEYS, "replan"}
        ):
            expected = "them with a policy of your own only"
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
                        shown = f"{dscp}, which {seen[dscp]} has"
                        yield Finding((key, position, "dscp"), shown, "each DSCP in one class only")
                    seen[dscp] = entry.name

    def to_choice(self) -> dict[str, Any]:
        """As the controller takes it: name, options, replan."""
        written = self.model_dump(by_alias=True, exclude_none=True, exclude={"name", "replan", "options"})
        return {
            "name": self.name,
            "options": written | dict(self.options or {}),
            "replan": self.replan,
        }

    @property
    def label(self) -> str:
        """For people: the name, of one's own only the class."""
        return self.name.rpartition(":")[2]


def _parse_policy(value: object) -> PolicySpec:
    if isinstance(value, (Mapping, PolicySpec)):
        return PolicySpec.model_validate(value)
    return PolicySpec(name=_NAME.parse(value))


def _write_policy(value: PolicySpec) -> Any:
    written = value.to_data()
    return value.name if list(written) == ["name"] else written


POLICY = Form(
    _parse_policy,
    lambda: {"anyOf": [_NAME.json_schema, inlined_schema(PolicySpec)]},
    _write_policy,
)
Policy = Annotated[PolicySpec, POLICY]
PolicyOrNone = Annotated[PolicySpec | None, POLICY]


def parse_policy(text: str) -> PolicySpec:
    """A policy's name from a command line, for one that needs no options. ValueError says what was expected."""
    name = _NAME.parse(resolve_file_names(text, Path()))
    policies = registry("policies")
    if name in policies and policies[name].needed_options:
        simple = ", ".join(name for name, policy in policies.items() if not policy.needed_options)
        raise ValueError(f"a policy that needs no options: {simple}")
    return PolicySpec(name=name)
