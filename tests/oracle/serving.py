"""Requests that were served: arrivals as the scenario draws them, answers as ranks recorded them, what that cost."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import yaml

from tests.oracle.arithmetic import nearest_rank
from tests.oracle.checks import Checks
from tests.oracle.flops import DATA
from tests.oracle.html_page import Page
from tests.oracle.page import Shown
from tests.oracle.quantities import quantity
from tests.oracle.raw import COMPUTING, LOADER, Record, Step, get
from tests.oracle.variant import MeasuredVariant

SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
CDF = (*(percent / 100 for percent in range(100)), 0.995, 0.999, 1.0)


@dataclass(frozen=True)
class Request:
    """When one arrived, and its answer's first and last part; real seconds from its step's start."""

    arrival_s: float
    closed_s: float
    first_s: float
    last_s: float

    @property
    def latency_s(self) -> float:
        return self.last_s - self.arrival_s


@dataclass(frozen=True)
class ServedStep:
    """Requests of one step that were answered and count; arrived: of all that came, lost: of those that count."""

    requests: tuple[Request, ...]
    arrived: int
    last_arrival_s: float
    lost: int
    sent_again: int
    lasted_s: float


def check_serving(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """Hold what `summary.json` says of requests, over all measured steps."""
    what = f"{own.name}: requests"
    steps = [_served(own, step, checks) for step in own.steps]
    requests = [one for step in steps for one in step.requests]
    lost, arrived = sum(step.lost for step in steps), sum(step.arrived for step in steps)
    checks.equal(f"{what}: count", shown["requests"], len(requests))
    checks.equal(f"{what}: lost", shown.get("lost", 0), lost)
    checks.equal(f"{what}: sent again", shown.get("sent_again", 0), sum(step.sent_again for step in steps))
    latencies = [one.latency_s for one in requests]
    _quantiles(f"{what}: latency", shown["latency"], latencies, checks)
    for share, said in zip(CDF, shown["cdf_s"], strict=True):
        checks.same(f"{what}: distribution", said, nearest_rank(latencies, share), 1e-6)
    objective_s = quantity(get(own.settings, "workload.inference.slo"))
    checks.same(f"{what}: objective", shown["objective_s"], objective_s)
    share = quantity(get(own.settings, "workload.inference.slo_share"))
    checks.same(f"{what}: objective's share", shown["objective_share"], share)
    within = sum(one <= objective_s for one in latencies) / (len(latencies) + lost)
    checks.same(f"{what}: within the objective", shown["within"], within)
    offered = arrived / sum(step.last_arrival_s for step in steps)
    checks.same(f"{what}: offered per second", shown["offered_per_s"], offered)
    answering_s = sum(max(one.last_s for one in step.requests) - step.requests[0].arrival_s for step in steps)
    checks.same(f"{what}: answered per second", shown["answered_per_s"], len(requests) / answering_s, 1e-6)
    _parts(what, shown, requests, checks)
    if (tokens := get(own.settings, "workload.inference.generation.output_tokens")) is not None:
        first = [one.first_s - one.arrival_s for one in requests]
        _quantiles(f"{what}: first token", shown["first_token"], first, checks)
        if tokens > 1:
            each = [(one.last_s - one.first_s) / (tokens - 1) for one in requests]
            _quantiles(f"{what}: per token", shown["per_token"], each, checks)
    _outages(own, shown, steps, checks)
    _capacity(own, shown, steps, checks)


def check_shown_serving(page: Page, printed: str, shown: Mapping[str, Record], checks: Checks) -> None:
    """Hold the page's table and what a terminal says of requests against the summary."""
    own, there, text = Shown(checks, "page"), Shown(checks, "terminal"), " ".join(printed.split())
    for table in page.named("Requests/s", "Capacity", "Limited by"):
        for row in table.records():
            name = row["Variant"][0]
            found, what = shown[name]["serving"], f"{name}: requests"
            own.count(f"{what} per second", row["Requests/s"][0], found["offered_per_s"])
            for column, figure in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999")):
                own.time(f"{what}: latency {figure}", row[column][0], found["latency"][figure])
            share, _, objective = row["Within objective"][0].removesuffix(", not met").partition(" in ")
            own.percent(f"{what}: within the objective", share, found["within"])
            own.time(f"{what}: objective", objective, found["objective_s"])
            own.count(f"{what}: capacity", row["Capacity"][0].removesuffix("/s"), found["capacity_per_s"])
            checks.equal(f"{what}: what limits (page)", row["Limited by"][0], found["limited_by"])
            own.digits(f"{what}: energy", row["Energy of a request"][0].removesuffix(" J"), found["energy_j"])
            own.digits(f"{what}: cost", row["Cost of a million"][0].removeprefix("$ "), found["cost_usd"])
    for name, entry in shown.items():
        if (found := entry.get("serving")) is None:
            continue
        what, time, start = f"{name}: requests", r"([\d.]+ \w+)", rf"(?<!\S){re.escape(name)}: "
        said = re.search(
            rf"{start}([\d.,]+) requests/s(?: arrive, ([\d.,]+) are answered)?, latency p50 {time}, p99 {time}, "
            rf"p99.9 {time}; ([\d.]+ %) within {time}",
            text,
        )
        full = re.search(
            rf"{start}the p99 request's time: [^;]+; (.+?) is full at ([\d.,]+) requests/s", text
        )
        if text and not text.startswith("{"):
            checks.true(f"{what} (terminal)", bool(said and full), "has no sentence that the oracle can read")
        if said and full:
            there.per_second(f"{what} per second", said[1], found["offered_per_s"])
            if said[2]:
                there.per_second(f"{what} answered per second", said[2], found["answered_per_s"])
            for place, figure in ((3, "p50"), (4, "p99"), (5, "p999")):
                there.time(f"{what}: latency {figure}", said[place], found["latency"][figure])
            there.percent(f"{what}: within the objective", said[6], found["within"])
            checks.equal(f"{what}: what limits (terminal)", full[1], found["limited_by"])
            there.per_second(f"{what}: capacity", full[2], found["capacity_per_s"])


def _quantiles(what: str, shown: Record, own: Sequence[float], checks: Checks) -> None:
    checks.same(f"{what} mean", shown["mean"], sum(own) / len(own), 1e-6)
    for figure, share in SHARES.items():
        checks.same(f"{what} {figure}", shown[figure], nearest_rank(own, share), 1e-6)


def _parts(what: str, shown: Record, requests: Sequence[Request], checks: Checks) -> None:
    """Parts of a request's time add up; until its batch went is told by the records."""
    mean, late = (sum(shown[part].values()) for part in ("mean_parts", "p99_parts"))
    checks.same(f"{what}: sum of mean parts", mean, shown["latency"]["mean"], 1e-6)
    checks.same(f"{what}: sum of a late one's parts", late, shown["latency"]["p99"], 1e-6)
    if not shown.get("sent_again", 0):
        waited = sum(max(0.0, one.closed_s - one.arrival_s) for one in requests) / len(requests)
        checks.near(f"{what}: batching", shown["mean_parts"]["batching_s"], waited, 1e-8)


def _served(own: MeasuredVariant, step: Step, checks: Checks) -> ServedStep:
    spec, what = own.settings["workload"]["inference"], f"{own.name}: requests"
    arrivals = _arrivals(own, spec, step)
    batches = _batches(arrivals, int(spec["batching"]["size"]), quantity(spec["batching"]["wait"]))
    decided = spec.get("retry") is not None or spec["dispatch"] != "turns"
    closed = _named(step, "closed" if decided else "batch", "pause", stream="arrivals")
    went = _named(step, "batch", "pause") if decided else closed
    words = ("token",) if "generation" in spec else ("answer", "scores")
    answers = [_named(step, word, "recv") for word in words]
    within_s = 1e-8 if own.run.manifest["clock"]["kind"] == "virtual" else 1e-3

    def time_s(entry: Record) -> float:
        return own.run.seconds(entry["end_s"] - step.start_s)

    closed_s = [time_s(closed[number][0]) for number in range(len(batches))]
    retry_s = quantity(get(spec, "retry.after", 0.0))
    sendings = _sendings(
        {number: time_s(one) for number, (one,) in went.items()}, closed_s, retry_s, within_s
    )
    size, wait_s = int(spec["batching"]["size"]), quantity(spec["batching"]["wait"])
    found: list[Request] = []
    lost = again = 0
    for number, members in enumerate(batches):
        full = len(members) == size
        asked_s = arrivals[members[-1]] if full else arrivals[members[0]] + wait_s
        checks.near(f"{what}: a batch goes", closed_s[number], asked_s, within_s)
        counted = [one for one in members if one >= spec["not_counted"]]
        again += len(members) if len(sendings[number]) > 1 else 0
        here = closed[number][0]["rank"]
        tries = [
            [time_s(entry) for named in answers for entry in named[sending] if entry["rank"] == here]
            for sending in sendings[number]
        ]
        parts = max(map(len, tries))
        if not parts:
            lost += len(counted)
            continue
        # of what was sent more than once the first whole answer counts
        first = min((times for times in tries if len(times) == parts), key=max)
        found += [Request(arrivals[one], closed_s[number], min(first), max(first)) for one in counted]
    lasted_s = own.run.seconds(step.operations_s)
    return ServedStep(tuple(found), len(arrivals), arrivals[-1], lost, again, lasted_s)


def _sendings(
    went_s: Mapping[int, float], closed_s: Sequence[float], retry_s: float, within_s: float
) -> list[list[int]]:
    """By batch the numbers under which it went: as it was closed, and again when no answer had come for so long."""
    found: list[list[int]] = [[] for _ in closed_s]
    last_s = [float("-inf")] * len(closed_s)
    fresh = 0
    for number in sorted(went_s):
        if fresh < len(closed_s) and abs(went_s[number] - closed_s[fresh]) <= within_s:
            batch, fresh = fresh, fresh + 1
        else:
            batch = min(range(len(closed_s)), key=lambda one: abs(last_s[one] + retry_s - went_s[number]))
        found[batch].append(number)
        last_s[batch] = went_s[number]
    return found


def _named(step: Step, word: str, operation: str, stream: str | None = None) -> Mapping[int, list[Record]]:
    """Operations such as "answer 12", by their number."""
    found: dict[int, list[Record]] = defaultdict(list)
    for entry in step.operations:
        match = re.fullmatch(rf"{word} (\d+)", entry["name"])
        if match and entry["operation"] == operation and stream in (None, entry.get("stream")):
            found[int(match[1])].append(entry)
    return found


def _arrivals(own: MeasuredVariant, spec: Record, step: Step) -> list[float]:
    """By the scenario: drawn by the seed of the network that the step was measured in."""
    kind, count, rate = spec["arrivals"], int(spec["requests"]), float(spec["rate"])
    if kind == "trace":
        return [float(line) for line in Path(spec["trace"]).read_text().split()][:count]
    if kind == "even":
        return [(number + 1) / rate for number in range(count)]
    burst = int(spec["burst"]) if kind == "bursts" else 1
    draw, now_s = Random(f"{own.seed(step)}/arrivals"), 0.0
    found: list[float] = []
    while len(found) < count:
        now_s += draw.expovariate(rate / burst)
        found += [now_s] * burst
    return found[:count]


def _batches(arrivals: Sequence[float], size: int, wait_s: float) -> list[list[int]]:
    """A batch takes what comes until it is full, or until so long after its first."""
    found: list[list[int]] = []
    for number, arrival_s in enumerate(arrivals):
        if found and len(found[-1]) < size and arrival_s <= arrivals[found[-1][0]] + wait_s:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _outages(own: MeasuredVariant, shown: Record, steps: Sequence[ServedStep], checks: Checks) -> None:
    """Latencies around a node's silence, by when requests arrived."""
    if not shown.get("outages", ()) or len(steps) > 1:
        return
    after_s = quantity(get(own.settings, "workload.inference.retry.after", 0.0))
    for outage in shown.get("outages", ()):
        noticed_s = outage["noticed_s"]
        edges = (float("-inf"), noticed_s - after_s, noticed_s, float("inf"))
        for word, (start_s, end_s) in zip(("before", "during", "after"), pairwise(edges), strict=True):
            latencies = [one.latency_s for one in steps[0].requests if start_s <= one.arrival_s < end_s]
            what = f"{own.name}: requests {word} {outage['name']}"
            checks.equal(f"{what}: whether there are any", outage[word] is not None, bool(latencies))
            if latencies and outage[word] is not None:
                _quantiles(f"{what}: latency", outage[word], latencies, checks)


def _capacity(own: MeasuredVariant, shown: Record, steps: Sequence[ServedStep], checks: Checks) -> None:
    """What has most to do for all requests, and what all cards take meanwhile."""
    what, arrived = f"{own.name}: requests", sum(step.arrived for step in steps)
    lasted_s = sum(step.lasted_s for step in steps)
    busy_s: dict[str, float] = defaultdict(float)
    for entry in (
        entry for step in own.steps for entry in step.operations if entry["operation"] in COMPUTING
    ):
        busy_s[f"card {own.hosts[entry['rank']]}"] += own.run.seconds(entry["end_s"] - entry["start_s"])
    checks.same(f"{what}: busiest card", shown["busiest_card"], max(busy_s.values()) / lasted_s, 1e-6)
    carried = _carried(own)
    for link in shown["links"]:
        name, (rate, size) = link["name"], carried[link["name"]]
        checks.same(f"{what}: rate of {name}", link["rate_bps"], rate, 1e-6)
        checks.near(f"{what}: bytes of {name}", link["bytes_observed"], size / len(steps), 1.0)
        checks.same(f"{what}: use of {name}", link["utilisation"], 8 * size / rate / lasted_s, 1e-6)
        busy_s[name] = len(steps) * link["bytes_expected"] * 8 / rate
    if not shown.get("sent_again", 0) and not shown.get("lost", 0):
        for link in shown["links"]:
            checks.near(
                f"{what}: bytes expected of {link['name']}",
                link["bytes_expected"],
                link["bytes_observed"],
                1.0,
            )
    checks.equal(f"{what}: links", {link["name"] for link in shown["links"]}, set(carried))
    most = max(busy_s.values())
    checks.same(f"{what}: capacity", shown["capacity_per_s"], arrived / most, 1e-6)
    checks.near(f"{what}: what limits", busy_s[shown["limited_by"]], most, 1e-6 * most)
    spec = own.settings["workload"]["inference"]
    card = yaml.load((DATA / "accelerators.yaml").read_text(), Loader=LOADER)[spec["accelerator"]]
    seconds = sum(cards for _, cards in _nodes(own, spec)) * lasted_s / (arrived - shown.get("lost", 0))
    checks.same(f"{what}: energy", shown["energy_j"], card["power"] * seconds, 1e-6)
    checks.same(f"{what}: cost of a million", shown["cost_usd"], 1e6 * card["hourly"] * seconds / 3600, 1e-6)


def _nodes(own: MeasuredVariant, spec: Record) -> Iterator[tuple[str, int]]:
    """Hosts of the nodes that take part, and how many cards each has."""
    generation = spec.get("generation") or {}
    named = {*(generation.get("decode") or ()), *(generation.get("experts") or ())}
    if spec.get("serve") is not None:
        named |= set(spec["serve"])
    else:
        named = set()  # all
    for host, (count, _) in _places(own).items():
        if not named or host in named:
            yield host, count


def _places(own: MeasuredVariant) -> Mapping[str, tuple[int, tuple[str, ...]]]:
    """By each node's host how many cards it has, and the names of all of its hosts."""
    found = {}
    for building, settings in own.settings["topology"]["buildings"].items():
        if nodes := settings.get("nodes"):
            cards = int(nodes["cards"])
            for number in range(int(nodes["count"])):
                names = [f"{building}{number * (cards + 1) + place + 1}" for place in range(cards + 1)]
                found[names[0]] = cards, tuple(names)
    return found


def _carried(own: MeasuredVariant) -> Mapping[str, tuple[float, float]]:
    """Of all that payload went over in all steps: its rate and bytes, of the modelled network."""
    node_of = {name: host for host, (_, names) in _places(own).items() for name in names}
    rates: dict[str, float] = {}
    sizes: dict[str, float] = defaultdict(float)

    def add(name: str, rate: float, size: float) -> None:
        rates[name] = rate
        sizes[name] += size

    for step in own.steps:
        for (here, there), count in step.sent.items():
            if not count:
                continue
            ends, buildings = (own.hosts[here], own.hosts[there]), (own.buildings[here], own.buildings[there])
            size = own.run.bytes(count)
            for name, building, way in zip(ends, buildings, ("out", "in"), strict=True):
                settings = own.settings["topology"]["buildings"][building]
                nodes = settings.get("nodes")
                if nodes is None:
                    add(f"{name}, {way}", quantity(settings["nic"]["rate"]), size)
                    continue
                lanes = nodes["host_lanes"] if node_of[name] == name else nodes["lanes"]
                add(f"{name}, {way}", lanes * quantity(nodes["lane_rate"]), size)
                if node_of.get(ends[0]) != node_of.get(ends[1]):
                    add(f"network card of {node_of[name]}, {way}", quantity(nodes["network"]), size)
            pair = [
                rate
                for (a, b, _, way), rate in own.rates.items()
                if buildings == ((a, b) if way == "a_to_b" else (b, a))
            ]
            if pair:
                add(f"{buildings[0]} to {buildings[1]}, WAN", sum(pair), size)
    return {name: (rates[name], sizes[name]) for name in rates}
