"""Policies about what waits for what, who gets how much, and what happens when a link dies. Paths are another's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from testbed.errors import did_you_mean
from testbed.net.controller.policies.base import POLICIES, Mark, Policy, Route
from testbed.net.controller.policy_view import LinkEnd, View
from testbed.net.errors import PolicyError
from testbed.spec.link_direction import QueueClass

FIRST_JOB_DSCP = 40
"""`isolate` marks a job's packets with this and the numbers after it."""


class OnPaths(Policy):
    """A policy that leaves paths to another one: option `over`, one of those that spread; ecmp unless told."""

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
        """Those of the policy in `over`."""
        return self.over.routes(view)


@POLICIES.register("priority")
class Priority(OnPaths):
    """Packets by their DSCP, in queues of their own. Option `classes`: a list of {name, dscp, share}, first goes first.

    Strict unless shares are given: a class waits while one before it has packets. Classes with a `share` of the rate
    have that whatever the others do. Whatever no class names comes last. Default: pipeline (DSCP 46), gradients (26).
    """

    known_options = ("over", "classes")
    default = ({"name": "pipeline", "dscp": 46}, {"name": "gradients", "dscp": 26})

    def classes(self, view: View) -> Sequence[QueueClass]:
        """In their order, the rest last."""
        found = []
        for number, entry in enumerate(self.options.get("classes") or self.default):
            dscps = entry["dscp"] if isinstance(entry["dscp"], (list, tuple)) else [entry["dscp"]]
            found.append(
                QueueClass(entry["name"], tuple(dscps), priority=number, share=entry.get("share", 0.0))
            )
        return [*found, QueueClass("rest", priority=len(found))]


@POLICIES.register("isolate")
class Isolate(OnPaths):
    """Each job has its guaranteed share of every link. Option `jobs`: a list of {name, hosts, share}.

    The edges mark what a job's hosts send, whatever DSCP it had, and each mark has a queue of its own. What a job does
    not use the others may.
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
        """Each host of a job."""
        for _, hosts, _, dscp in self._jobs(view):
            for host in hosts:
                yield Mark(host, dscp)

    def classes(self, view: View) -> Sequence[QueueClass]:
        """One per job, and one for the rest, which has what is left."""
        jobs = self._jobs(view)
        left = max(0.0, 1.0 - sum(share for _, _, share, _ in jobs))
        found = [QueueClass(name, (dscp,), share=share) for name, _, share, dscp in jobs]
        return [*found, QueueClass("rest", share=left)]


@POLICIES.register("limit")
class Limit(OnPaths):
    """At most so much of every link's rate for some packets. Option `limits`: a list of {name, dscp, limit}.

    By shaping: what comes faster waits, in a queue as long as the link's own, and TCP finds its rate. Policing, which
    drops what comes faster, takes TCP to half of what it may have.
    """

    known_options = ("over", "limits")
    needed_options = ("limits",)

    def classes(self, view: View) -> Sequence[QueueClass]:
        """One per limit, and one for the rest."""
        found = []
        for entry in self.options.get("limits", ()):
            dscps = entry["dscp"] if isinstance(entry["dscp"], (list, tuple)) else [entry["dscp"]]
            found.append(QueueClass(entry["name"], tuple(dscps), limit=entry["limit"]))
        return [*found, QueueClass("rest")]


@POLICIES.register("failover")
class Failover(OnPaths):
    """Every link has the other parallel ones as spares: a fast-failover group takes the first that is up.

    Option `over`: the paths while all is well; shortest unless told. Where they spread by a hash, the hash is over the
    links that are up. Option `replan`: whether the controller computes new paths when a link dies, which also finds
    ways through other buildings; true unless told. The switch itself changes over first, without asking.
    """

    known_options = ("over", "replan")

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"over": "shortest", **options})
        self.replan = bool(options.get("replan", True))

    def routes(self, view: View) -> Iterable[Route]:
        """The other's, with spares behind each link: those of least delay first, counted on from the link's plane."""
        parallel: dict[tuple[str, str], list[LinkEnd]] = {}
        for here in view.buildings:
            for end in view.links(here):
                parallel.setdefault((here, end.neighbour), []).append(end)
        beside = {(here, end.name): ends for (here, _), ends in parallel.items() for end in ends}
        for route in super().routes(view):
            if len(set(route.links)) > 1:
                yield route
                continue
            (link, *_) = route.links
            ends = sorted(beside[route.at, link], key=lambda end: end.plane)
            own = [end.name for end in ends].index(link)
            spares = sorted(ends[own + 1 :] + ends[:own], key=lambda end: end.delay_ps)
            yield replace(route, links=(link, *(end.name for end in spares)), first_up=True)
