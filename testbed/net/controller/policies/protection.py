"""Policies for priorities, bandwidth shares and link failures. They delegate paths to another policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from testbed.errors import did_you_mean
from testbed.net.controller.policies.base import POLICIES, Mark, Policy, Route
from testbed.net.controller.policy_view import LinkEnd, View
from testbed.net.errors import PolicyError
from testbed.spec.link_direction import QueueClass

FIRST_JOB_DSCP = 40
"""`isolate` marks the packets of job N with this DSCP plus N."""


class DelegatedPathsPolicy(Policy):
    """The base class of policies that delegate paths to another policy, option `over` (default: ecmp)."""

    known_options: tuple[str, ...] = ("over",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        name = options.get("over", "ecmp")
        known = [name for name, policy in POLICIES.items() if policy.finds_paths]
        if name not in known:
            raise PolicyError(f"over: got {name!r}, expected {did_you_mean(name, known)}")
        self.over = POLICIES[name]()
        self.replan = self.over.replan

    def routes(self, view: View) -> Iterable[Route]:
        """Return the routes of the policy in `over`."""
        return self.over.routes(view)


def _dscps(entry: Mapping[str, Any]) -> tuple[int, ...]:
    dscp = entry["dscp"]
    return tuple(dscp) if isinstance(dscp, (list, tuple)) else (dscp,)


@POLICIES.register("priority")
class Priority(DelegatedPathsPolicy):
    """A policy that queues packets by DSCP, in priority order. Option `classes`: a list of {name, dscp, share}.

    Priority is strict unless shares are given: a class waits while an earlier one has packets. A class with a `share`
    of the rate has that rate guaranteed. Packets of no class come last. Default: pipeline (DSCP 46), gradients (26).
    """

    known_options = ("over", "classes")
    default = ({"name": "pipeline", "dscp": 46}, {"name": "gradients", "dscp": 26})

    def classes(self, view: View) -> Sequence[QueueClass]:
        """Return the classes in priority order, with the rest last."""
        classes = []
        for priority, entry in enumerate(self.options.get("classes") or self.default):
            share = entry.get("share", 0.0)
            classes.append(QueueClass(entry["name"], _dscps(entry), priority=priority, share=share))
        return [*classes, QueueClass("rest", priority=len(classes))]


@POLICIES.register("isolate")
class Isolate(DelegatedPathsPolicy):
    """A policy that guarantees each job a share of every link. Option `jobs`: a list of {name, hosts, share}.

    The edges overwrite the DSCP of packets from a job's hosts, and each of these DSCPs has its own queue. Other jobs
    may use the bandwidth that a job leaves unused.
    """

    known_options = ("over", "jobs")
    needed_options = ("jobs",)

    def _jobs(self, view: View) -> list[tuple[str, list[str], float, int]]:
        known = [host.name for host in view.topology.hosts]
        jobs, taken = [], dict[str, str]()
        for number, entry in enumerate(self.options.get("jobs", ())):
            for host in entry["hosts"]:
                if host not in known:
                    raise PolicyError(
                        f"jobs[{number}].hosts: got {host!r}, expected a host: {did_you_mean(host, known)}"
                    )
                if host in taken:
                    raise PolicyError(f"jobs[{number}].hosts: {host} is also one of job {taken[host]}")
                taken[host] = entry["name"]
            jobs.append((entry["name"], list(entry["hosts"]), entry["share"], FIRST_JOB_DSCP + number))
        return jobs

    def marks(self, view: View) -> Iterable[Mark]:
        """Yield a mark for each host of each job."""
        for _, hosts, _, dscp in self._jobs(view):
            for host in hosts:
                yield Mark(host, dscp)

    def classes(self, view: View) -> Sequence[QueueClass]:
        """Return one class per job, and one for the rest with the remaining share."""
        jobs = self._jobs(view)
        remaining = max(0.0, 1.0 - sum(share for _, _, share, _ in jobs))
        classes = [QueueClass(name, (dscp,), share=share) for name, _, share, dscp in jobs]
        return [*classes, QueueClass("rest", share=remaining)]


@POLICIES.register("limit")
class Limit(DelegatedPathsPolicy):
    """A policy that caps some packets at a share of every link's rate. Option `limits`: a list of {name, dscp, limit}.

    It shapes: excess packets wait in a queue as long as the link's own, and TCP adapts to the rate. Policing, which
    drops excess packets, would reduce TCP to half of the permitted rate.
    """

    known_options = ("over", "limits")
    needed_options = ("limits",)

    def classes(self, view: View) -> Sequence[QueueClass]:
        """Return one class per limit, and one for the rest."""
        limits = self.options.get("limits", ())
        classes = [QueueClass(entry["name"], _dscps(entry), limit=entry["limit"]) for entry in limits]
        return [*classes, QueueClass("rest")]


@POLICIES.register("failover")
class Failover(DelegatedPathsPolicy):
    """A policy in which each link is backed up by its parallel links, with a fast-failover group.

    Option `over`: the policy for paths while all links are up (default: shortest). A policy that spreads by a hash
    hashes over the links that are up. Option `replan`: whether the controller computes new paths when a link fails
    (default: true), which also finds detours through other buildings. The switch itself fails over first, without the
    controller.
    """

    known_options = ("over", "replan")

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"over": "shortest", **options})
        self.replan = bool(options.get("replan", True))

    def routes(self, view: View) -> Iterable[Route]:
        """Yield the routes of `over`, with backup links by delay, then by plane starting after the link's own."""
        parallel: dict[tuple[str, str], list[LinkEnd]] = {}
        for here in view.buildings:
            for end in view.links(here):
                parallel.setdefault((here, end.neighbour), []).append(end)
        siblings = {(here, end.name): ends for (here, _), ends in parallel.items() for end in ends}
        for route in super().routes(view):
            if len(set(route.links)) > 1:
                yield route
                continue
            (link, *_) = route.links
            ends = sorted(siblings[route.at, link], key=lambda end: end.plane)
            own = [end.name for end in ends].index(link)
            backups = sorted(ends[own + 1 :] + ends[:own], key=lambda end: end.delay_ps)
            yield replace(route, links=(link, *(end.name for end in backups)), first_up=True)
