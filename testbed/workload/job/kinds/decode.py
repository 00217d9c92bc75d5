"""Decoding with experts: tokens travel to the ranks of their experts and back, layer by layer, token by token."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate

from testbed.spec.units import parse_size
from testbed.workload.job.kinds.base import WORKLOADS
from testbed.workload.job.training import JobRequest
from testbed.workload.layers import routing_weights
from testbed.workload.plan import COMPUTE, Computing, GroupCollective, JobPlan, Operation, Pause
from testbed.workload.plans.validation import PlanProblem

EAGER, PADDED, RESIDENT, GATHERED = METADATA = ("eager", "graph_padded", "resident", "gathered")
EXCHANGE, CACHED = HANDLES = ("exchange", "cached")
BATCH, TOKENS = 128, 1  # defaults: per rank, per sequence
METHOD_OPTIONS = ("batch", "tokens", "metadata", "handles", "chaining")
"""Options that select how much is decoded in a step, or how; the others describe the model."""
COUNT_BYTES = 8  # size of a row count, and of an expert's number
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
    """Plan decoding of `batch` sequences on each rank, with experts spread evenly over the ranks.

    Every token goes to some of the experts. Each layer consists of computation (attention), dispatch of rows to the
    experts' ranks, computation (experts), and combine, which returns the same number of rows. A rank receives a token
    once, however many of its experts the token uses, so one rank sends at most `batch` rows to another. The experts of
    a token are drawn at random from the seed, separately for each layer and token.

    Args:
        request: Request that the plan is for.
        batch: Sequences per rank; each has one token in flight.
        experts: Experts of each layer; a multiple of the ranks.
        experts_per_token: Distinct experts that a token uses.
        row: Bytes of a token on the wire.
        layers: Layers with experts.
        tokens: Tokens of each sequence, one after another.
        compute: Compute time of a layer, half before the dispatch and half before the combine.
        metadata: Location of row counts. eager: the host reads them before each dispatch
            (`software_cost.synchronisation`) and sends the actual rows. graph_padded: the host never knows them; a
            captured graph sends `batch` rows to every rank. resident: they stay on the device, and the actual rows are
            sent. gathered: the baseline; all ranks gather counts and expert numbers in two all-gathers, the host reads
            them, then an all-to-all sends the actual rows.
        handles: exchange: counts, and with protocol rendezvous buffers, are announced before the rows of each dispatch.
            cached: buffers are known and doubled, counts travel with the rows, and nothing else is sent; this needs
            metadata resident.
        chaining: Whether the buffers of one rank's experts are posted as one chain, at the cost of one message.
            Otherwise each further buffer delays the sender by `software_cost.per_message` before its rows leave.
        routing_skew: Standard deviation of an expert's share of tokens, relative to an even share; drawn once for each
            layer (log-normal); 0 for even shares.
    """
    _check(request.ranks, batch, experts, experts_per_token, metadata, handles)
    if not 0 <= routing_skew <= 10:
        raise PlanProblem(where="routing_skew", got=str(routing_skew), expected="0 to 10")
    maker = _DecodePlanner(request, batch, row, compute, metadata, handles, chaining)
    draw = random.Random(f"{request.seed}/decode")
    shares = [
        expert_shares(f"{request.seed}/decode/{layer}", experts, routing_skew) for layer in range(layers)
    ]
    for token in range(tokens):
        for layer in range(layers):
            rows, buffers = draw_routing(
                draw, request.ranks, batch, experts, experts_per_token, shares[layer]
            )
            maker.layer(f"token {token}, layer {layer}", rows, buffers, experts_per_token)
    group = ("all", tuple(range(request.ranks)))
    return JobPlan((tuple(maker.operations),) * request.ranks, (group,), seed=request.seed)


def expert_shares(seed: str, experts: int, skew: float) -> Sequence[float]:
    """Return the relative load of each expert of a layer; empty if all are equal."""
    return routing_weights(random.Random(seed), experts, skew) if skew else ()


def draw_routing(
    draw: random.Random,
    ranks: int,
    batch: int,
    experts: int,
    experts_per_token: int,
    shares: Sequence[float] = (),
) -> tuple[Rows, Rows]:
    """Draw the routing of a layer.

    Args:
        draw: Random generator.
        ranks: Number of ranks.
        batch: Tokens per rank.
        experts: Number of experts.
        experts_per_token: Distinct experts that a token uses.
        shares: Relative probability of each expert, drawn without replacement; empty for equal probabilities.

    Returns:
        Rows from each rank (rows) to each rank (columns), and the number of experts that those rows use there.
    """
    own, everyone, sums = experts // ranks, range(experts), list(accumulate(shares))

    def draw_experts() -> Collection[int]:
        if not sums:
            return draw.sample(everyone, experts_per_token)
        found: set[int] = set()
        while len(found) < experts_per_token:
            found.update(draw.choices(everyone, cum_weights=sums))
        return found

    found = [[0] * ranks for _ in range(ranks)]
    experts_by_source: list[set[int]] = [set() for _ in range(ranks)]
    for source in range(ranks):
        for _ in range(batch):
            chosen = draw_experts()
            experts_by_source[source].update(chosen)
            for target in {expert // own for expert in chosen}:
                found[source][target] += 1
    buffers = [
        [sum(expert // own == target for expert in chosen) for target in range(ranks)]
        for chosen in experts_by_source
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


class _DecodePlanner:
    """A planner of one rank's operations, which are the same on all ranks."""

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
        # the scale shrinks rows, but not their number
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
        # combine returns the rows of the dispatch, so the counts are known
        self._back = "padded" if metadata == PADDED else "told_counts"

    def layer(self, name: str, rows: Rows, buffers: Rows, experts_per_token: int) -> None:
        """Add one layer, for one token of each sequence."""
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
        """Add the time to post further buffers, for the rank with the most; all others wait for it anyway."""
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
