"""Ranks of a trace that do not fit together: what is said of them, with both sides' places."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.workload.traces.consistency import check_matching, first_mismatch
from testbed.workload.traces.trace import Collective, Compute, JobTrace, Node, PointToPoint, TraceError


def trace(*ranks: tuple[Node, ...], **groups: tuple[int, ...]) -> JobTrace:
    return JobTrace(ranks, groups or {"dp": tuple(range(len(ranks)))})


def reduces(numel: int = 8, site: str = "train.py:3", **more: object) -> Collective:
    return replace(Collective("reduce", "comm", group="dp", numel=numel, site=site), **more)  # type: ignore[arg-type]


def sends(peer: int, numel: int = 8, site: str = "train.py:5", **more: object) -> PointToPoint:
    made = PointToPoint("send", f"to {peer}", peer=peer, numel=numel, sends=True, site=site)
    return replace(made, **more)  # type: ignore[arg-type]


def receives(peer: int, numel: int = 8, site: str = "train.py:6", **more: object) -> PointToPoint:
    made = PointToPoint("receive", f"from {peer}", peer=peer, numel=numel, site=site)
    return replace(made, **more)  # type: ignore[arg-type]


def test_what_fits_together_is_said_nothing_of() -> None:
    own = (Compute("forward"), reduces(), sends(1))
    assert first_mismatch(trace(own, (reduces(), receives(0)))) is None


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (
            ((reduces(),), (reduces(9, "train.py:7"),)),
            "collective 0 of group dp is all_reduce (8 float32) on rank 0 at train.py:3, "
            "but all_reduce (9 float32) on rank 1 at train.py:7",
        ),
        (
            ((reduces(), reduces(collective="barrier")), (reduces(), reduces(module="layers.2"))),
            "collective 1 of group dp is barrier (8 float32) on rank 0 at train.py:3, "
            "but all_reduce (8 float32) on rank 1 at train.py:3 in layers.2",
        ),
        (((reduces(),), (reduces(dtype="bfloat16"),)), "but all_reduce (8 bfloat16) on rank 1"),
        (
            ((reduces(collective="broadcast"),), (reduces(collective="broadcast", root=1),)),
            "is broadcast of rank 0 (8 float32) on rank 0 at train.py:3, but broadcast of rank 1",
        ),
        (
            ((reduces(),), (reduces(), reduces(site="train.py:9"))),
            "collective 1 of group dp, all_reduce (8 float32), is done on rank 1 at train.py:9, "
            "but rank 0 does 1 in that group; its last is at train.py:3",
        ),
        (((reduces(),), ()), "is done on rank 0 at train.py:3, but rank 1 does 0 in that group"),
        (
            ((sends(1),), (receives(0, 9),)),
            "message 0 from rank 0 at train.py:5 has 8 float32, but rank 1 at train.py:6 receives 9 float32",
        ),
        (
            ((sends(1), sends(1)), (receives(0),)),
            "rank 0 at train.py:5 sends 8 float32 to rank 1, which receives 1 of its 2 messages",
        ),
        (
            ((sends(1, tag=1),), (receives(0, tag=2),)),
            "rank 0 at train.py:5 sends 8 float32 to rank 1 with tag 1, which receives 0 of its 1 messages",
        ),
        (
            ((), (receives(0),)),
            "rank 1 at train.py:6 receives 8 float32 from rank 0, which sends 0 of its 1 messages",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_both_places(ranks: tuple[tuple[Node, ...], ...], said: str) -> None:
    found = first_mismatch(trace(*ranks))
    assert found is not None
    assert said in found
    with pytest.raises(TraceError):
        check_matching(trace(*ranks))


def test_groups_that_are_joined_in_another_order_wait_for_ever() -> None:
    """Each rank's sequences agree group by group; across groups nobody can go first."""
    first = Collective("a", "compute", group="a", numel=1, site="train.py:1")
    second = Collective("b", "compute", group="b", numel=1, site="train.py:2")
    found = first_mismatch(trace((first, second), (second, first), a=(0, 1), b=(0, 1)))
    assert found == (
        "ranks wait for each other forever: rank 0 at train.py:1 waits in all_reduce of group a for rank 1; "
        "rank 1 at train.py:2 waits in all_reduce of group b for rank 0"
    )
    assert first_mismatch(trace((first, second), (first, second), a=(0, 1), b=(0, 1))) is None


def test_two_that_send_first_wait_for_ever_where_senders_wait() -> None:
    def own(peer: int) -> tuple[Node, ...]:
        return (sends(peer), receives(peer, after=(0,)))

    both = trace(own(1), own(0))
    assert first_mismatch(both) is None
    found = first_mismatch(both, senders_wait=True)
    assert found is not None
    assert "rank 0 at train.py:5 waits in a send to rank 1 for rank 1; rank 1 at train.py:5 waits in" in found
    other = trace((sends(1), receives(1, after=(0,))), (receives(0), sends(0, after=(0,))))
    assert first_mismatch(other, senders_wait=True) is None


def test_of_many_that_are_stuck_some_are_named() -> None:
    ring = [(receives((rank - 1) % 6), sends((rank + 1) % 6, after=(0,))) for rank in range(6)]
    found = first_mismatch(trace(*ring))
    assert found is not None
    assert found.endswith("; and 2 more")
