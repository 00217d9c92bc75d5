"""Metrics of served requests: latencies and their parts, link loads, the limiting resource, energy and cost."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from testbed.prediction.timeline import Spans
from testbed.spec.buildings import Host
from testbed.spec.scale import Scale
from testbed.spec.serving import InferenceSpec
from testbed.spec.topology import Topology
from testbed.workload.dispatch import Dispatching
from testbed.workload.job.endpoint_resolution import Pairs, sum_pairs
from testbed.workload.job.job import Job
from testbed.workload.plan import Computing, JobPlan, Message
from testbed.workload.plans import Mark
from testbed.workload.serving.costs import card_of
from testbed.workload.serving.request_plan import Serving

SHARES = (*(percent / 100 for percent in range(100)), 0.995, 0.999, 1.0)
HOUR_S = 3600.0
Key = tuple[str, str]


@dataclass(frozen=True)
class LinkLoad:
    """Payload that one direction of a link carries per step, as planned and as sent, in real bytes."""

    name: str
    rate_bps: float
    expected: float
    observed: float


@dataclass(frozen=True)
class ServedStep:
    """The requests of one step, in real seconds and bytes.

    Attributes:
        times: Times of each counted request.
        arrived: Number of requests.
        last_s: Arrival time of the last request.
        lost: Number of counted requests that were never answered.
        step_s: Duration of the step.
        busy_s: Compute time, by accelerator name.
        links: Load of each link.
        failures: Retries and outages, with the fields of the results' `Serving`.
        predicted_s: Latencies predicted by the model, if any.
    """

    times: tuple[RequestTime, ...]
    arrived: int
    last_s: float
    lost: int
    step_s: float
    busy_s: Mapping[str, float]
    links: tuple[LinkLoad, ...]
    failures: Mapping[str, Any]
    predicted_s: tuple[float, ...] | None = None


def served_step(
    job: Job,
    algorithm: str,
    spans: Spans,
    sent: Pairs | None = None,
    predicted_s: tuple[float, ...] | None = None,
) -> ServedStep:
    """Return the requests of one step, from measured or simulated spans.

    Args:
        job: The job as it was executed.
        algorithm: Algorithm of collectives that do not name one.
        spans: Start and end of each rank's operations, in emulated seconds from the step's start.
        sent: Emulated payload sent per pair of ranks; None for the planned payload.
        predicted_s: Latencies predicted by the model, if `spans` are measured.
    """
    serving, scale = job.workload.serving, job.scale
    assert serving is not None
    times = request_times(serving, spans, scale)
    pairs = sum_pairs(job.workload.pairs(algorithm).values())
    return ServedStep(
        tuple(times),
        len(serving.arrivals_s),
        serving.arrivals_s[-1],
        _lost(serving),
        scale.real_s(max(end for own in spans for _, end in own)),
        {job.hosts[card].name: scale.real_s(seconds) for card, seconds in serving.computing_s.items()},
        tuple(_links(job.topology, job.hosts, pairs, pairs if sent is None else sent, scale)),
        _failures(serving, times, job.hosts, scale),
        predicted_s,
    )


def serving_figures(spec: InferenceSpec, steps: Sequence[ServedStep]) -> dict[str, Any]:
    """Return the request metrics over all steps, with the fields of the results' `Serving`."""
    times = [one for step in steps for one in step.times]
    waited = sorted(one.latency_s for one in times)
    step_s, arrived = sum(step.step_s for step in steps), sum(step.arrived for step in steps)
    lost = sum(step.lost for step in steps)
    answering_s = sum(max(one.last_s for one in step.times) - step.times[0].arrival_s for step in steps)
    busy_s = {card: sum(step.busy_s[card] for step in steps) for card in steps[0].busy_s}
    links = _mean_links(steps, step_s)
    needs_s = {f"card {card}": seconds for card, seconds in busy_s.items()}
    needs_s |= {link["name"]: len(steps) * link["bytes_expected"] * 8 / link["rate_bps"] for link in links}
    limit = max(needs_s, key=lambda name: needs_s[name])
    predicted_s = [seconds for step in steps for seconds in step.predicted_s or ()]
    card, card_s = card_of(spec), len(busy_s) * step_s / (arrived - lost)
    last_s = sum(step.last_s for step in steps)
    retries = [step.failures for step in steps if step.failures]
    return {
        "requests": len(times),
        "offered_per_s": arrived / last_s if last_s else 0.0,
        "answered_per_s": len(times) / answering_s,
        "latency": latencies(waited),
        **_tokens(spec, times),
        "predicted": latencies(predicted_s) if predicted_s else None,
        "objective_s": spec.objective_s,
        "objective_share": spec.objective_share,
        "within": sum(seconds <= spec.objective_s for seconds in waited) / (len(waited) + lost),
        "sent_again": sum(one["sent_again"] for one in retries),
        "outages": [outage for one in retries for outage in one["outages"]],
        "lost": lost,
        **_parts(times),
        "cdf_s": [at_share(waited, share) for share in SHARES],
        "busiest_card": max(busy_s.values()) / step_s,
        "links": links,
        "capacity_per_s": arrived / needs_s[limit],
        "limited_by": limit,
        "energy_j": card.power_w * card_s,
        "cost_usd": 1e6 * card.hourly_usd * card_s / HOUR_S,
    }


def _mean_links(steps: Sequence[ServedStep], step_s: float) -> list[dict[str, Any]]:
    """Return each link's mean load per step; `step_s` is the total time of all steps."""
    loads: dict[str, list[LinkLoad]] = defaultdict(list)
    for link in (link for step in steps for link in step.links):
        loads[link.name].append(link)
    found = []
    for name, own in loads.items():
        expected, observed = sum(one.expected for one in own), sum(one.observed for one in own)
        found.append(
            {
                "name": name,
                "rate_bps": own[0].rate_bps,
                "bytes_expected": round(expected / len(steps)),
                "bytes_observed": round(observed / len(steps)),
                "utilisation": observed * 8 / own[0].rate_bps / step_s,
            }
        )
    return found


def latencies(values: Sequence[float]) -> dict[str, float]:
    """Return the fields of the results' `Latencies`."""
    ordered = sorted(values)
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {
        "mean": sum(ordered) / len(ordered),
        **{name: at_share(ordered, share) for name, share in shares.items()},
    }


def _lost(serving: Serving) -> int:
    """Return the number of counted requests that were never answered."""
    lost = serving.dispatched.lost if serving.dispatched else ()
    numbers = (
        number for one in lost for number in range(serving.batches[one].first, serving.batches[one].end)
    )
    return sum(number >= serving.spec.not_counted for number in numbers)


def _failures(
    serving: Serving, times: Sequence[RequestTime], hosts: Sequence[Host], scale: Scale
) -> dict[str, Any]:
    """Return retries, and latencies before, during and after each outage."""
    if serving.dispatching is None or serving.dispatched is None:
        return {}
    dispatching, found = serving.dispatching, serving.dispatched
    tries = Counter(sending.batch for sending in found.sendings)
    after_s = scale.real_s(dispatching.rules.retry_s or 0.0)
    outages = []
    for one in found.outages:
        noticed_s = scale.real_s(one.noticed_s)
        begun_s = noticed_s - after_s
        spans = {
            "before": (-math.inf, begun_s),
            "during": (begun_s, noticed_s),
            "after": (noticed_s, math.inf),
        }
        by_then = {
            name: [own.latency_s for own in times if start_s <= own.arrival_s < end_s]
            for name, (start_s, end_s) in spans.items()
        }
        outages.append(
            {
                "name": _unit_name(dispatching, one.unit, hosts),
                "noticed_s": noticed_s,
                "back_s": None if one.back_s is None else scale.real_s(one.back_s),
                **{name: latencies(own) if own else None for name, own in by_then.items()},
            }
        )
    retries = sum(serving.batches[batch].size for batch, count in tries.items() if count > 1)
    return {"sent_again": retries, "outages": outages}


def _unit_name(dispatching: Dispatching, unit: int, hosts: Sequence[Host]) -> str:
    """Return the name of a unit that is avoided as a whole: a node, by its host, or an accelerator."""
    if dispatching.rules.by_node:
        return f"node {dispatching.names[unit]}"
    server = dispatching.servers[unit]
    if len(server.turns) > 1:
        return f"node {dispatching.names[server.node]}"
    return f"card {hosts[dispatching.nodes[server.node][1 + server.turns[0]]].name}"


def _tokens(spec: InferenceSpec, times: Sequence[RequestTime]) -> dict[str, Any]:
    """Return time to first token and time per output token, for answers that are generated token by token."""
    if spec.generation is None:
        return {}
    tokens = spec.generation.output_tokens
    found = {"first_token": latencies([one.first_s - one.arrival_s for one in times])}
    if tokens > 1:
        found["per_token"] = latencies([(one.last_s - one.first_s) / (tokens - 1) for one in times])
    return found


def _parts(times: Sequence[RequestTime]) -> dict[str, Any]:
    each = [asdict(one.parts) for one in times]
    mean = {name: sum(one[name] for one in each) / len(each) for name in each[0]}
    ordered = sorted(times, key=lambda one: one.latency_s)
    return {"mean_parts": mean, "p99_parts": asdict(at_share(ordered, 0.99).parts)}


def _links(
    topology: Topology, hosts: Sequence[Host], expected: Pairs, observed: Pairs, scale: Scale
) -> Iterator[LinkLoad]:
    """Return the load of all links that carried payload: NICs of hosts and nodes, and links between buildings."""
    rates: dict[Key, float] = {}
    link_names = _LinkNames(topology, hosts, rates)
    counts: list[defaultdict[Key, float]] = [defaultdict(float), defaultdict(float)]
    for count, pairs in zip(counts, (expected, observed), strict=True):
        for (source, target), size_bytes in pairs.items():
            if size_bytes and source != target:
                for key in link_names.of(source, target):
                    count[key] += size_bytes
    for key in sorted(counts[0].keys() | counts[1].keys()):
        planned, seen = (scale.real_bytes(count[key]) for count in counts)
        yield LinkLoad(f"{key[0]}, {key[1]}", scale.real_bps(rates[key]), planned, seen)


class _LinkNames:
    """The links between two ranks, by name; `rates` collects the emulated rate of each link named so far."""

    def __init__(self, topology: Topology, hosts: Sequence[Host], rates: dict[Key, float]) -> None:
        self.hosts, self.rates = hosts, rates
        self.node: dict[str, tuple[str, float]] = {}
        for building in topology.buildings:
            if not building.cards or building.clos is None:
                continue
            for number in range(len(building.leaves)):
                own = building.leaf_hosts(number)
                uplink = building.clos.leaf_uplink.rate_bps
                self.node |= {host.name: (own[0].name, uplink) for host in own}
        self.between: defaultdict[Key, float] = defaultdict(float)
        for link in topology.wan:
            self.between[link.a, link.b] += link.a_to_b.rate_bps
            self.between[link.b, link.a] += link.b_to_a.rate_bps

    def of(self, source: int, target: int) -> list[Key]:
        """Return the links between two ranks; only the NICs if there is no direct link between their buildings."""
        here, there = self.hosts[source], self.hosts[target]
        found = [
            self._add((here.name, "out"), here.nic.rate_bps),
            self._add((there.name, "in"), there.nic.rate_bps),
        ]
        nodes = [self.node.get(host.name) for host in (here, there)]
        if nodes[0] != nodes[1] or nodes[0] is None:
            for node, way in zip(nodes, ("out", "in"), strict=True):
                if node is not None:
                    found.append(self._add((f"network card of {node[0]}", way), node[1]))
        pair = here.building, there.building
        if pair in self.between:
            found.append(self._add((f"{pair[0]} to {pair[1]}", "WAN"), self.between[pair]))
        return found

    def _add(self, key: Key, rate_bps: float) -> Key:
        self.rates[key] = rate_bps
        return key


T = TypeVar("T")


@dataclass(frozen=True)
class Parts:
    """The parts of a request's time, in real seconds.

    Attributes:
        batching_s: Time until its batch was closed or retried.
        queue_s: Time spent waiting for busy accelerators.
        transfer_s: Time from when data was ready to be sent until it arrived, including waits for the same link.
        compute_s: Compute time.
    """

    batching_s: float = 0.0
    queue_s: float = 0.0
    transfer_s: float = 0.0
    compute_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The sum of all parts."""
        return self.batching_s + self.queue_s + self.transfer_s + self.compute_s


@dataclass(frozen=True)
class RequestTime:
    """A request's arrival, the first and last part of its answer, and the parts of its time, in real seconds."""

    arrival_s: float
    first_s: float
    last_s: float
    parts: Parts

    @property
    def latency_s(self) -> float:
        """Time from the request's arrival, whether or not a server was free."""
        return self.last_s - self.arrival_s


def request_times(serving: Serving, spans: Spans, scale: Scale) -> list[RequestTime]:
    """Return the times of all counted requests, in arrival order; `spans` are emulated, from the step's start."""
    walk = _Walk(serving.plan, spans)
    found = []
    for answer in serving.answers:
        first, last = answer.arrives[0], answer.arrives[-1]
        closed_s, queue_s, transfer_s, compute_s = walk.back_from(last)
        own = [scale.real_s(seconds) for seconds in (queue_s, transfer_s, compute_s)]
        for number in range(answer.batch.first, answer.batch.end):
            if number < serving.spec.not_counted:
                continue
            arrival_s = serving.arrivals_s[number]
            parts = Parts(max(0.0, scale.real_s(closed_s) - arrival_s), *own)
            first_s, last_s = (scale.real_s(spans[mark.rank][mark.number][1]) for mark in (first, last))
            found.append(RequestTime(arrival_s, first_s, last_s, parts))
    return found


def at_share(values: Sequence[T], share: float) -> T:
    """Return a quantile of sorted values by nearest rank; `share` is from 0 to 1."""
    # in floating point, 0.07 * 200 is slightly more than 14
    return values[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


class _Walk:
    """A walk from an answer back to its batch along the dependencies that ended last."""

    def __init__(self, plan: JobPlan, spans: Spans) -> None:
        self.plan, self.spans = plan, spans
        self.sends = {
            (rank, one.peer, one.tag): Mark(rank, number)
            for rank, own in enumerate(plan.ranks)
            for number, one in enumerate(own)
            if isinstance(one, Message) and one.sends
        }

    def _end_s(self, mark: Mark) -> float:
        return self.spans[mark.rank][mark.number][1]

    def _latest(self, mark: Mark) -> Mark:
        after = self.plan.ranks[mark.rank][mark.number].after
        return max((Mark(mark.rank, number) for number in after), key=self._end_s)

    def back_from(self, mark: Mark) -> tuple[float, float, float, float]:
        """Return when the batch was closed, and the queue, transfer and compute times since, in emulated seconds."""
        queue_s = transfer_s = compute_s = 0.0
        while True:
            operation = self.plan.ranks[mark.rank][mark.number]
            begin_s, end_s = self.spans[mark.rank][mark.number]
            if isinstance(operation, Computing):
                before = self._latest(mark)
                queue_s += begin_s - self._end_s(before)
                compute_s += end_s - begin_s
            elif isinstance(operation, Message):
                before = self._latest(self.sends[operation.peer, mark.rank, operation.tag])
                transfer_s += end_s - self._end_s(before)
            else:
                return end_s, queue_s, transfer_s, compute_s
            mark = before
