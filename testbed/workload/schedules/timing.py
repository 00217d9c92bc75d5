"""When every action of given orders begins, on links that carry one message after the other."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.workload.schedules.actions import FORWARD, FULL, INPUT, WEIGHT, Action, Kind, Order, next_stage
from testbed.workload.schedules.base import Costs


@dataclass(frozen=True)
class Timed:
    """Orders carried out: when each action begins and the last one ends, in seconds."""

    starts_s: Mapping[Action, float]
    step_s: float


def follower(action: Action, stages: int) -> tuple[int, Kind] | None:
    """Which stage goes on with what an action gives, and with what; None where nobody does."""
    stage = next_stage(action, stages)
    if stage is not None:
        return stage, FORWARD if action.kind is FORWARD else INPUT
    return (action.stage, INPUT) if action.kind is FORWARD else None


def carried_out(owners: Sequence[int], orders: Sequence[Order], costs: Costs) -> Timed | None:
    """Every rank does its actions in their order, each as soon as its input is there; None where that never ends.

    A hop carries messages in the order in which they are ready, one at a time for `busy_s`, each way by itself; the
    latency comes on top. owners: the rank of every stage; whose neighbours must be neighbours in the pipeline, too.
    """
    there: dict[tuple[int, Kind, int], float] = {
        (0, FORWARD, action.microbatch): 0.0 for order in orders for action in order
    }
    link_free_s: dict[tuple[int, int], float] = {}
    free_s, done = [0.0] * len(orders), [0] * len(orders)
    starts_s: dict[Action, float] = {}
    ends: list[tuple[float, int, Action]] = []

    def begin(rank: int) -> None:
        """Its next action, where nothing is missing for that."""
        if done[rank] == len(orders[rank]):
            return
        action = orders[rank][done[rank]]
        start_s = free_s[rank]
        if action.kind is not WEIGHT:
            kind = INPUT if action.kind is FULL else action.kind
            since_s = there.get((action.stage, kind, action.microbatch))
            if since_s is None:
                return
            start_s = max(start_s, since_s)
        if action not in starts_s:
            starts_s[action] = start_s
            heapq.heappush(ends, (start_s + costs.of(action), rank, action))

    for rank in range(len(orders)):
        begin(rank)
    while ends:  # in the order in which results are there, which is that of messages on a link
        end_s, rank, action = heapq.heappop(ends)
        free_s[rank] = end_s
        done[rank] += 1
        after = follower(action, len(owners))
        if after is not None:
            stage, kind = after
            hop = owners[stage]
            if hop != rank:
                latency_s, busy_s = costs.hop(rank, hop)
                end_s = max(end_s, link_free_s.get((rank, hop), 0.0)) + busy_s
                link_free_s[rank, hop] = end_s
                end_s += latency_s
            there[stage, kind, action.microbatch] = end_s
            if hop != rank:
                begin(hop)
        begin(rank)
    if any(count < len(order) for count, order in zip(done, orders, strict=True)):
        return None
    return Timed(starts_s, max(free_s))


def most_alive(orders: Sequence[Order]) -> float:
    """Activations of stages that a rank has alive at the most: from forward to the end of its last backward."""
    most = 0.0
    for order in orders:
        alive = 0.0
        for action in order:
            if action.kind is FORWARD:
                alive += 1
                most = max(most, alive)
            elif action.kind is not INPUT:
                alive -= 1 / action.parts
    return most
