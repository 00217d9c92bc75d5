"""What replicas that came and went cost, from the coordinator's records."""

from __future__ import annotations

from typing import Any

from testbed.measure.results.replication import replication_summary
from testbed.measure.results.summary import gather_steps, middle_step, undisturbed_steps
from testbed.spec.scale import Scale


def committed(time_s: float, step: int, epoch: int, members: list[int]) -> dict[str, Any]:
    return {"event": "committed", "time_s": time_s, "step": step, "epoch": epoch, "members": members}


def step(number: int, start_s: float, end_s: float, given: int = 0) -> dict[str, Any]:
    return {"trial": number - 1, "start_s": start_s, "end_s": end_s, "given_bytes": given}


BOTH = [0, 1]


def ftar_records() -> list[dict[str, Any]]:
    """A step a second, from 10 s on; replica 1 is lost at 13.2 s, known at 13.4 s, and back from 16.5 s on."""
    return [
        {"event": "view", "time_s": 9.0, "step": 0, "epoch": 1, "members": BOTH},
        {"event": "start", "time_s": 10.0, "step": 1, "epoch": 1, "start_s": 10.1},
        *(committed(10.0 + number, number, 1, BOTH) for number in range(4)),
        {"event": "lost", "time_s": 13.4, "replica": 1, "rank": 3, "why": "silence", "member": True},
        {"event": "view", "time_s": 13.5, "step": 4, "epoch": 2, "members": [0], "settled": 1},
        committed(14.7, 4, 2, [0]),
        {"event": "returned", "time_s": 14.9, "replica": 1},
        {"event": "catch up", "time_s": 14.9, "replica": 1, "source": 0, "attempt": 1},
        committed(15.6, 5, 2, [0]),
        {"event": "caught up", "time_s": 16.0, "replica": 1, "attempt": 1},
        committed(16.5, 6, 2, [0]),
        {"event": "joined", "time_s": 16.5, "replica": 1, "step": 7},
        {"event": "view", "time_s": 16.5, "step": 7, "epoch": 3, "members": BOTH},
        committed(17.5, 7, 3, BOTH),
        committed(18.5, 8, 3, BOTH),
    ]


def summary(records: list[dict[str, Any]], steps: list[dict[str, Any]], mode: str = "ftar") -> dict[str, Any]:
    kill = {"begins": True, "time_s": 13.2}
    back = {"begins": False, "time_s": 14.5}
    scale = Scale(10.0, 2.0)
    return replication_summary(
        records, steps, [kill, back], scale, replicas=2, mode=mode, catch_up="blocking", warmup=1
    )


def test_a_loss_that_others_survive() -> None:
    steps = [step(1, 10.1, 11.0), step(5, 14.7, 15.6, given=300), step(6, 15.6, 16.5, given=100)]
    found = summary(ftar_records(), steps)
    (loss,) = found["losses"]
    assert found["period_s"] == 0.5  # of a real second two are made
    assert loss["detected_s"] == (13.4 - 13.2) / 2
    assert abs(loss["stall_s"] - 0.7 / 2) < 1e-9
    assert loss["steps_lost"] == 0
    assert abs(loss["returned_s"] - 1.5 / 2) < 1e-9
    assert abs(loss["catch_up_s"] - 1.1 / 2) < 1e-9
    assert loss["catch_up_bytes"] == 4000
    assert abs(loss["full_s"] - 3.1 / 2) < 1e-9
    # five steps of both and three of one, in 8.4 s
    assert abs(found["effective"] - (5 + 3 / 2) / 8.4) < 1e-9
    assert [entry["replicas"] for entry in found["commits"]] == [2, 2, 2, 1, 1, 1, 2, 2]


def test_a_loss_that_all_begin_again_after() -> None:
    records = [
        {"event": "start", "time_s": 10.0, "step": 1, "epoch": 1, "start_s": 10.1},
        *(committed(10.0 + number, number, 1, BOTH) for number in range(4)),
        {"event": "lost", "time_s": 13.4, "replica": 1, "rank": 3, "why": "closed", "member": True},
        {"event": "restart", "time_s": 13.4, "step": 4, "checkpoint": 2},
        {"event": "view", "time_s": 23.4, "step": 2, "epoch": 2, "members": BOTH},
        *(committed(22.5 + number, number, 2, BOTH) for number in range(2, 6)),
    ]
    found = summary(records, [step(1, 10.1, 11.0)], mode="restart")
    (loss,) = found["losses"]
    assert loss["steps_lost"] == found["steps_lost"] == 2
    assert abs(loss["stall_s"] - (24.5 - 13.0 - 1.0) / 2) < 1e-9
    assert abs(loss["full_s"] - 5.0) < 1e-9
    # steps 1 to 5 stand
    assert abs(found["effective"] - 5 / (27.5 - 10.1)) < 1e-9


def test_steps_of_fewer_replicas_are_disturbed() -> None:
    def sample(number: int, rank: int, **more: Any) -> dict[str, Any]:
        seen = {"stopped_s": [], "given_bytes": 0, "replicas": BOTH, **more}
        times = {"start_s": float(number), "end_s": number + 1.0 - number / 10}
        head = {"operation": "step", "step": number, "rank": rank, "variant": "v", "trial": number}
        return {**head, **times, "sent_bytes": {}, "wrong": 0, "checked": 1, **seen}

    samples = [
        *(sample(0, rank) for rank in range(2)),
        sample(1, 0, replicas=[0]),
        *(sample(2, rank, given_bytes=8 * (1 - rank)) for rank in range(2)),
        *(sample(3, rank, stopped_s=[0.1]) for rank in range(2)),
        *(sample(4, rank) for rank in range(2)),
    ]
    steps = gather_steps(samples, 2)
    assert [one.disturbed for one in steps] == [False, True, True, True, False]
    assert [one.index for one in undisturbed_steps(steps)] == [0, 4]
    assert middle_step(steps).index == 4
