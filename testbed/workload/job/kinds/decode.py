"""Decoding with experts: tokens go to the ranks of their experts and come back, layer by layer, token by token."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate

from testbed.spec.units import parse_size
from testbed.workload.job.kinds.base import WORKLOADS, JobRequest
from testbed.workload.layers import routing_weights
from testbed.workload.plan import COMPUTE, Computing, GroupCollective, JobPlan, Operation, Pause
from testbed.workload.plans.validation import PlanProblem

EAGER, PADDED, RESIDENT, GATHERED = METADATA = ("eager", "graph_padded", "resident", "gathered")
EXCHANGE, CACHED = HANDLES = ("exchange", "cached")
BATCH, TOKENS = 128, 1  # of a rank, of a sequence, where options say nothing
OF_METHOD = ("batch", "tokens", "metadata", "handles", "chaining")
"""Options that say how much is decoded in a step, or how; all others say what."""
COUNT_BYTES = 8  # of a count, and of an expert's number beside a token
Rows = tuple[tuple[int, ...], ...]


@WORKLOADS.register("decode")
def decode(
    request: JobRequest,
    batch: int = BATCH,
    experts: int = 128,
    experts_per_token: int = 1,
    row: float | str = "14 KiB",
    layers: int = 1,
    tokens: int = TOKENS,
    compute: float | str = "20 us",
    metadata: str = RESIDENT,
    handles: str = EXCHANGE,
    chaining: bool = True,
    routing_skew: float = 0.0,
) -> JobPlan:
    """Each rank decodes `batch` sequences; experts are spread evenly over the ranks, every token goes to some of them.

    In each layer computing (attention), dispatch of rows to the experts' ranks, computing (experts), and combine, which
    brings as many rows back. A rank has a token once, however many of its experts are there: at most `batch` rows go
    from one rank to another. Which experts a token goes to is drawn by the seed, another for each layer and token.

    Args:
        request: What the plan is for.
        batch: Sequences on each rank, of which each has a token under way.
        experts: Of each layer; a multiple of the ranks.
        experts_per_token: Different ones that work on a token.
        row: Bytes of a token that travel.
        layers: With experts.
        tokens: Of each sequence, one after the other.
        compute: Of a layer, half before the dispatch and half before the combine.
        metadata: Where counts of rows are. eager: the host reads them before each dispatch
            (`software_cost.synchronisation`) and sends the rows that there are. graph_padded: it never knows them, a
            captured graph sends `batch` rows to everybody. resident: they stay on the device, and the rows that there
            are travel. gathered: what all of these are held against; counts and experts' numbers are gathered by all
            ranks in two all-gathers, the host reads them, then an all-to-all of the rows that there are.
        handles: exchange: counts, and by protocol rendezvous buffers, are told before the rows of each dispatch.
            cached: buffers are known and doubled, counts come with the rows: nothing else travels. With metadata
            resident.
        chaining: Whether the buffers of one rank's experts are posted as one chain, at the cost of one message. Else
            each further one takes `software_cost.per_message` more of the sender, before the rows of it leave.
        routing_skew: How unevenly tokens go to experts: standard deviation of an expert's share, as a share of the
            even part, drawn once for each layer (log-normal); 0 for all alike.
    """
    _check(request.ranks, batch, experts, experts_per_token, metadata, handles)
    if not 0 <= routing_skew <= 10:
        raise PlanProblem(where="routing_skew", got=str(routing_skew), expected="0 to 10")
    maker = _Maker(request, batch, row, compute, metadata, handles, chaining)
    draw = random.Random(f"{request.seed}/decode")
    shares = [shares_of(f"{request.seed}/decode/{layer}", experts, routing_skew) for layer in range(layers)]
    for token in range(tokens):
        for layer in range(layers):
            rows, buffers = routed(draw, request.ranks, batch, experts, experts_per_token, shares[layer])
            maker.layer(f"token {token}, layer {layer}", rows, buffers, experts_per_token)
    group = ("all", tuple(range(request.ranks)))
    return JobPlan((tuple(maker.operations),) * request.ranks, (group,), seed=request.seed)


def shares_of(seed: str, experts: int, skew: float) -> Sequence[float]:
    """What part of a layer's tokens each expert gets, relative to the others; nothing where all get as many."""
    return routing_weights(random.Random(seed), experts, skew) if skew else ()


def routed(
    draw: random.Random,
    ranks: int,
    batch: int,
    experts: int,
    experts_per_token: int,
    shares: Sequence[float] = (),
) -> tuple[Rows, Rows]:
    """How many rows each rank, in rows, has for each: tokens with an expert there; and for how many experts.

    shares: how likely each expert is beside the others, one after the other without those that a token has; all alike
    where none are given.
    """
    own, everyone, sums = experts // ranks, range(experts), list(accumulate(shares))

    def chosen_ones() -> Collection[int]:
        if not sums:
            return draw.sample(everyone, experts_per_token)
        found: set[int] = set()
        while len(found) < experts_per_token:
            found.update(draw.choices(everyone, cum_weights=sums))
        return found

    found = [[0] * ranks for _ in range(ranks)]
    asked: list[set[int]] = [set() for _ in range(ranks)]
    for source in range(ranks):
        for _ in range(batch):
            chosen = chosen_ones()
            asked[source].update(chosen)
            for target in {expert // own for expert in chosen}:
                found[source][target] += 1
    buffers = [
        [sum(expert // own == target for expert in experts_of) for target in range(ranks)]
        for experts_of in asked
    ]
    return tuple(map(tuple, found)), tuple(map(tuple, buffers))


def _check(ranks: int, batch: int, experts: int, experts_per_token: int, metadata: str, handles: str) -> None:
    if ranks < 2 or experts < 1 or experts % ranks:
        raise PlanProblem(where="experts", got=str(experts), expected=f"a multiple of the {ranks} ranks")
    if not 1 <= experts_per_token <= experts:
        raise PlanProblem(where="experts_per_token", got=str(experts_per_token), expected=f"1 to {experts}")
    if batch < 1:
        raise PlanProblem(where="batch", got=str(batch), expected="at least 1")
    for where, value, known in (("metadata", metadata, METADATA), ("handles", handles, HANDLES)):
        if value not in known:
            raise PlanProblem(where=where, got=str(value), expected=f"one of: {', '.join(known)}")
    if handles == CACHED and metadata != RESIDENT:
        raise PlanProblem(
            where="handles", got=f"cached with metadata {metadata}", expected="it with resident"
        )


class _Maker:
    """One rank's operations, which are alike on all."""

    def __init__(
        self,
        request: JobRequest,
        batch: int,
        row: float | str,
        compute: float | str,
        metadata: str,
        handles: str,
        chaining: bool,
    ) -> None:
        self.operations: list[Operation] = []
        self._request, self._batch = request, batch
        row_bytes = parse_size(row) if isinstance(row, str) else row
        # rows shrink with the scale and their number stays
        self._row = max(1, round(request.scale.emulated_bytes(row_bytes) / request.itemsize))
        self._half_s = request.seconds(compute) / 2
        read_s = request.scenario.transport.software_cost.synchronisation_s
        self._read_s = request.scale.emulated_s(read_s) if metadata in (EAGER, GATHERED) else 0.0
        self._gathered = metadata == GATHERED
        post_s = request.scenario.transport.software_cost.per_message_s
        self._post_s = 0.0 if chaining else request.scale.emulated_s(post_s)
        algorithms = {PADDED: "padded", GATHERED: "told_counts"}
        counted = "told_counts" if handles == CACHED else "late_counts_at_once"
        self._algorithm = algorithms.get(metadata, counted)
        # rows come back to where they came from: how many has been told
        self._back = "padded" if metadata == PADDED else "told_counts"

    def layer(self, name: str, rows: Rows, buffers: Rows, experts_per_token: int) -> None:
        """All of one layer, for one token of each sequence."""
        self._compute(f"attention of {name}")
        if self._gathered:
            ranks = len(rows)
            self._gather(f"counts of {name}", ranks * COUNT_BYTES)
            self._gather(f"experts of {name}", self._batch * experts_per_token * COUNT_BYTES)
        if self._read_s:
            self._add(Pause(f"counts read of {name}", COMPUTE, "synchronisation", (), self._read_s))
        self._post(f"buffers posted of {name}", buffers)
        self._exchange(f"dispatch of {name}", "dispatch", self._algorithm, rows)
        self._compute(f"experts of {name}")
        back = tuple(zip(*rows, strict=True))
        self._post(f"buffers posted back of {name}", tuple(zip(*buffers, strict=True)))
        self._exchange(f"combine of {name}", "combine", self._back, back)

    def _post(self, name: str, buffers: Sequence[Sequence[int]]) -> None:
        """What the rank with the most of them posts beyond one for each other rank; all wait for it anyway."""
        further = max(
            sum(max(0, count - 1) for target, count in enumerate(own) if target != source)
            for source, own in enumerate(buffers)
        )
        if self._post_s and further:
            self._add(Pause(name, COMPUTE, "posting", (), further * self._post_s))

    def _compute(self, name: str) -> None:
        self._add(Computing(name, COMPUTE, "compute", (), self._half_s))

    def _gather(self, name: str, own_bytes: float) -> None:
        ranks = self._request.ranks
        numel = self._request.elements(own_bytes * ranks, ranks)
        self._add(GroupCollective(name, COMPUTE, "metadata", (), 0, "all_gather", numel, "auto"))

    def _exchange(self, name: str, kind: str, algorithm: str, rows: Sequence[Sequence[int]]) -> None:
        table = tuple(tuple(count * self._row for count in own) for own in rows)
        numel = self._batch * self._row * len(rows)
        made = GroupCollective(name, COMPUTE, kind, (), 0, "all_to_all_v", numel, algorithm, table=table)
        self._add(made)

    def _add(self, operation: Operation) -> None:
        before = (len(self.operations) - 1,) if self.operations else ()
        self.operations.append(replace(operation, after=before))
