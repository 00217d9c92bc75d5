"""One simulation of a job's plan on a fluid network: the start and end of each operation, or why the plan deadlocks.

Operations start by the same rule as on real ranks (`dependency_tracker`), and collectives send the same messages.
Compute takes exactly its duration. A message takes its time in the fluid model, plus `message_s` at each end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from statistics import mean
from typing import cast

from testbed.comm.collectives.registry import rows_algorithm_of
from testbed.comm.transport import Software
from testbed.gc_control import clear_references
from testbed.net.paths.network import LossDelay, Members, Network
from testbed.prediction.channels import Warmup
from testbed.prediction.collective_flow import (
    FlowBuilder,
    Isolated,
    isolated_key,
    isolated_plan,
    isolated_software,
)
from testbed.prediction.collective_messages import Call, CollectiveDriver, Events, SizedStage, list_messages
from testbed.prediction.connections import NO_STATE, ConnectionState
from testbed.prediction.events import RankCompute
from testbed.prediction.protocols import MEAN, Key
from testbed.prediction.timeline import Deadlock, Timeline
from testbed.workload.dependency_tracker import DependencyTracker, dependency_orders
from testbed.workload.dispatch import Dispatching, ExecutedPlan, GrowingPlan, Sending
from testbed.workload.plan import Block, Computing, GroupCollective, JobPlan, Message, Operation, Pause

MAX_WARMUP_STEPS = 8  # maximum number of simulated warm-up steps
SAME = 1e-6  # relative difference below which two consecutive steps count as converged
SETTLED = 1e-3  # the same for steps that differ only because windows are still growing
PACED = 4  # number of isolated runs of a collective whose connections are paced


class PlanSimulation(CollectiveDriver):
    """A single use of the network by a plan; `restart` creates the next one on the same connections."""

    def __init__(
        self,
        plan: JobPlan,
        network: Network,
        itemsize: int,
        software: Software,
        folded: bool,
        lateness: LossDelay = MEAN,
        dispatching: Dispatching | None = None,
        state: ConnectionState = NO_STATE,
    ) -> None:
        super().__init__(network, len(plan.ranks), software, lateness, state)
        self.plan, self.itemsize = plan, itemsize
        self.trackers = (
            list(map(DependencyTracker, plan.ranks, dependency_orders(plan)))
            if dispatching is None
            else [DependencyTracker(list(operations)) for operations in plan.ranks]
        )
        self.serving = None if dispatching is None else RequestDispatcher(self, dispatching)
        self.started = [[0.0] * len(operations) for operations in plan.ranks]
        self.ended = [[0.0] * len(operations) for operations in plan.ranks]
        self.computing = [RankCompute(self, software.computing_share) for _ in plan.ranks]
        # whether an operation has no cost besides its compute or its messages
        self.at_once = not (software.launch_s or software.completion_s or software.computing_share)
        self.sequence: dict[tuple[int, int], int] = {}
        self.folder = FlowBuilder(network, itemsize, self._isolated_cost) if folded else None
        self.gathered: dict[Key, list[Callable[[], None]]] = {}
        self.sized: dict[object, tuple[tuple[SizedStage, ...], ...]] = {}  # per member of a collective
        self.isolated_draws = 0  # loss draws per folded collective
        self.isolated: dict[Hashable, Isolated] = {}
        self.simulations: list[PlanSimulation] = [self]  # all simulations of this plan

    def restart(self, lateness: LossDelay, state: ConnectionState | None = None) -> PlanSimulation:
        """Return a new simulation of the same plan that shares the folded collectives.

        `state` is the connection state to start with; None for the current state of this simulation's connections.
        """
        serving = None if self.serving is None else self.serving.dispatching
        state = self.state if state is None else state
        other = PlanSimulation(
            self.plan, self.network, self.itemsize, self.software, False, lateness, serving, state
        )
        other.folder, other.sized, other.simulations = self.folder, self.sized, self.simulations
        self.simulations.append(other)
        return other

    def run_settled(self, lateness: LossDelay, before: Warmup) -> Timeline:
        """Return the median step after the warm-up, once windows have grown or losses have settled."""
        step = self._warmed_up(lateness, before)
        steps = [step.run()]
        limit = 1 if lateness.draw else before.most_steps
        while len(steps) < limit and (step.differs or len(steps) < before.trials):
            step = step.restart(MEAN)
            steps.append(step.run())
            same = SAME if step.differs else SETTLED
            if math.isclose(steps[-2].step_time_s, steps[-1].step_time_s, rel_tol=same):
                break
        return sorted(steps, key=lambda timeline: timeline.step_time_s)[(len(steps) - 1) // 2]

    def consecutive_times(self, lateness: LossDelay, before: Warmup, count: int) -> Iterator[float]:
        """Yield the durations in seconds of consecutive steps on the same connections, after the warm-up."""
        step = self._warmed_up(lateness, before)
        for _ in range(count):
            took_s = step.run().step_time_s
            yield took_s
            step.connections.shift(took_s)
            step = step.restart(lateness)

    def _warmed_up(self, lateness: LossDelay, before: Warmup) -> PlanSimulation:
        """Return the simulation of the first step after the warm-up."""
        step = self.restart(lateness, NO_STATE._replace(fluid=self.state.fluid))
        if self.network.simulates_window or self.network.first_pace or self.network.packets:
            for _ in range(before.times):
                step.connections.open(len(self.plan.ranks), before)
                step.run_until_idle()
            if step.now_s:
                step = step.restart(lateness)
            for _ in range(min(before.steps, MAX_WARMUP_STEPS)):
                step.connections.shift(step.run().step_time_s)
                step = step.restart(lateness)
        return step

    @property
    def differs(self) -> bool:
        """Whether consecutive steps can differ because rates or round trips are probed, or losses drive the windows."""
        return self.network.paces_by_measured_rates or self.connections.overflowed

    def run(self) -> Timeline:
        """Run the step to its end; raise Deadlock if it cannot complete."""
        for rank in range(len(self.plan.ranks)):
            self._start_ready(rank)
        self.run_until_idle()
        if any(tracker.open for tracker in self.trackers):
            raise Deadlock(self._describe_waits())
        spans = tuple(tuple(zip(*own, strict=True)) for own in zip(self.started, self.ended, strict=True))
        timeline = Timeline(spans, None if self.serving is None else self.serving.carried())
        # like `clear_references`, for the large containers
        self.trackers, self.started, self.ended = [], [], []
        self.gathered.clear()
        self.mailboxes.clear()
        return timeline

    def _describe_waits(self) -> str:
        waits = []
        for rank, tracker in enumerate(self.trackers):
            if tracker.open:
                names = [tracker.plan[index].name for index in tracker.unfinished()]
                waits.append(f"rank {rank} in {', '.join(names[:3])}")
        return f"never completes: {'; '.join(waits[:8])}"

    # ---- operations

    def extend(self, rank: int, operations: Sequence[Operation]) -> None:
        """Append operations to a rank's plan."""
        self.trackers[rank].extend(operations)
        self.started[rank] += [0.0] * len(operations)
        self.ended[rank] += [0.0] * len(operations)
        self._start_ready(rank)

    def _start_ready(self, rank: int) -> None:
        tracker, started = self.trackers[rank], self.started[rank]
        while tracker.ready:
            index = tracker.ready.pop(0)
            started[index] = self.now_s
            self._start(rank, index, tracker.plan[index])

    def _start(self, rank: int, index: int, operation: Operation) -> None:
        on_done = partial(self._finish, rank, index)
        if self.at_once and isinstance(operation, (Computing, Pause)):
            if self.serving is None and self.trackers[rank].following[index] >= 0:
                self._run_chain(rank, index, operation.duration_s)
            else:
                self.call_later(operation.duration_s, on_done)
        elif isinstance(operation, Computing):
            self.computing[rank].start(operation.duration_s, on_done)
        elif isinstance(operation, Pause):
            self.call_later(operation.duration_s, on_done)
        elif isinstance(operation, Block):
            self._copy_block(rank, operation, on_done)
        elif self.at_once:
            self._exchange_messages(rank, operation, on_done)
        else:
            self._communicate(rank, operation, on_done)

    def _run_chain(self, rank: int, first: int, duration_s: float) -> None:
        """Advance through a chain of timed operations at once, since nothing can change when they end."""
        tracker = self.trackers[rank]
        following, plan = tracker.following, cast("Sequence[Computing | Pause]", tracker.plan)
        started, ended = self.started[rank], self.ended[rank]
        index, count, at_s = first, 0, self.now_s + duration_s
        while (after := following[index]) >= 0:
            ended[index] = started[after] = at_s
            index = after
            count += 1
            at_s += plan[after].duration_s

        def on_done() -> None:
            tracker.done_chain(first, count)
            self._finish(rank, index)

        if at_s > self.now_s:
            self.call_at(at_s, on_done)
        else:
            self.soon.append(on_done)

    def _finish(self, rank: int, index: int) -> None:
        tracker = self.trackers[rank]
        self.ended[rank][index] = self.now_s
        tracker.done(index)
        if tracker.ready:
            self._start_ready(rank)
        if self.serving is not None:
            self.serving.ended(rank, index)

    def _communicate(self, rank: int, operation: Operation, on_done: Callable[[], None]) -> None:
        """Communicate with launch and completion overhead; meanwhile the rank's compute is slowed down."""
        software, computing = self.software, self.computing[rank]

        def ended() -> None:
            computing.communication_ended()
            on_done()

        def complete() -> None:
            if software.completion_s:
                self.call_later(software.completion_s, ended)
            else:
                ended()

        computing.communication_started()
        if software.launch_s:
            self.call_later(software.launch_s, lambda: self._exchange_messages(rank, operation, complete))
        else:
            self._exchange_messages(rank, operation, complete)

    def _copy_block(self, rank: int, block: Block, on_done: Callable[[], None]) -> None:
        """Copy a block through memory windows, without a control message or an effect on compute."""
        ends = (rank, block.peer) if block.sends else (block.peer, rank)
        key = ("block", *ends, block.tag)
        if block.sends:
            self.put(key, ends, block.numel * self.itemsize, self.plan.dscp(block)).and_then(on_done)
        else:
            self.wait_signal(key).and_then(on_done)

    def _exchange_messages(self, rank: int, operation: Operation, on_done: Callable[[], None]) -> None:
        if isinstance(operation, Message):
            ends = (rank, operation.peer) if operation.sends else (operation.peer, rank)
            key = ("message", *ends, operation.tag)
            dscp, size_bytes = self.plan.dscp(operation), operation.numel * self.itemsize
            if operation.sends:
                self.send(key, ends, size_bytes, dscp, self.plan.holds_receivers).and_then(on_done)
            else:
                self.receive(key, ends, size_bytes, dscp).and_then(on_done)
        elif isinstance(operation, GroupCollective):
            if self.folder is None:
                self.drive(self._collective(rank, operation), on_done)
            else:
                self._join(rank, operation, self.folder, on_done)

    # ---- collectives as one flow each

    def _join(
        self, rank: int, operation: GroupCollective, folder: FlowBuilder, on_done: Callable[[], None]
    ) -> None:
        """Join a folded collective: it starts when the last member joins and ends for all members at once."""
        _, members = self.plan.groups[operation.group]
        together = self.gathered.setdefault(self._number(rank, operation), [])
        together.append(on_done)
        if len(together) < len(members):
            return

        def done() -> None:
            for end in together:
                end()

        flow = folder.flow(operation, self.plan)
        if flow is None:
            done()
            return

        def left() -> None:
            self.call_later(flow.rest_s, done)

        self.fluid.send(flow, [flow.shares], flow.size_bytes, left, flow.burst_bytes)

    def _isolated_cost(self, operation: GroupCollective, members: Members, dscp: int) -> Isolated:
        """Return a collective's time, simulated message by message, with nothing else on the network."""
        key = isolated_key(self.plan, operation, members, dscp)
        if key not in self.isolated:
            self.isolated[key] = self._isolated(operation, members, dscp)
        return self.isolated[key]

    def _isolated(self, operation: GroupCollective, members: Members, dscp: int) -> Isolated:
        plan, software = isolated_plan(self.plan, operation, members, dscp), isolated_software(self.software)
        # a wait for several messages ends with the latest one; the mean delay would make all of them equal
        drawn = [LossDelay(Random(f"{members}/{draw}")) for draw in range(self.isolated_draws)]
        state, took_s, simulations = NO_STATE, [], []
        # pacing based on the delivered rate ramps up within a few runs
        for lateness in drawn or [MEAN] * (PACED if self.network.first_pace else 1):
            one = PlanSimulation(plan, self.network, self.itemsize, software, False, lateness, state=state)
            took_s.append(one.run().step_time_s)
            one.connections.shift(took_s[-1])
            simulations.append(one)
            state = one.state
        first = simulations[0]
        result = Isolated(mean(took_s) if drawn else took_s[-1], first.worked_s, first.burst_bytes)
        clear_references(simulations)
        return result

    # ---- collectives, from the plans of real ranks

    def _number(self, rank: int, operation: GroupCollective) -> Key:
        """Return the key of a rank's next collective in a group; all members get the same key."""
        number = self.sequence.get((rank, operation.group), 0)
        self.sequence[rank, operation.group] = number + 1
        return "collective", operation.group, number

    def _collective(self, rank: int, operation: GroupCollective) -> Events:
        _, members = self.plan.groups[operation.group]
        key, dscp, own = self._number(rank, operation), self.plan.dscp(operation), members.index(rank)
        if operation.uneven:
            how = rows_algorithm_of(operation.collective, operation.algorithm)
            yield from self.exchange(Call(members, own, key, dscp), operation.sent_rows(), how)
            return
        alike = operation.exchange_key, own
        if alike not in self.sized:
            self.sized[alike] = list_messages(self.plan, operation, own, self.itemsize)
        channels = self.sized[alike]
        if len(channels) == 1:
            yield from self.channel((*key, 0), dscp, channels[0])
            return
        yield [
            self.begin(self.channel((*key, channel), dscp, stages)) for channel, stages in enumerate(channels)
        ]


class RequestDispatcher:
    """A dispatcher that assigns arriving requests to servers and extends ranks' plans; its messages take no time."""

    def __init__(self, simulation: PlanSimulation, dispatching: Dispatching) -> None:
        self.simulation, self.dispatching = simulation, dispatching
        self.dispatcher, self.growing = dispatching.dispatcher(), GrowingPlan(dispatching)

    def ended(self, rank: int, index: int) -> None:
        """Handle the end of an operation: a closed batch or an answer."""
        if rank != self.dispatching.entry:
            return
        now_s = self.simulation.now_s
        if index < len(self.dispatching.sizes):  # a batch is closed
            self._dispatch(self.dispatcher.send(index, now_s))
        elif index in self.growing.answered:
            self.dispatcher.answered(self.growing.answered[index], now_s)

    def _dispatch(self, sending: Sending) -> None:
        key, now_s = self.dispatching.key(sending), self.simulation.now_s
        for rank in self.dispatching.ranks(key):
            plan = self.simulation.trackers[rank].plan
            part = self.growing.part(key, sending.number, rank, plan)
            self.simulation.extend(rank, part)
        if (due_s := self.dispatcher.rules.retry_s) is not None:
            self.simulation.call_later(due_s, lambda: self._retry(now_s + due_s))

    def _retry(self, due_s: float) -> None:
        for sending in self.dispatcher.due(max(due_s, self.simulation.now_s)):
            self._dispatch(sending)

    def carried(self) -> ExecutedPlan:
        """Return the plan and decisions of the finished step."""
        simulation = self.simulation
        plan = replace(simulation.plan, ranks=tuple(tuple(own.plan) for own in simulation.trackers))
        return ExecutedPlan(plan, self.dispatcher.found, self.growing.answers)
