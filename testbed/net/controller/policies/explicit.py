"""Policies that assign explicit paths to flows: by hand (`pinned`), or by a linear program (`te`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed.errors import did_you_mean
from testbed.net.controller.policies.base import FLOW_RANK, MAX_RANK, POLICIES, Policy, Route
from testbed.net.controller.policies.multipath import Ecmp, Wcmp
from testbed.net.controller.policy_view import Flow, View, with_reverse_flows
from testbed.net.controller.rules import Match
from testbed.net.errors import PolicyError

MAX_PATHS = 32
MAX_MOVES = 1000


@POLICIES.register("pinned")
class Pinned(Policy):
    """A policy with manually assigned paths. Option `paths`: a list of {from, to, links, channel}.

    from, to: buildings or hosts. links: the names of the WAN links on the path, in order; the reverse path uses the
    same links. channel: restricts the entry to one connection of each declared pair of hosts. The first entry that
    matches a packet applies; other packets are routed as with ecmp.
    """

    known_options = ("paths",)
    needed_options = ("paths",)

    def routes(self, view: View) -> Iterable[Route]:
        """Yield the routes of ecmp and those of the entries."""
        yield from Ecmp().routes(view)
        for number, entry in enumerate(self.options.get("paths", ())):
            where = f"paths[{number}]"
            if number >= MAX_RANK:
                raise PolicyError(f"{where}: expected at most {MAX_RANK} entries")
            here, there = (_Endpoint(view, f"{where}.{key}", entry[key]) for key in ("from", "to"))
            names = list(entry["links"])
            for source, target, links in ((here, there, names), (there, here, names[::-1])):
                stops = buildings_along(view, where, source.building, target.building, links)
                for match in _matches(view, source, target, entry.get("channel")):
                    for at, link in zip(stops, links, strict=True):
                        if link not in view.down:
                            yield Route(
                                at, match, (link,), rank=MAX_RANK - number, comment=f"{where} on {link}"
                            )


class _Endpoint:
    """A building, or one of its hosts."""

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

    def contains(self, host: str, building: str) -> bool:
        return building == self.building and self.host in (None, host)


def buildings_along(view: View, where: str, here: str, there: str, links: Sequence[str]) -> list[str]:
    """Return the building before each link of a path from one building to another.

    Raises:
        PolicyError: The links are not such a path, or it visits a building twice. `where` begins the message.
    """
    known = {link.name: (link.a, link.b) for link in view.topology.wan}
    stops = [here]
    for link in links:
        if link not in known:
            expected = f"a WAN link: {did_you_mean(link, list(known))}"
            raise PolicyError(f"{where}.links: got {link!r}, expected {expected}")
        a, b = known[link]
        if stops[-1] not in (a, b):
            raise PolicyError(f"{where}.links: got {link}, expected a link of {stops[-1]}")
        stops.append(b if stops[-1] == a else a)
    if stops[-1] != there or len(set(stops)) != len(stops):
        raise PolicyError(
            f"{where}.links: got the path {' - '.join(stops)}, expected one to {there} that visits no building twice"
        )
    return stops[:-1]


def _matches(view: View, source: _Endpoint, target: _Endpoint, channel: int | None) -> Iterable[Match]:
    if channel is None:
        yield Match(ipv4_src=source.network, ipv4_dst=target.network)
        return
    for flow in with_reverse_flows(view.crossing):
        here, there = view.ends(flow)
        if flow.channel != channel:
            continue
        if source.contains(flow.source, here) and target.contains(flow.destination, there):
            yield view.of(flow)


Path = tuple[str, ...]
"""Names of links, in path order."""


@POLICIES.register("te")
class Te(Policy):
    """A traffic engineering policy that minimises the maximum link utilisation of the declared flows.

    A linear program over each flow's share of each path minimises the maximum link utilisation (declared bytes over
    rate), then path length. Since a connection cannot be split, each is placed on the path whose busiest link is least
    utilised, largest first, and then moved while that improves the maximum. `bound` is the program's optimum and
    `reached` the maximum after placement. Option `detours`: how many links longer than the shortest path a path may be
    (default: 0). Undeclared traffic is routed as with wcmp.
    """

    known_options = ("detours",)
    finds_paths = True
    replan = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bound = self.reached = 0.0

    def routes(self, view: View) -> Iterable[Route]:
        """Yield the routes of wcmp, and one per declared flow at each building on its path."""
        yield from Wcmp().routes(view)
        flows = with_reverse_flows(view.crossing)
        paths = {flow: self._paths(view, *view.ends(flow)) for flow in flows}
        flows = [flow for flow in flows if paths[flow]]
        chosen = self.assign(view, flows, paths)
        for flow, path in chosen.items():
            here, there = view.ends(flow)
            for at, link in zip(buildings_along(view, str(flow), here, there, path), path, strict=True):
                yield Route(at, view.of(flow), (link,), rank=FLOW_RANK, comment=f"{flow} on {link}")

    def planned_bps(self, view: View) -> dict[Flow, float]:
        """Return the rate in bit/s of each declared inter-building flow if all finish with the busiest link."""
        flows = [flow for flow in with_reverse_flows(view.crossing) if flow.size_bytes]
        paths = {flow: self._paths(view, *view.ends(flow)) for flow in flows}
        self.assign(view, flows, paths)
        return {flow: flow.size_bytes / self.reached for flow in flows}

    def assign(
        self, view: View, flows: Sequence[Flow], paths: Mapping[Flow, Sequence[Path]]
    ) -> dict[Flow, Path]:
        """Choose a path for each flow; set `bound` and `reached`."""
        rates = {(at, end.name): end.rate_bps for at in view.buildings for end in view.links(at)}
        uses = {
            (flow, path): list(zip(buildings_along(view, "te", *view.ends(flow), path), path, strict=True))
            for flow in flows
            for path in paths[flow]
        }
        shares, self.bound = minimise_utilisation(flows, paths, uses, rates)
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
            for flow in chosen if worst is not None else ():
                if worst not in uses[flow, chosen[flow]] or not flow.size_bytes:
                    continue
                add(flow, chosen[flow], -1)
                path = min(paths[flow], key=lambda path: cost(flow, path))
                is_better = cost(flow, path)[0] < load[worst] + flow.size_bytes / rates[worst] - 1e-12
                add(flow, chosen[flow])
                if is_better:
                    add(flow, chosen[flow], -1)
                    add(flow, path)
                    chosen[flow] = path
                    break
            else:
                break
        self.reached = max(load.values(), default=0.0)
        return chosen

    def _paths(self, view: View, here: str, there: str) -> list[Path]:
        """Return the candidate paths between two buildings by increasing delay, at most MAX_PATHS."""
        shortest = len(view.route(here, there)) - 1
        if shortest < 1:
            return []
        longest = shortest + int(self.options.get("detours", 0))
        found: list[tuple[int, int, Path]] = []

        def walk(at: str, visited: tuple[str, ...], path: Path, delay_ps: int) -> None:
            if at == there:
                found.append((delay_ps, len(path), path))
            elif len(path) < longest:
                for end in view.links(at):
                    if end.neighbour not in visited:
                        longer = (*path, end.name)
                        walk(end.neighbour, (*visited, end.neighbour), longer, delay_ps + end.delay_ps)

        walk(here, (here,), (), 0)
        return [path for _, _, path in sorted(found)[:MAX_PATHS]]


def minimise_utilisation(
    flows: Sequence[Flow],
    paths: Mapping[Flow, Sequence[Path]],
    uses: Mapping[tuple[Flow, Path], Sequence[tuple[str, str]]],
    rates: Mapping[tuple[str, str], float],
) -> tuple[dict[tuple[Flow, Path], float], float]:
    """Solve the linear program that minimises the maximum link utilisation.

    The solver is GLOP, the simplex solver of Google's OR-tools. Flows with the same candidate paths form one commodity,
    so the program stays small however many connections there are.

    Args:
        flows: The flows to place.
        paths: The candidate paths of each flow.
        uses: The (building, link) hops of each flow on each of its paths.
        rates: The rate of each hop in bit/s.

    Returns:
        The share of each flow on each path, and the maximum utilisation in bytes per bit/s.

    Raises:
        PolicyError: The program has no solution.
    """
    from ortools.linear_solver import pywraplp  # noqa: PLC0415 (takes a second to import; only this policy needs it)

    groups: dict[tuple[Path, ...], list[Flow]] = defaultdict(list)
    for flow in flows:
        if flow.size_bytes:
            groups[tuple(paths[flow])].append(flow)
    total = sum(flow.size_bytes for flow in flows)
    if not total:
        return {}, 0.0
    unit = total / max(rates.values())  # scales the program's coefficients to about 1
    solver = pywraplp.Solver.CreateSolver("GLOP")
    busiest = solver.NumVar(0.0, solver.infinity(), "busiest")
    variables: dict[tuple[tuple[Path, ...], Path], Any] = {}
    load: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for number, (candidates, members) in enumerate(groups.items()):
        size = sum(flow.size_bytes for flow in members)
        for index, path in enumerate(candidates):
            variables[candidates, path] = share = solver.NumVar(0.0, 1.0, f"{number}/{index}")
            for use in uses[members[0], path]:
                load[use].append(share * (size / rates[use] / unit))
        solver.Add(sum(variables[candidates, path] for path in candidates) == 1)
    for terms in load.values():
        solver.Add(sum(terms) <= busiest)
    lengths = sum(len(path) * share for (_, path), share in variables.items())
    solver.Minimize(busiest + 1e-6 * lengths)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        raise PolicyError("the linear program over the declared flows has no solution")
    shares = {
        (flow, path): variables[candidates, path].solution_value()
        for candidates, members in groups.items()
        for flow in members
        for path in candidates
    }
    return shares, busiest.solution_value() * unit
