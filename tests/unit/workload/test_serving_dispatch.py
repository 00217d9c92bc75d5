"""Who serves a batch, decided as it comes: the rules, the model and theory, ranks in threads, and one that is gone."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from testbed.comm.transport import MemoryNetwork, Transport
from testbed.contrib.conformance.harness import in_threads
from testbed.documents import from_json, to_json
from testbed.errors import BadInput
from testbed.measure.execution.shard_records import RankRecords, resolve_served_job
from testbed.measure.ranks.executor import PlanOutcome
from testbed.measure.ranks.fault_injection import RankFaults
from testbed.measure.ranks.serving_rank import ServingExecutor
from testbed.measure.results.serving_result import Serving
from testbed.prediction.request_metrics import request_times, served_step, serving_figures
from testbed.prediction.step_prediction import predict_step
from testbed.prediction.timeline import Timeline
from testbed.show.exchange.chakra import load_job
from testbed.show.report.serving import describe_serving
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.workload.dispatch import (
    Dispatcher,
    Dispatching,
    DispatchLog,
    DispatchRules,
    NoServerError,
    PieceKey,
    Server,
)
from testbed.workload.job.endpoint_resolution import sum_pairs
from testbed.workload.job.job import Job, job_of
from testbed.workload.job.launch_spec import JobSpec
from testbed.workload.plan import Message, Operation
from tests.queueing import md1_wait_s, waits_s
from tests.unit.workload.test_serving import RECOMMENDATION, SAMPLES, TABLES, job, sent

SLOW = {**RECOMMENDATION, "tables": 0, "dense_flops": 1e10}
SERVICE_S = 4 * 1e10 / (121e12 * 0.4) + 20e-6


def dispatcher(policy: str, batches: int = 6, **rules: Any) -> Dispatcher:
    """Of three cards, the first two on one node."""
    servers = [Server(0, (0,)), Server(0, (1,)), Server(1, (0,))]
    return Dispatcher(batches, servers, ["east1", "east4"], DispatchRules(policy, **rules))


def whom(chosen: Dispatcher, batches: range) -> list[int]:
    return [chosen.send(batch, 0.1 * batch).server for batch in batches]


def test_turns_go_round_and_the_fewest_owed_goes_by_answers() -> None:
    assert whom(dispatcher("turns"), range(6)) == [0, 1, 2, 0, 1, 2]
    chosen = dispatcher("least_outstanding")
    assert whom(chosen, range(3)) == [0, 1, 2]
    chosen.answered(1, 0.5)
    assert chosen.send(3, 0.5).server == 1
    chosen.answered(0, 0.6)
    chosen.answered(2, 0.6)
    assert [chosen.send(4, 0.6).server, chosen.send(5, 0.6).server] == [0, 2]
    # equal ones as in turns
    assert whom(dispatcher("least_outstanding"), range(6)) == [0, 1, 2, 0, 1, 2]


def test_chance_is_the_same_again_and_two_choices_never_take_the_fullest() -> None:
    drawn = whom(dispatcher("random", 600), range(600))
    assert drawn == whom(dispatcher("random", 600), range(600))
    assert drawn != whom(dispatcher("random", 600, seed=2), range(600))
    assert set(drawn) == {0, 1, 2}
    assert all(170 < count < 230 for count in Counter(drawn).values())
    counts: Counter[int] = Counter()
    chosen = dispatcher("two_choices", 600)
    for batch in range(600):
        server = chosen.send(batch, 0.0).server
        assert counts[server] <= sorted(counts[one] for one in range(3))[1]
        counts[server] += 1


def test_what_is_not_answered_goes_to_somebody_else_until_there_is_an_answer() -> None:
    chosen = dispatcher("turns", 3, retry_s=1.0, most=1)
    whom(chosen, range(2))
    assert chosen.due_s == 1.0
    chosen.answered(1, 0.5)
    (again,) = chosen.due(1.0)
    assert (again.batch, again.server) == (0, 2)
    assert [one.unit for one in chosen.found.outages] == [0]
    assert chosen.send(2, 1.1).server == 1  # 0 is left out
    chosen.answered(3, 1.2)
    chosen.answered(again.number, 1.3)
    assert chosen.found.first == {0: 2, 1: 1, 2: 3}
    assert chosen.over  # whoever is left out is not waited for
    chosen.answered(0, 2.0)
    assert chosen.found.outages[0].back_s == 2.0
    assert chosen.found.first[0] == 2
    assert from_json(DispatchLog, to_json(chosen.found)) == chosen.found


def test_a_lost_connection_sends_all_that_is_owed_again_and_nobody_left_is_an_end() -> None:
    chosen = dispatcher("turns", 4, retry_s=1.0, most=1, by_node=True)
    whom(chosen, range(3))
    again = chosen.lose([0, 1], 0.5)
    assert [(one.batch, one.server) for one in again] == [(0, 2), (1, 2)]
    assert chosen.send(3, 0.6).server == 2
    assert len(chosen.found.outages) == 1
    chosen.answered(2, 0.7)
    assert not chosen.over
    with pytest.raises(NoServerError, match=r"sent 2 times; east1, east4: no server with the model's tables"):
        chosen.due(1.6)


def test_what_is_sent_too_often_is_lost() -> None:
    chosen = dispatcher("turns", 1, retry_s=1.0, most=1)
    chosen.send(0, 0.0)
    (again,) = chosen.due(1.0)
    assert chosen.due(2.0) == []
    assert chosen.found.lost == [0]
    assert chosen.over
    chosen.answered(again.number, 2.5)  # nobody waits for it any more
    assert chosen.found.first == {}


def carried(**inference: Any) -> tuple[Job, dict[str, Any]]:
    """A job as the model carries it out, and its figures."""
    made = job(**inference)
    timeline = predict_step(made, "ring")
    done = made.as_executed(timeline.carried)
    return done, figures_of(done, timeline)


def figures_of(done: Job, timeline: Timeline) -> dict[str, Any]:
    assert done.workload.serving is not None
    return serving_figures(done.workload.serving.spec, [served_step(done, "ring", timeline.spans)])


@pytest.mark.parametrize("partition", ["replicate", "sparse_sharded", "pipeline"])
def test_decided_on_arrival_the_same_is_sent_as_decided_before(partition: str) -> None:
    before = job(partition=partition, gather="host", rate=500)
    after, figures = carried(partition=partition, gather="host", rate=500, retry={"after": "1 s"})
    assert sent(after) == sent(before)
    assert figures["sent_again"] == figures["lost"] == 0
    assert all(link["bytes_expected"] == link["bytes_observed"] for link in figures["links"])


def test_by_chance_each_card_is_a_queue_of_its_own_as_theory_has_it() -> None:
    rate = 0.7 * 6 / SERVICE_S
    done, figures = carried(rate=rate, requests=2000, dispatch="random", recommendation=SLOW)
    serving = done.workload.serving
    assert serving is not None
    assert serving.dispatched is not None
    own: dict[int, list[float]] = {}
    for one in serving.dispatched.sendings:
        own.setdefault(one.server, []).append(serving.arrivals_s[one.batch])
    waits = [wait for arrivals in own.values() for wait in waits_s(arrivals, SERVICE_S)]
    measured = figures["mean_parts"]["queue_s"]
    assert measured == pytest.approx(sum(waits) / len(waits), rel=0.01)
    assert measured == pytest.approx(md1_wait_s(rate / 6, SERVICE_S), rel=0.25)  # of this draw
    # the shorter queue is nearly as good as one queue before all cards, which cards in turns are
    same = {"rate": rate, "requests": 600, "recommendation": SLOW}
    turns, fewest, two = (
        carried(dispatch=how, retry={"after": "60 s"}, **same)[1]["mean_parts"]["queue_s"]
        for how in ("turns", "least_outstanding", "two_choices")
    )
    assert turns * 0.999 <= fewest <= 1.05 * turns
    assert 1.5 * fewest < two < measured


def test_a_request_s_time_is_the_sum_of_its_parts_where_it_is_sent_again() -> None:
    # answers take longer than they are waited for: there are 2 ms to the nodes and back
    made = job(serve=["east1", "east8"], entry="users1", rate=300, retry={"after": "1.5 ms", "most": 9})
    timeline = predict_step(made, "ring")
    done = made.as_executed(timeline.carried)
    figures = figures_of(done, timeline)
    serving = done.workload.serving
    assert serving is not None
    times = request_times(serving, timeline.spans, Scale())
    assert figures["sent_again"] > 0
    assert len(times) == 30 - figures["lost"]
    for one in times:
        assert one.parts.total_s == pytest.approx(one.latency_s, rel=1e-9)
    request = SAMPLES * (TABLES * (4 * 3 + 4) + 5 * 4)
    found = Counter(sum_pairs(done.workload.pairs("ring").values()))
    assert serving.dispatched is not None
    assert found[14, 0] + found[14, 7] == len(serving.dispatched.sendings) * request


def test_a_spec_with_dispatching_goes_through_json() -> None:
    made = job(dispatch="least_outstanding", retry={"after": "2 ms"})
    dispatching = made.workload.dispatching
    assert dispatching is not None
    spec = JobSpec(made.wiring, "float32", made.workload.start, (), "", dispatching=dispatching)
    back = JobSpec.from_json(spec.to_json())
    assert isinstance(back.dispatching, Dispatching)
    assert to_json(back.dispatching) == to_json(dispatching)
    assert made.survives_kills
    assert not job(dispatch="random").survives_kills


def test_who_was_killed_does_not_come_back() -> None:
    kill = {"at": "1 ms", "action": "host_kill", "target": "east1", "for": "5 ms"}
    made = job(retry={"after": "2 ms"}).scenario.changed({"events": [kill]}, "killed")
    with pytest.raises(ConfigError, match=r"events.0.for: got 5 ms, expected no `for`"):
        job_of(made, Scale())


def test_what_is_decided_on_the_way_has_no_trace_beforehand(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(job(dispatch="random").scenario.to_yaml())
    with pytest.raises(BadInput, match=r"workload.inference.dispatch: got on arrival, expected turns"):
        load_job(file)


def test_several_steps_are_refused() -> None:
    made = job(dispatch="random")
    with pytest.raises(ConfigError, match="one measured step"):
        job_of(made.scenario.changed({"trials": 2}, "two"), Scale())


class Gone(Exception):
    """A rank is."""


class Mortal(ServingExecutor):
    """Goes away when it hears of the ninth batch, or one after that."""

    def _take_on(self, key: PieceKey, number: int, now_s: float) -> None:
        if number >= 8:
            self.transport.abort("it is gone")
            raise Gone
        super()._take_on(key, number, now_s)


def in_ranks(
    made: Job, folder: Path, mortal: int | None = None
) -> list[tuple[list[Operation], PlanOutcome] | None]:
    """What each rank has done of a job, all of them in threads."""
    network, dispatching = MemoryNetwork(len(made.hosts)), made.workload.dispatching
    assert dispatching is not None
    start_s = time.monotonic() + 0.05

    def act(transport: Transport) -> tuple[list[Operation], PlanOutcome] | None:
        kind = Mortal if transport.rank == mortal else ServingExecutor
        executor = kind(dispatching, transport, "float32", 5.0, RankFaults(), folder, True)
        executor.prepare(0)
        try:
            done = executor.run(start_s)
        except Gone:
            return None
        return executor.operations, done

    return in_threads(len(made.hosts), network.transports.__getitem__, act)


def read_back(made: Job, folder: Path, found: list[tuple[list[Operation], PlanOutcome] | None]) -> Job:
    """The job as it was carried out, by what ranks wrote down."""
    steps = [
        {"operation": "step", "variant": "ring", "trial": 0, "step": 0, "rank": rank, "name": "ring",
         "start_s": 0.0, "end_s": 1.0, "looks_s": 0.1}
        for rank, own in enumerate(found) if own is not None
    ]  # fmt: skip
    return resolve_served_job(made, folder, RankRecords(samples=steps))


def test_ranks_do_what_is_decided_and_write_it_down(tmp_path: Path) -> None:
    made = job(partition="sparse_sharded", gather="host", rate=1000, dispatch="least_outstanding")
    found = in_ranks(made, tmp_path)
    done = read_back(made, tmp_path, found)
    for rank, own in enumerate(found):
        assert own is not None
        assert tuple(own[0]) == done.workload.plan.ranks[rank]
        assert own[1].wrong == 0
        assert len(own[1].spans) == len(own[0])
    # decided as on the model, where nobody is ever busy for long
    assert sent(done) == sent(job(partition="sparse_sharded", gather="host", rate=1000))
    assert sum(own[1].checked for own in found if own) == sum(
        op.numel for own in done.workload.plan.ranks for op in own if isinstance(op, Message) and not op.sends
    )
    serving = done.workload.serving
    assert serving is not None
    spans = [own[1].spans for own in found if own]
    times = request_times(serving, spans, Scale())
    assert len(times) == 30
    for one in times:
        assert min(one.parts.queue_s, one.parts.transfer_s, one.parts.compute_s) >= 0
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_node_that_is_gone_costs_what_it_had_and_no_more(tmp_path: Path) -> None:
    made = job(serve=["east1", "east8"], entry="users1", rate=1000, retry={"after": "1 s"})
    found = in_ranks(made, tmp_path, mortal=0)
    assert [rank for rank, own in enumerate(found) if own is None] == [0]
    done = read_back(made, tmp_path, found)
    serving = done.workload.serving
    assert serving is not None
    assert serving.dispatched is not None
    assert not serving.dispatched.lost
    assert len(serving.answers) == 30
    (outage,) = serving.dispatched.outages
    assert (outage.unit, outage.back_s) == (0, None)
    first: dict[int, int] = {}
    again = [
        one for one in serving.dispatched.sendings if first.setdefault(one.batch, one.number) != one.number
    ]
    nodes = [made.workload.dispatching.servers[one.server].node for one in again]  # type: ignore[union-attr]
    assert set(nodes) == {1}
    assert len({one.batch for one in again}) == len(again)
    # nodes alternate
    assert {serving.dispatched.sendings[first[one.batch]].server % 2 for one in again} == {0}
    # what the lost rank had done is known, and no more
    assert len(done.workload.plan.ranks[0]) <= 4 * 6


def test_what_failed_is_said() -> None:
    _, figures = carried(serve=["east1", "east8"], entry="users1", rate=300, retry={"after": "1.5 ms"})
    found = Serving.model_validate({**figures, "predicted": None})
    assert found.outages[0].name.startswith("node east")
    words = " ".join(describe_serving("retry", found))
    assert "requests sent again" in words
    assert "was given up at" in words
