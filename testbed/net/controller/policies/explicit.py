"""Policies that give paths to flows one by one: by hand (`pinned`), or from a linear program (`te`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed.errors import did_you_mean
from testbed.net.controller.policies.base import FLOW_RANK, MAX_RANK, POLICIES, Policy, Route
from testbed.net.controller.policies.multipath import Ecmp, Wcmp
from testbed.net.controller.policy_view import Flow, View, both_ways
from testbed.net.controller.rules import Match
from testbed.net.errors import PolicyError

MAX_PATHS = 32
MAX_MOVES = 1000


@POLICIES.register("pinned")
class Pinned(Policy):
    """Paths by hand. Option `paths`: a list of {from, to, links, channel}.

    from, to: buildings or hosts. links: the names of the WAN links on the path, in order; the path back takes the same
    ones. channel: one connection of each declared pair of hosts only. The first entry that covers a packet counts;
    what none covers goes as with ecmp.
    """

    known_options = ("paths",)
    needed_options = ("paths",)

    def routes(self, view: View) -> Iterable[Route]:
        """Ecmp's, and what the entries say."""
        yield from Ecmp().routes(view)
        for number, entry in enumerate(self.options.get("paths", ())):
            where = f"paths[{number}]"
            if number >= MAX_RANK:
                raise PolicyError(f"{where}: expected at most {MAX_RANK} entries")
            here, there = (_End(view, f"{where}.{key}", entry[key]) for key in ("from", "to"))
            names = list(entry["links"])
            for source, target, links in ((here, there, names), (there, here, names[::-1])):
                stops = stops_on(view, where, source.building, target.building, links)
                for match in _matches(view, source, target, entry.get("channel")):
                    for at, link in zip(stops, links, strict=True):
                        if link not in view.down:
                            yield Route(
                                at, match, (link,), rank=MAX_RANK - number, comment=f"{where} on {link}"
                            )


class _End:
    """A building, or one host of it."""

    def __init__(self, view: View, where: str, name: str) -> None:
        hosts = {host.name: host for host in view.topology.hosts}
        if name in view.destinations:
            self.building, self.host = name, None
            self.network = view.to(name).ipv4_dst
        elif name in hosts:
            self.building, self.host = hosts[name].building, name
            self.network = f"{hosts[name].ip}/32"
        else:
            which = "a building with hosts" if name in view.buildings else "a building"
            expected = f"{which} or a host: {did_you_mean(name, [*view.destinations, *hosts])}"
            raise PolicyError(f"{where}: got {name!r}, expected {expected}")

    def has(self, host: str, building: str) -> bool:
        """Whether a flow's end is here."""
        return building == self.building and self.host in (None, host)


def stops_on(view: View, where: str, here: str, there: str, links: Sequence[str]) -> list[str]:
    """The building before each link. PolicyError unless they lead from one building to the other, none twice."""
    known = {link.name: (link.a, link.b) for link in view.topology.wan}
    stops = [here]
    for link in links:
        if link not in known:
            expected = f"a WAN link: {did_you_mean(link, list(known))}"
            raise PolicyError(f"{where}.links: got {link!r}, expected {expected}")
        a, b = known[link]
        if stops[-1] not in (a, b):
            raise PolicyError(f"{where}.links: got {link}, which does not lead on from {stops[-1]}")
        stops.append(b if stops[-1] == a else a)
    if stops[-1] != there or len(set(stops)) != len(stops):
        raise PolicyError(
            f"{where}.links: got a path by {' - '.join(stops)}, expected one to {there}, nothing twice"
        )
    return stops[:-1]


def _matches(view: View, source: _End, target: _End, channel: int | None) -> Iterable[Match]:
    if channel is None:
        yield Match(ipv4_src=source.network, ipv4_dst=target.network)
        return
    for flow in both_ways(view.crossing):
        here, there = view.ends(flow)
        if flow.channel == channel and source.has(flow.source, here) and target.has(flow.destination, there):
            yield view.of(flow)


Path = tuple[str, ...]
"""Names of links, in their order."""


@POLICIES.register("te")
class Te(Policy):
    """Traffic engineering: paths for the declared flows such that the busiest link is as little busy as can be.

    A linear program over the shares that each flow puts on each path minimises the largest utilisation of a link
    (declared bytes over rate), then the paths' lengths. A connection cannot be split, so each is put, largest first,
    where the busiest link on its way is least busy, and then moved while that helps. `bound` and `reached` tell how far
    that is from the program's optimum. Option `detours`: how many links more than the shortest path another may have
    (0). What is not declared goes as with wcmp.
    """

    known_options = ("detours",)
    finds_paths = True
    replan = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bound = self.reached = 0.0

    def routes(self, view: View) -> Iterable[Route]:
        """Wcmp's, and one for each declared flow at each building on its way."""
        yield from Wcmp().routes(view)
        flows = both_ways(view.crossing)
        paths = {flow: self._paths(view, *view.ends(flow)) for flow in flows}
        flows = [flow for flow in flows if paths[flow]]
        chosen = self.assign(view, flows, paths)
        for flow, path in chosen.items():
            here, there = view.ends(flow)
            for at, link in zip(stops_on(view, str(flow), here, there, path), path, strict=True):
                yield Route(at, view.of(flow), (link,), rank=FLOW_RANK, comment=f"{flow} on {link}")

    def planned_bps(self, view: View) -> dict[Flow, float]:
        """The rate of each declared flow between buildings at which all are done when the busiest link is."""
        flows = [flow for flow in both_ways(view.crossing) if flow.size_bytes]
        paths = {flow: self._paths(view, *view.ends(flow)) for flow in flows}
        self.assign(view, flows, paths)
        return {flow: flow.size_bytes / self.reached for flow in flows}

    def assign(
        self, view: View, flows: Sequence[Flow], paths: Mapping[Flow, Sequence[Path]]
    ) -> dict[Flow, Path]:
        """A path for each flow."""
        rates = {(at, end.name): end.rate_bps for at in view.buildings for end in view.links(at)}
        uses = {
            (flow, path): [
                (at, link)
                for at, link in zip(stops_on(view, "te", *view.ends(flow), path), path, strict=True)
            ]
            for flow in flows
            for path in paths[flow]
        }
        shares, self.bound = least_utilisation(flows, paths, uses, rates)
        load = dict.fromkeys(rates, 0.0)

        def add(flow: Flow, path: Path, sign: int = 1) -> None:
            for use in uses[flow, path]:
                load[use] += sign * flow.size_bytes / rates[use]

        def cost(flow: Flow, path: Path) -> tuple[float, float, int]:
            after = [load[use] + flow.size_bytes / rates[use] for use in uses[flow, path]]
            share = shares.get((flow, path), 0.0)
            return round(max(after), 15), -share, len(path)

        chosen: dict[Flow, Path] = {}
        for flow in sorted(flows, key=lambda flow: (-flow.size_bytes, flow.connection, flow.source)):
            chosen[flow] = min(paths[flow], key=lambda path: cost(flow, path))
            add(flow, chosen[flow])
        for _ in range(MAX_MOVES):
            worst = max(load, key=lambda use: load[use], default=None)
            better = None
            for flow in chosen if worst is not None else ():
                if worst not in uses[flow, chosen[flow]] or not flow.size_bytes:
                    continue
                add(flow, chosen[flow], -1)
                path = min(paths[flow], key=lambda path: cost(flow, path))
                if cost(flow, path)[0] < load[worst] + flow.size_bytes / rates[worst] - 1e-12:
                    better = flow, path
                add(flow, chosen[flow])
                if better:
                    break
            if better is None:
                break
            add(better[0], chosen[better[0]], -1)
            add(*better)
            chosen[better[0]] = better[1]
        self.reached = max(load.values(), default=0.0)
        return chosen

    def _paths(self, view: View, here: str, there: str) -> list[Path]:
        """The paths between two buildings that may be taken, those of least delay first, at most MAX_PATHS."""
        shortest = len(view.route(here, there)) - 1
        if shortest < 1:
            return []
        longest = shortest + int(self.options.get("detours", 0))
        found: list[tuple[int, int, Path]] = []

        def walk(at: str, seen: tuple[str, ...], path: Path, delay_ps: int) -> None:
            if at == there:
                found.append((delay_ps, len(path), path))
            elif len(path) < longest:
                for end in view.links(at):
                    if end.neighbour not in seen:
                        further = (*path, end.name)
                        walk(end.neighbour, (*seen, end.neighbour), further, delay_ps + end.delay_ps)

        walk(here, (here,), (), 0)
        return [path for _, _, path in sorted(found)[:MAX_PATHS]]


def least_utilisation(
    flows: Sequence[Flow],
    paths: Mapping[Flow, Sequence[Path]],
    uses: Mapping[tuple[Flow, Path], Sequence[tuple[str, str]]],
    rates: Mapping[tuple[str, str], float],
) -> tuple[dict[tuple[Flow, Path], float], float]:
    """The linear program: (share of each flow on each path, the largest utilisation in bytes per bit/s).

    Solved by GLOP, the simplex solver of Google's OR-tools. Flows of the same two buildings with the same paths are one
    commodity, so the program stays small however many connections there are. PolicyError when it has no solution.
    """
    from ortools.linear_solver import pywraplp  # noqa: PLC0415 (a second, which only this policy needs)

    groups: dict[tuple[Path, ...], list[Flow]] = defaultdict(list)
    for flow in flows:
        if flow.size_bytes:
            groups[tuple(paths[flow])].append(flow)
    total = sum(flow.size_bytes for flow in flows)
    if not total:
        return {}, 0.0
    unit = total / max(rates.values())  # so that the program's numbers are about 1
    solver = pywraplp.Solver.CreateSolver("GLOP")
    busiest = solver.NumVar(0.0, solver.infinity(), "busiest")
    parts: dict[tuple[tuple[Path, ...], Path], Any] = {}
    load: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for number, (between, own) in enumerate(groups.items()):
        size = sum(flow.size_bytes for flow in own)
        for index, path in enumerate(between):
            parts[between, path] = part = solver.NumVar(0.0, 1.0, f"{number}/{index}")
            for use in uses[own[0], path]:
                load[use].append(part * (size / rates[use] / unit))
        solver.Add(sum(parts[between, path] for path in between) == 1)
    for terms in load.values():
        solver.Add(sum(terms) <= busiest)
    lengths = sum(len(path) * part for (_, path), part in parts.items())
    solver.Minimize(busiest + 1e-6 * lengths)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        raise PolicyError("the linear program over the declared flows has no solution")
    shares = {
        (flow, path): parts[between, path].solution_value()
        for between, own in groups.items()
        for flow in own
        for path in between
    }
    return shares, busiest.solution_value() * unit
