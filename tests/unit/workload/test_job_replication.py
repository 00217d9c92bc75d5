"""Replicas that come and go, from a scenario to what ranks are told."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from testbed.comm.collectives import Communicator, count_wrong_among, fill
from testbed.comm.transport import Transport
from testbed.documents import rebuild
from testbed.measure.results.shards import split_into_shards
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.fault_resolution import cross_replica_traffic, reduced_elements, spans_replicas
from testbed.workload.job.job import Job, job_of
from testbed.workload.job.launch_spec import JobSpec, Replication, plan_steps
from testbed.workload.plan import JobPlan
from testbed.workload.plan_volume import array_keys
from tests.unit.measure.ranks import in_memory

REPOSITORY = Path(__file__).parents[3]
LOSS = REPOSITORY / "scenarios" / "faults" / "replica-loss.yaml"
SCALE = Scale(size_scale=8000.0, time_dilation=2.0)


def loss(name: str = "blocking", *changes: str) -> Scenario:
    return load_scenario(LOSS, list(changes)).variant(name)


def job(name: str = "blocking", *changes: str) -> Job:
    return job_of(loss(name, *changes), SCALE)


def test_replicas_are_the_ranks_of_a_building_each() -> None:
    found = job().replication
    assert found is not None
    assert found.replicas == tuple(tuple(range(first, first + 4)) for first in range(0, 16, 4))
    assert (found.policy.mode, found.policy.catch_up) == ("ftar", "blocking")
    assert (found.policy.detect_s, found.policy.restart_s, found.heartbeat_s) == (1.0, 60.0, 0.2)
    assert (found.ring.chunk_bytes, found.ring.in_flight) == (8000, 8)


def test_the_state_is_16_bytes_for_each_parameter_of_a_shard() -> None:
    made = job()
    found = made.replication
    assert found is not None
    parameters = 8 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 2 * 4096 * 32000
    state_bytes = SCALE.real_bytes(4 * sum(found.state_elements))
    assert state_bytes == pytest.approx(16 * parameters, rel=0.001)
    elements = reduced_elements(made.workload.plan, 5, found.replicas)
    assert found.state_elements[1] == elements * 4


def test_without_a_peer_nothing_goes_over_the_network() -> None:
    for name, change in (
        ("restart", ()),
        ("blocking", ("workload.parallelism.faults.checkpoint_from=storage",)),
    ):
        found = job(name, *change).replication
        assert found is not None
        assert found.state_elements == (0, 0, 0, 0)


def test_ranks_are_told_all_of_it() -> None:
    made = job()
    assert made.replication is not None
    told = replace(made.replication, silent=(1, 2))
    assert rebuild(Replication, json.loads(json.dumps(asdict(told)))) == told
    spec = JobSpec(
        made.wiring, "float32", JobPlan(), plan_steps({"a": "ring"}, 2, 1, False), "", replication=told
    )
    assert JobSpec.from_json(spec.to_json()).replication == told


def test_machines_that_are_lost_are_silent() -> None:
    event = "events=[{step: 1, action: host_kill, target: east2, for: 1 s}]"
    found = job("blocking", event).replication
    assert found is not None
    assert found.silent == (5,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("workload.parallelism.faults.detect=200 ms", "at least 300 ms, 3 times `heartbeat`"),
        (
            "workload.parallelism.faults={mode: restart, checkpoint_from: peer}",
            "storage, as all ranks stop with mode restart",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loss("blocking", change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "workload.parallelism={data_parallel_shard_degree: 16, faults: {}}",
            "at least 2 replicas, each on ranks of its own",
        ),
        ("workload.schedule.receives=in_order", "expected early"),
        ("transport.bootstrap=star", "static, as a rank that returns finds the others by itself"),
        (
            "workload.parallelism.collectives={data_parallel_replicate: ring}",
            "none, as replicas reduce by ftar",
        ),
        ("algorithms=[hierarchical]", "expected ring, which ftar is on the network"),
    ],
)
def test_what_replicas_that_come_and_go_cannot_do_is_refused(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _ = job("blocking", change).replication


def test_collectives_across_replicas_are_of_one_place_in_all() -> None:
    replicas = ((0, 1), (2, 3))
    assert spans_replicas((0, 2), replicas)
    assert not spans_replicas((2, 0), replicas)
    plan = JobPlan(((),) * 4, (("inner", (0, 1)), ("outer", (1, 3)), ("askew", (0, 3))))
    assert list(cross_replica_traffic(plan, replicas)) == ["askew of ranks 0, 3"]


def test_all_steps_of_a_variant_are_one_job() -> None:
    shards = split_into_shards(load_scenario(LOSS))
    assert [(shard.variant, shard.trials) for shard in shards] == [
        ("restart", 16),
        ("blocking", 16),
        ("non-blocking", 16),
    ]


def test_operations_across_replicas_share_no_arrays() -> None:
    plan = job("blocking", "workload.bucket_cap=100 MiB").workload.plan.ranks[0]
    outer = {index for index, operation in enumerate(plan) if "replicate" in operation.kind}
    groups = {plan[index].group for index in outer}  # type: ignore[attr-defined]
    keys, apart = array_keys(plan), array_keys(plan, groups)
    assert len({keys[index] for index in outer}) < len(outer)
    assert len({apart[index] for index in outer}) == len(outer)
    assert all(keys[index] == apart[index] for index in keys if index not in outer)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", ["sum", "avg", "product"])
def test_the_sum_of_some_is_known(dtype: str, op: str) -> None:
    from testbed.comm.collectives import dtype_named  # noqa: PLC0415
    from testbed.comm.collectives.arrays import finish, operation_named  # noqa: PLC0415

    parts = [np.empty(3000, dtype_named(dtype)) for _ in range(4)]
    for rank, part in enumerate(parts):
        fill(part, rank, 5, op)
    total = parts[1].copy()
    operation_named(op)(total, parts[3], out=total)
    finish(op, total, 2)
    assert count_wrong_among(total, (1, 3), 5, op) == 0
    assert count_wrong_among(total, (0, 3), 5, op) > 0


def test_communicators_are_made_without_a_message() -> None:
    def program(transport: Transport) -> float:
        everybody = Communicator(transport)
        if transport.rank == 2:
            return 0.0
        made = everybody.split_as(3, (0, 1), "two")
        array = np.ones(1, np.float32)
        made.all_reduce(array)
        return float(array[0])

    assert in_memory(3, program) == [2.0, 2.0, 0.0]
