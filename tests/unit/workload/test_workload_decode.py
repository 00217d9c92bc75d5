"""Decoding with experts: what travels of it, what comes before, and what is refused."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from testbed.comm.transport import Software
from testbed.net.paths import network_of
from testbed.prediction.simulation import simulate
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import Workload, job_of
from testbed.workload.job.kinds.decode import draw_routing, expert_shares
from testbed.workload.plan import GroupCollective, Pause
from testbed.workload.plan_volume import plan_traffic

RANKS, BATCH, ROW = 4, 8, 64


def workload(scale: Scale | None = None, **options: Any) -> Workload:
    topology = {"name": "hall", "buildings": {"hall": {"hosts": RANKS, "nic": {"rate": "400 Gbit/s"}}}}
    cost = {"synchronisation": "20 us", "per_message": "2 us"}
    found = load_scenario(
        {
            "name": "decode",
            "topology": topology,
            "workload": {
                "plan": "decode",
                "options": {"batch": BATCH, "experts": 8, "row": ROW, **options},
            },
            "transport": {"software_cost": cost},
        }
    )
    return job_of(found, scale or Scale()).workload


def rows_of(experts_per_token: int = 1, seed: int = 1) -> tuple[tuple[int, ...], ...]:
    return draw_routing(random.Random(f"{seed}/decode"), RANKS, BATCH, 8, experts_per_token)[0]


def sent(found: Workload) -> int:
    """Bytes to others."""
    return sum(plan_traffic(found.plan.with_algorithm("ring"), 4).values())


def across(rows: tuple[tuple[int, ...], ...]) -> int:
    return sum(
        count for source, own in enumerate(rows) for target, count in enumerate(own) if source != target
    )


def test_a_rank_has_a_token_once_however_many_of_its_experts_are_there() -> None:
    assert all(sum(own) == BATCH for own in rows_of(1))
    everywhere = rows_of(8)
    assert everywhere == ((BATCH,) * RANKS,) * RANKS
    some = rows_of(4)
    assert all(BATCH < sum(own) <= 4 * BATCH and max(own) <= BATCH for own in some)


def test_experts_get_what_their_shares_are_worth_and_each_token_as_many_as_ever() -> None:
    batch, shares = 20_000, (1.0, 2.0, 3.0, 4.0)
    rows, _ = draw_routing(random.Random("1"), RANKS, batch, RANKS, 1, shares)
    got = [sum(own[target] for own in rows) / (RANKS * batch) for target in range(RANKS)]
    assert got == pytest.approx([share / sum(shares) for share in shares], abs=0.01)
    rows, _ = draw_routing(random.Random("1"), RANKS, 100, RANKS, 3, shares)
    assert all(sum(own) == 300 for own in rows)
    # of a pair without replacement (1 and 2 of weights 1, 1, 2): 1/4 x 1/3 + 1/4 x 1/3 leave the third out
    rows, _ = draw_routing(random.Random("1"), 3, batch, 3, 2, (1.0, 1.0, 2.0))
    assert sum(own[2] for own in rows) / (3 * batch) == pytest.approx(5 / 6, abs=0.01)


def test_routing_skew_is_the_spread_of_shares_and_leaves_what_is_even_as_it_is() -> None:
    shares = expert_shares("1", 50_000, 0.5)
    assert statistics.fmean(shares) / statistics.median(shares) == pytest.approx(1.25**0.5, abs=0.01)
    assert statistics.pstdev(shares) / statistics.fmean(shares) == pytest.approx(0.5, abs=0.01)
    assert sent(workload(routing_skew=0.0)) == sent(workload())
    assert sent(workload(routing_skew=2.0)) != sent(workload())


@pytest.mark.parametrize("experts_per_token", [1, 4])
def test_what_travels_is_as_the_metadata_allow(experts_per_token: int) -> None:
    rows = across(rows_of(experts_per_token))
    counts = 8 * RANKS * (RANKS - 1)
    options: dict[str, Any] = {"experts_per_token": experts_per_token}
    # there: counts and rows; back: rows
    assert sent(workload(metadata="resident", **options)) == counts + 2 * rows * ROW
    assert sent(workload(metadata="eager", **options)) == counts + 2 * rows * ROW
    assert sent(workload(metadata="resident", handles="cached", **options)) == 2 * rows * ROW
    padded = counts + RANKS * (RANKS - 1) * BATCH * ROW
    assert sent(workload(metadata="graph_padded", **options)) == 2 * padded
    # a rank's counts and its tokens' experts go to all others
    gathered = RANKS * (RANKS - 1) * 8 * (RANKS + BATCH * experts_per_token)
    assert sent(workload(metadata="gathered", **options)) == gathered + 2 * rows * ROW


def test_the_host_reads_counts_where_it_has_to() -> None:
    for metadata, reads in (("eager", 6), ("gathered", 6), ("graph_padded", 0), ("resident", 0)):
        own = workload(metadata=metadata, layers=3, tokens=2).plan.ranks[0]
        pauses = [operation for operation in own if isinstance(operation, Pause)]
        assert len(pauses) == reads
        assert all(pause.duration_s == pytest.approx(20e-6) for pause in pauses)


def test_buffers_that_are_not_chained_are_posted_one_by_one() -> None:
    """Every expert gets a row of every rank: two buffers for each of three others, of which one is a message's own."""
    chained = workload(experts_per_token=8)
    apart = workload(experts_per_token=8, chaining=False)
    posted = [operation for operation in apart.plan.ranks[0] if isinstance(operation, Pause)]
    assert [pause.duration_s for pause in posted] == pytest.approx([3 * 2e-6] * 2)
    assert not any(isinstance(operation, Pause) for operation in chained.plan.ranks[0])
    assert sent(apart) == sent(chained)
    rows, buffers = draw_routing(random.Random(1), RANKS, 1, 8, 2)
    assert [sum(own) for own in buffers] == [2] * RANKS  # a token's experts, of the same rank or not
    assert all(0 < row <= 2 for row in map(sum, rows))


def test_layers_and_tokens_have_experts_of_their_own_one_after_the_other() -> None:
    own = workload(layers=2, tokens=2).plan.ranks[1]
    tables = [operation.table for operation in own if isinstance(operation, GroupCollective)]
    assert len(tables) == 8
    assert len(set(tables[::2])) == 4
    assert tables[1] == tuple(zip(*tables[0], strict=True))
    assert [operation.after for operation in own] == [(), *((number,) for number in range(len(own) - 1))]


def test_rows_shrink_with_the_scale_and_their_number_stays() -> None:
    small = workload(Scale(size_scale=4))
    assert sent(small) == 8 * RANKS * (RANKS - 1) + 2 * across(rows_of()) * ROW // 4


def test_caching_saves_what_is_told() -> None:
    """By the model: a count's way before the rows, and buffers' where they are announced."""
    hall = {"hosts": RANKS, "nic": {"rate": "400 Gbit/s", "delay": "1 ms"}}
    described = {"name": "h", "buildings": {"h": hall}}
    options = {"plan": "decode", "options": {"experts": 8}}
    topology = load_scenario({"name": "x", "topology": described, "workload": options}).topology.resolve()
    network = network_of(topology, topology.hosts)

    def took_s(protocol: str, **options: Any) -> float:
        plan = workload(compute="0 s", **options).plan
        return simulate(plan, network, 4, Software(protocol)).step_time_s

    # one way is 2 ms: rows there, rows back
    assert took_s("eager", handles="cached") == pytest.approx(4e-3, rel=0.01)
    # counts and rows go together, but receives of rows are announced once their count has come
    assert took_s("eager") == pytest.approx(4e-3, rel=0.01)
    assert took_s("rendezvous") == pytest.approx(12e-3, rel=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"experts": 6}, "experts: got 6, expected a multiple of the 4 ranks"),
        ({"experts_per_token": 9}, "experts_per_token: got 9, expected 1 to 8"),
        ({"batch": 0}, "batch: got 0, expected at least 1"),
        (
            {"metadata": "lazy"},
            "metadata: got lazy, expected one of: eager, graph_padded, resident, gathered",
        ),
        ({"handles": "cached", "metadata": "eager"}, "handles: got cached with metadata eager"),
        ({"routing_skew": -1.0}, "routing_skew: got -1.0, expected 0 to 10"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^scenario: workload.options.{words}"):
        workload(**options)
