"""The start of a job alone: whose group is whose, who is told what, and that it costs what the closed form counts."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from testbed.comm.transport.wire import HELLO_BYTES
from testbed.documents import from_json, to_json
from testbed.measure.execution.benchmark_options import STARTUP_METHODS, bootstrap_trials, parse_dimensions
from testbed.measure.execution.bootstrap_benchmark import BootstrapOptions, make_spec
from testbed.measure.ranks.benchmarks import BootstrapRank, BootstrapSpec, exchange_peers, group_kinds
from testbed.prediction.startup_cost import RING, SoftwareCosts, connections_of, estimate_startup
from testbed.spec.errors import ConfigError
from testbed.workload.job.endpoints import THIS_NAMESPACE, RankEndpoint

RANKS = 8
HOSTS = [
    RankEndpoint(number, f"h{number}", 0, f"127.0.7.{number + 1}", THIS_NAMESPACE) for number in range(2)
]


def test_groups_are_those_of_each_dimension_and_of_all() -> None:
    everybody, tensor, pipeline, data = group_kinds(16, [("tensor", 2), ("pipeline", 4), ("data", 2)])
    assert list(everybody.members(5)) == list(range(16))
    assert list(tensor.members(5)) == [4, 5]
    assert list(pipeline.members(5)) == [1, 3, 5, 7]
    assert list(data.members(5)) == [5, 13]
    assert [group.place(5) for group in (everybody, tensor, pipeline, data)] == [5, 1, 2, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 32])
def test_partners_hear_from_each_other_and_are_as_many_as_the_model_counts(size: int) -> None:
    rounds = [list(exchange_peers(rank, size)) for rank in range(size)]
    sent = {(rank, peer) for rank in range(size) for to, _ in rounds[rank] for peer in to}
    heard = {(peer, rank) for rank in range(size) for _, of in rounds[rank] for peer in of}
    assert sent == heard
    most = max(len({peer for pair in sent if rank in pair for peer in pair} - {rank}) for rank in range(size))
    assert most == connections_of(size, eager=False)


@pytest.mark.parametrize("name", list(STARTUP_METHODS))
def test_a_start_takes_the_sockets_and_bytes_that_the_closed_form_has(name: str) -> None:
    way = STARTUP_METHODS[name]
    costs = SoftwareCosts(
        base_s=0.01, caller_s=1e-3, entry_s=1e-4, connection_s=1e-3, pair_s=1e-4, rank_s=1e-4
    )
    options = BootstrapOptions(RANKS, (("tensor", 4),), way, costs, timeout_s=20.0)
    results = run(make_spec(options, HOSTS, ready_s=0.05))
    assert sorted(result["rank"] for result in results) == list(range(RANKS))
    expected = estimate_startup(RANKS, [4, 2], way, costs)
    assert {result["sockets"] for result in results} == {expected.connections}
    (first,) = (result for result in results if result["rank"] == 0)
    found = 1 if way.reuses else 3
    # to its follower, in each group that is found
    hellos = found * HELLO_BYTES if way.bootstrap == RING else 0
    assert first["bytes_sent"] == expected.master_bytes + hellos
    # what is given as cost is taken: of a rank its own part, on any machine
    least_s = costs.base_s + expected.topology_s + (RANKS - 1) * costs.caller_s
    assert max(result["time_s"] for result in results) >= least_s
    assert all(result["parts"]["topology"] >= expected.topology_s for result in results)


def run(spec: BootstrapSpec) -> list[dict[str, Any]]:
    """All ranks of it, each in a thread."""
    told: list[dict[str, Any]] = []
    failures: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            BootstrapRank(spec, rank, told.append).run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(spec.ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    return told


def test_a_spec_survives_its_way_to_the_launcher() -> None:
    spec = make_spec(
        BootstrapOptions(8, (("tensor", 4),), STARTUP_METHODS["lazy"], SoftwareCosts(0.0, 0.0)), HOSTS
    )
    assert from_json(BootstrapSpec, to_json(spec)) == spec
    assert spec.begin_s > time.monotonic()
    addresses = {
        spec.address(rank, kind, door=door)
        for rank in range(8)
        for kind in range(3)
        for door in (True, False)
    }
    assert len(addresses) == 8 * 3 * 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ranks": "12"}, r"--ranks.*12.*multiple of the 8 that --groups make"),
        ({"ranks": "8,many"}, r"--ranks.*many.*2 to 8192"),
        ({"way": "lasy"}, r"--way.*lasy.*lazy"),
        ({"ranks": "2048"}, r"--way.*baseline with 2048 ranks.*lazy or scalable beyond 1024"),
        ({"groups": "tensor"}, r"--groups.*tensor.*NAME=SIZE"),
        ({"costs": "free"}, r"--costs.*free"),
        ({"clock": "wall"}, r"--clock.*wall"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, str], words: str) -> None:
    asked = {
        "ranks": "8",
        "way": "baseline",
        "groups": "tensor=8",
        "costs": "none",
        "clock": "real",
        **changed,
    }
    with pytest.raises(ConfigError, match=words):
        bootstrap_trials(**asked)


def test_without_groups_there_are_all_ranks_and_replicas() -> None:
    assert parse_dimensions("none") == ()
    assert [
        kind.name for kind in BootstrapOptions(4, (), STARTUP_METHODS["lazy"], SoftwareCosts(0.0, 0.0)).kinds
    ] == [
        "all",
        "data",
    ]
