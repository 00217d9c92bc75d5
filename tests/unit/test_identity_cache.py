"""What is made once for the very same things, and what searches find again by it."""

from __future__ import annotations

from typing import ClassVar

import pytest

from testbed.caches import IdentityCache, SizedCache
from testbed.net.controller import PolicyChoice
from testbed.prediction.calibration import VIRTUAL, find_calibration
from testbed.prediction.routes import route_network
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.job import Job, job_of
from tests.unit.workload.test_workload_rank_symmetry import SCENARIO

TWO = {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4}


def test_the_very_same_things_come_to_the_same() -> None:
    known: IdentityCache[list[int]] = IdentityCache(2)
    one, like_it, other = [1], [1], [2]
    first = known.of((one, other), list)
    assert known.of((one, other), list) is first
    assert known.of((like_it, other), list) is not first


def test_what_was_made_long_ago_is_made_again() -> None:
    known: IdentityCache[list[int]] = IdentityCache(2)
    things: list[list[int]] = [[], [], []]
    first = known.of((things[0],), list)
    known.of((things[1],), list)
    assert known.of((things[0],), list) is first  # which is of late now
    known.of((things[2],), list)
    assert known.of((things[0],), list) is first
    second = known.of((things[1],), list)
    assert known.of((things[1],), list) is second


class _Planes:
    """Two configurations that differ in how much is sent, not in who sends to whom."""

    changes: ClassVar[dict[str, object]] = {"workload.parallelism": TWO, "topology.wan.0.planes": 4}

    def jobs(self, policy: str) -> list[Job]:
        base = load_scenario(SCENARIO).changed(self.changes, "a test")
        sizes: list[dict[str, object]] = [
            {"policy": policy},
            {"policy": policy, "workload.sequence_length": 512},
        ]
        found = [base.changed({**more, "workload.schedule.microbatches": 2}, "a test") for more in sizes]
        found[1] = found[1].changed({"workload.gradient_dtype": "float64"}, "a test")
        return [job_of(one, Scale()) for one in found]


@pytest.mark.parametrize(("policy", "same"), [("ecmp", True), ("spray", True), ("te", False)])
def test_a_network_is_found_again_where_paths_do_not_go_by_sizes(policy: str, same: bool) -> None:
    one, other = _Planes().jobs(policy)
    calibration = find_calibration(VIRTUAL)
    assert one.workload.pairs("ring") != other.workload.pairs("ring")
    networks = [route_network(job, "ring", calibration) for job in (one, other)]
    assert (networks[0] is networks[1]) is same
    assert PolicyChoice(policy).goes_by_sizes is not same


def test_what_a_change_does_not_touch_stays_what_it_is() -> None:
    scenario = load_scenario(SCENARIO)
    changed = scenario.changed({"policy": "ecmp"}, "a test")
    assert changed.topology is scenario.topology
    assert changed.topology.resolve(Scale()) is scenario.topology.resolve(Scale())
    assert Scenario.model_validate(changed.to_data()) == changed


def test_a_sized_cache_drops_what_was_used_longest_ago() -> None:
    cache: SizedCache[str] = SizedCache(5, len)
    assert cache.of("a", lambda: "aa") + cache.of("b", lambda: "bb") == "aabb"
    assert cache.of("a", lambda: "new") == "aa"
    cache.of("c", lambda: "cc")
    assert cache.of("a", lambda: "new") == "aa"
    assert cache.of("b", lambda: "new") == "new"
    assert cache.of("large", lambda: "larger than all") == "larger than all"
    assert cache.of("large", lambda: "") == "larger than all"
