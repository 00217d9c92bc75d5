"""Scenarios: which training step to run on which topology, how, and how often."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict

from testbed.errors import did_you_mean
from testbed.plugins import disambiguate_names
from testbed.spec.base_model import Finding, StrictModel, ValueFormat, located, validate
from testbed.spec.buildings import Host
from testbed.spec.cluster_sharing import AllocationSpec, BackgroundTrafficSpec
from testbed.spec.control_plane import ControlSpec
from testbed.spec.errors import ConfigError
from testbed.spec.events import EventSpec
from testbed.spec.failure_processes import FailureSpec, drawn_events
from testbed.spec.hardware import count_rank_hosts
from testbed.spec.keywords import PLANNED
from testbed.spec.overrides import PRESETS, apply_changes, apply_preset
from testbed.spec.policy import DEFAULT_POLICY, Policy, PolicySpec
from testbed.spec.scenario_files import read_scenario
from testbed.spec.search_space import ExploreSpec
from testbed.spec.telemetry import TelemetrySpec
from testbed.spec.topology import Topology, TopologySpec, expected_host
from testbed.spec.transport import TransportSpec
from testbed.spec.value_types import (
    Count,
    CountOrZero,
    Factor,
    Name,
    algorithm,
    algorithm_names,
    choice,
)
from testbed.spec.workload import WorkloadSpec
from testbed.spec.yaml_loader import show

VARIANT_NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
FIXED_IN_VARIANTS = ("name", "variants", "explore", "trials", "warmup", "seed", "scale", "ranks", "hosts")


def _parse_variants(value: object) -> Mapping[str, Mapping[str, Any]]:
    if (
        not isinstance(value, Mapping)
        or len(value) < 2
        or not all(isinstance(v, Mapping) for v in value.values())
    ):
        raise ValueError(
            "two or more names, with what differs, such as {shallow: {topology.wan.0.queue: 1 MiB}}"
        )
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(VARIANT_NAME, name):
            raise ValueError(f"names of lower-case letters, digits, '.', '_', '-', not {show(name)}")
    return {name: dict(changes) for name, changes in value.items()}


_VARIANTS = ValueFormat(
    _parse_variants,
    {"type": "object", "minProperties": 2, "additionalProperties": {"type": "object"}},
    lambda value: {name: dict(changes) for name, changes in value.items()},
)


class ScaleSpec(StrictModel):
    """The scale model: how figures of the real network map to those of the emulated one."""

    size_scale: Factor = "auto"
    """Divides rates and message sizes; times are unchanged. A number, or auto: the smallest value at which this host
    can process the traffic.
    """
    time_dilation: Factor = 1.0
    """Divides rates and multiplies every duration; measured times are divided by it. A number, or auto: the smallest
    value at which this host can process the traffic with the given `size_scale`. auto is 1 if `size_scale` is auto too,
    or if the clock is virtual.
    """


def _allow_file(schema: dict[str, Any]) -> None:
    """Allow the path of a topology file in place of an inline topology, in the JSON schema of a scenario."""
    inline = schema["properties"]["topology"]
    schema["properties"]["topology"] = {
        "anyOf": [{"type": "string", "examples": ["two-buildings.yaml"]}, inline]
    }


class Scenario(StrictModel):
    """A scenario as written in a file."""

    model_config = ConfigDict(json_schema_extra=_allow_file)
    derived_fields = frozenset({"ranks"})
    renamed: ClassVar[Mapping[str, str]] = {"neighbours": "`background_traffic`, which takes the same"}

    name: Name
    """Name of the scenario."""
    topology: TopologySpec
    """A topology file, relative to this file, or an inline topology."""
    ranks: Count = 0
    """Number of ranks, on consecutive hosts; default: one per host."""
    hosts: tuple[str, ...] | None = None
    """Hosts of the ranks, in rank order, such as [east1, west1]; default: all hosts of the topology, in its order,
    except those of `background_traffic`.
    """
    allocation: AllocationSpec | None = None
    """How a scheduler places the ranks on hosts, in place of `hosts`."""
    workload: WorkloadSpec
    """The computation and communication of every rank in a step."""
    algorithms: tuple[Annotated[str, algorithm("all_reduce")], ...] = ("ring",)
    """All-reduce algorithms, by name or as FILE.py:NAME. Each one is run as a variant."""
    # not validated: policies live in a higher layer and are looked up when a scenario is read
    policy: Policy = PolicySpec.model_construct(name=DEFAULT_POLICY)
    """How the network routes and queues the traffic: the name of a policy, or a mapping with its options."""
    control: ControlSpec = ControlSpec()
    """Delays of the control plane: how long switches and controller take to detect, decide and act."""
    preset: Annotated[str | None, choice("a preset", PRESETS)] = None
    """A collectives library from data/presets.yaml. Its protocol, connections, costs and algorithms are the defaults
    for every key that this file does not set. In a variant, or with `--set`, they override this file except for keys
    set in the same place.
    """
    transport: TransportSpec = TransportSpec()
    """How ranks exchange messages."""
    background_traffic: tuple[BackgroundTrafficSpec, ...] = ()
    """Other jobs, which send traffic over the same network while steps run."""
    events: tuple[EventSpec, ...] = ()
    """Faults and changes to inject while steps run. With events, the trials of each variant run back to back."""
    failures: tuple[FailureSpec, ...] = ()
    """Random processes that make components fail repeatedly, in addition to `events`."""
    telemetry: TelemetrySpec = TelemetrySpec()
    """Measurements to record in addition to the ranks' own times."""
    variants: Annotated[Mapping[str, Mapping[str, Any]] | None, _VARIANTS] = None
    """The variants to compare, by name. Each maps `--set` paths to the values that differ from this scenario, such as
    {policy: te} or {topology.wan.0.queue: 1 MiB}. Trials are interleaved; each has its own network and its own seed.
    """
    explore: ExploreSpec | None = None
    """Search space for `testbed explore`; ignored by `testbed run`."""
    trials: Count = 5
    """Measured steps per variant."""
    warmup: CountOrZero = 1
    """Steps per variant before measurement starts."""
    seed: CountOrZero = 1
    """Seed of all random numbers."""
    scale: ScaleSpec = ScaleSpec()
    """How real figures are scaled to what this host can emulate."""

    @classmethod
    def with_defaults(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Apply the preset, and default to one rank per host."""
        data = apply_preset(data)
        hosts = count_rank_hosts(data)
        return {"ranks": hosts, **data} if hosts else data

    @classmethod
    def raw_checks(cls, data: Mapping[str, Any]) -> Iterator[Finding]:
        """Check that there is a host for every rank."""
        hosts, ranks = count_rank_hosts(data), data.get("ranks")
        if hosts and isinstance(ranks, int) and ranks > hosts:
            whose = "`hosts`" if data.get("hosts") else "the topology"
            yield Finding(("ranks",), str(ranks), f"at most {hosts}, one on each host of {whose}")

    def checks(self) -> Iterator[Finding]:
        """Check algorithms, captured links, pacing, variants, search space, hosts, events and background traffic."""
        if not self.algorithms:
            expected = f"at least one of: {', '.join(algorithm_names(['all_reduce']))}"
            yield Finding(("algorithms",), "an empty list", expected)
        for position, name in enumerate(self.algorithms):
            if name in self.algorithms[:position]:
                yield Finding(("algorithms", position), f"{name!r} again", "each algorithm once")
        topology = self.topology.resolve()
        links = [link.name for link in topology.wan]
        for position, name in enumerate(self.telemetry.capture if self.telemetry.capture != "all" else ()):
            if name not in links:
                where = ("telemetry", "capture", position)
                yield Finding(where, show(name), f"a WAN link: {did_you_mean(name, links)}")
        for position, entry in enumerate(self.transport.sockets):
            if entry.pacing == PLANNED and self.policy.name != "te":
                key = ("transport", "sockets", position, "pacing")
                yield Finding(key, f"planned with policy {self.policy.label}", "it only with policy te")
        yield from self._variant_findings()
        if self.explore is not None:
            yield from self._explore_findings()
        yield from self._host_findings(topology)
        used = [host.name for host in self.rank_hosts(topology)]
        yield from self._event_findings(topology, used)
        for position, other in enumerate(self.background_traffic):
            yield from located(other.target_findings(topology, used), "background_traffic", position)
            used += other.hosts

    def _event_findings(self, topology: Topology, used: Sequence[str]) -> Iterator[Finding]:
        """Check targets and steps of events and failures. `used`: hosts of the ranks, in rank order."""
        for position, event in enumerate(self.events):
            yield from located(event.target_findings(topology, used), "events", position)
            # with variants, every trial has its own network and gets all events
            steps = self.steps_per_network
            if event.step is not None and event.step >= steps:
                expected = f"one of {steps} measured steps, from 0 on"
                yield Finding(("events", position, "step"), str(event.step), expected)
        for position, failure in enumerate(self.failures):
            yield from located(failure.target_findings(topology, used), "failures", position)

    @property
    def steps_per_network(self) -> int:
        """Number of measured steps that share one network: with named variants each trial has its own."""
        return self.trials if self.variants is None or self.has_faults else 1

    @property
    def has_faults(self) -> bool:
        """Whether replicas can fail and rejoin, so that all steps belong to one job."""
        parallelism = self.workload.parallelism
        return parallelism is not None and parallelism.faults is not None

    def _host_findings(self, topology: Topology) -> Iterator[Finding]:
        """Check that named hosts exist and are unique, and that a scheduler has enough hosts."""
        if self.allocation is not None:
            taken = self._taken_hosts
            yield from self.allocation.findings(topology, self.ranks, taken, self.seed, self.hosts)
        known = [host.name for host in topology.hosts]
        for position, name in enumerate(self.hosts or ()):
            if name not in known:
                yield Finding(("hosts", position), show(name), expected_host(topology, name, known))
            elif name in (self.hosts or ())[:position]:
                yield Finding(("hosts", position), f"{name} again", "each host once")

    @property
    def _taken_hosts(self) -> set[str]:
        return {name for other in self.background_traffic for name in other.hosts}

    def rank_hosts(self, topology: Topology) -> tuple[Host, ...]:
        """Return the hosts of the ranks, in rank order. `topology`: this scenario's, resolved."""
        taken = self._taken_hosts
        if self.allocation is not None:
            return self.allocation.hosts(topology, self.ranks, taken, self.seed)
        if self.hosts is not None:
            known = {host.name: host for host in topology.hosts}
            found = [known[name] for name in self.hosts if name in known]
        else:
            found = [host for host in topology.hosts if host.name not in taken]
        return tuple(found[: self.ranks])

    @property
    def all_events(self) -> tuple[EventSpec, ...]:
        """All events: the listed ones, then those drawn from the failure processes with the seed."""
        if not self.failures:
            return self.events
        topology = self.topology.resolve()
        hosts = [host.name for host in self.rank_hosts(topology)]
        return (*self.events, *drawn_events(self.failures, topology, hosts, self.seed))

    def _variant_findings(self) -> Iterator[Finding]:
        """Check that variants are valid, with one algorithm each and equally many training steps."""
        counts: dict[int, str] = {}
        for name, changes in (self.variants or {}).items():
            where = ("variants", name)
            fixed = [path for path in changes if path.split(".")[0] in FIXED_IN_VARIANTS]
            if fixed:
                yield Finding(
                    (*where, fixed[0]),
                    f"{fixed[0]} in a variant",
                    "only keys that may differ between variants",
                )
                continue
            try:
                variant = self.variant(name)
            except ConfigError as error:
                for problem in error.problems:
                    yield Finding((*where, problem.field), problem.value, problem.expected)
                continue
            if len(variant.algorithms) > 1:
                shown = f"algorithms [{', '.join(variant.algorithms)}] and variants"
                yield Finding(
                    ("variants",), shown, "one algorithm; name the others in variants, as algorithms: [ring]"
                )
                return
            counts.setdefault(variant.workload.training_steps_per_step, name)
        if len(counts) > 1:
            shown = ", ".join(f"{count} in {name}" for count, name in counts.items())
            expected = "as many in all variants: workload.training_steps"
            yield Finding(("variants",), f"training steps of a step: {shown}", expected)

    def _explore_findings(self) -> Iterator[Finding]:
        """Check that a search has something to search, and that its paths may differ between configurations."""
        assert self.explore is not None
        if self.variants is not None:
            yield Finding(("explore",), "a search and variants", "only one of the two")
        yield from located(self.explore.findings_of(self.workload), "explore")
        for path in self.explore.space:
            if path.split(".")[0] in FIXED_IN_VARIANTS:
                yield Finding(("explore", "space", path), "it", "paths of what configurations may differ in")

    def variant(self, name: str) -> Scenario:
        """Return the scenario that a variant runs: this one with the variant's changes.

        Raises:
            ConfigError: a change is invalid.
            KeyError: there is no variant of this name.
        """
        if self.variants is None:
            return self.model_copy(update={"algorithms": (self.named_algorithms[name],)})
        return self.changed(self.variants[name], f"variant {name}")

    def changed(self, changes: Mapping[str, Any], name: str) -> Scenario:
        """Return a copy with other values, by `--set` path. A ConfigError names `name` as the source."""
        return apply_changes(self, changes, name)

    @property
    def variant_names(self) -> tuple[str, ...]:
        """Names of the variants, or of the algorithms if there are no variants."""
        return tuple(self.variants if self.variants is not None else self.named_algorithms)

    @property
    def named_algorithms(self) -> Mapping[str, str]:
        """Algorithms by their name in results. FILE.py:NAME is shown as FILE:NAME, without its folder."""
        return disambiguate_names(self.algorithms)


def load_scenario(source: Path | str | Mapping[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario from a file or a mapping.

    Args:
        source: path of a scenario file, or its content.
        overrides: "path=value" strings, as `--set` takes them.

    Raises:
        ConfigError: lists all problems of all files.
    """
    return validate(Scenario, read_scenario(source, overrides))
