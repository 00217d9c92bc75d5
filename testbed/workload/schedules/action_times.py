"""Start times of all actions of given orders, on links that carry one message at a time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from testbed.workload.schedules.actions import FORWARD, INPUT, WEIGHT, Action, Kind, Order, next_stage
from testbed.workload.schedules.base import Costs


@dataclass(frozen=True)
class TimedOrders:
    """Timed orders, in seconds.

    Attributes:
        orders: Every rank's order.
        begins_s: Start of each rank's actions, in order.
        step_s: End of the last action.
    """

    orders: Sequence[Order]
    begins_s: Sequence[Sequence[float]]
    step_s: float

    @cached_property
    def starts_s(self) -> Mapping[Action, float]:
        """The start of each action."""
        return {
            action: start_s
            for order, begins_s in zip(self.orders, self.begins_s, strict=True)
            for action, start_s in zip(order, begins_s, strict=True)
        }


def successor(action: Action, stages: int) -> tuple[int, Kind] | None:
    """Return the stage and kind that use an action's result; None for no action."""
    stage = next_stage(action, stages)
    if stage is not None:
        return stage, FORWARD if action.kind is FORWARD else INPUT
    return (action.stage, INPUT) if action.kind is FORWARD else None


def time_orders(owners: Sequence[int], orders: Sequence[Order], costs: Costs) -> TimedOrders | None:
    """Run every rank's actions in order, each as soon as its input is present; return None if the orders deadlock.

    A hop carries messages in the order in which they are ready, one at a time for `busy_s`, with each direction
    separate; the latency is added. `owners` has the rank of every stage; adjacent stages must be on adjacent ranks of
    the pipeline.
    """
    # by stage and microbatch: when the input of forward, and of backward, is present
    forward: list[dict[int, float]] = [{} for _ in owners]
    back: list[dict[int, float]] = [{} for _ in owners]
    forward[0] = {action.microbatch: 0.0 for order in orders for action in order}
    link_free_s: dict[tuple[int, int], float] = {}
    free_s, done = [0.0] * len(orders), [0] * len(orders)
    begins_s: list[list[float]] = [[] for _ in orders]
    ends: list[tuple[float, int, Action]] = []
    took_s = {
        (stage, kind): costs.of(Action(stage, kind, 0)) for stage in range(len(owners)) for kind in Kind
    }

    def begin(rank: int) -> None:
        """Start a rank's next action, if its input is present and it has not started."""
        number = done[rank]
        if number == len(orders[rank]) or number < len(begins_s[rank]):
            return
        action = orders[rank][number]
        start_s = free_s[rank]
        if action.kind is not WEIGHT:
            inputs = forward if action.kind is FORWARD else back
            since_s = inputs[action.stage].get(action.microbatch)
            if since_s is None:
                return
            start_s = max(start_s, since_s)
        begins_s[rank].append(start_s)
        heapq.heappush(ends, (start_s + took_s[action.stage, action.kind] / action.parts, rank, action))

    for rank in range(len(orders)):
        begin(rank)
    while ends:  # in the order in which results are ready, which is also the order of messages on a link
        end_s, rank, action = heapq.heappop(ends)
        free_s[rank] = end_s
        done[rank] += 1
        after = successor(action, len(owners))
        if after is not None:
            stage, kind = after
            hop = owners[stage]
            if hop != rank:
                latency_s, busy_s = costs.hop(rank, hop)
                end_s = max(end_s, link_free_s.get((rank, hop), 0.0)) + busy_s
                link_free_s[rank, hop] = end_s
                end_s += latency_s
            (forward if kind is FORWARD else back)[stage][action.microbatch] = end_s
            if hop != rank:
                begin(hop)
        begin(rank)
    if any(count < len(order) for count, order in zip(done, orders, strict=True)):
        return None
    return TimedOrders(orders, begins_s, max(free_s))


def peak_activations(orders: Sequence[Order]) -> float:
    """Return the largest number of stage activations that a rank keeps.

    An activation is kept from the forward action to the end of its last backward action.
    """
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
