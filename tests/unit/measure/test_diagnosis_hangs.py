"""Verdicts on dumps of a few ranks, written by hand: what each says, and why."""

from __future__ import annotations

from dataclasses import replace

from testbed.comm.flight_recorder import (
    COMPLETED,
    FAILED,
    SCHEDULED,
    STARTED,
    Entry,
    GroupRecord,
    PeerTraffic,
    RankDump,
)
from testbed.measure.diagnosis.diagnose import diagnose

PAIR = GroupRecord(1, "tensor 0", (0, 1))
ALL = GroupRecord(2, "everybody", (0, 1, 2, 3))
BOTH = GroupRecord(3, "data 0", (0, 1))


def entry(group: int, sequence: int, state: str = STARTED, at_s: float = 1.0, **more: object) -> Entry:
    """One all-reduce of 100 bytes."""
    ended_s = at_s + 0.1 if state == COMPLETED else at_s + 5 if state == FAILED else None
    own = Entry(
        group,
        sequence,
        "all_reduce",
        dtype="float32",
        op="sum",
        size_bytes=100,
        state=state,
        scheduled_s=at_s,
        started_s=at_s,
        ended_s=ended_s,
    )
    return replace(own, **more)  # type: ignore[arg-type]


def waits(*peers: int, sent: int = 1, received: int = 0) -> dict[int, PeerTraffic]:
    """Of an operation that has sent each peer messages, and expects one more than have come."""
    return {
        peer: PeerTraffic(sent, 50 * sent, 1.0, 1.0, received + 1, 50 * (received + 1), 1.0, received)
        for peer in peers
    }


def dump(
    rank: int, *entries: Entry, ended: str = "", groups: tuple[GroupRecord, ...] = (PAIR, ALL, BOTH)
) -> RankDump:
    """One rank's, made at second ten."""
    return RankDump(rank, f"host-{rank}", 10.0, ended, groups, entries)


def before(group: int = 1) -> Entry:
    """An operation that is over."""
    return entry(group, 1, COMPLETED, 0.5)


def test_ranks_that_wait_for_each_other_in_two_groups_are_deadlocked() -> None:
    found = diagnose(
        [
            dump(0, before(), before(3), entry(1, 2, peers=waits(1, sent=1))),
            dump(1, before(), before(3), entry(3, 2, peers=waits(0, sent=1))),
        ]
    )
    (verdict,) = found.verdicts
    assert (verdict.kind, verdict.ranks) == ("DEADLOCK", (0, 1))
    assert "rank 0 waits in all_reduce #2 of tensor 0" in verdict.evidence
    assert "rank 1 waits in all_reduce #2 of data 0" in verdict.evidence
    assert found.first_incomplete == "all_reduce #2 of tensor 0"


def test_a_rank_that_has_not_come_is_found_through_those_that_wait_for_others() -> None:
    # 0 waits for 3, 1 for 0, 2 for 1; 3 is in no operation
    dumps = [dump(rank, before(2), entry(2, 2, peers=waits((rank - 1) % 4, sent=0))) for rank in range(3)]
    (verdict,) = diagnose([*dumps, dump(3, before(2))]).verdicts
    assert (verdict.kind, verdict.ranks, verdict.felt_by) == ("RANK_NOT_JOINED", (3,), 3)
    assert "all_reduce #2 of everybody: 3 of 4 ranks have joined" in verdict.evidence


def test_a_rank_that_has_gone_on_without_an_operation_left_it_out() -> None:
    dumps = [dump(rank, before(2), entry(2, 2, peers=waits((rank - 1) % 4, sent=0))) for rank in range(3)]
    gone_on = dump(3, before(2), entry(2, 3, peers=waits(2, sent=0)))
    (verdict,) = diagnose([*dumps, gone_on]).verdicts
    assert (verdict.kind, verdict.ranks) == ("RANK_NOT_JOINED", (3,))
    assert "rank 3 has continued with later operations of everybody" in verdict.evidence


def test_messages_that_one_has_sent_and_the_other_has_not_got_are_in_the_network() -> None:
    ahead = {
        1: PeerTraffic(sent=3, expected=3, received=2, sent_first_s=1.0, sent_last_s=1.2, received_last_s=1.1)
    }
    behind = {
        0: PeerTraffic(
            sent=2, expected=3, received=1, sent_first_s=1.0, sent_last_s=1.1, received_last_s=1.05
        )
    }
    (verdict,) = diagnose(
        [dump(0, before(), entry(1, 2, peers=ahead)), dump(1, before(), entry(1, 2, peers=behind))]
    ).verdicts
    assert (verdict.kind, verdict.ranks, verdict.since_s) == ("STUCK_IN_NETWORK", (0, 1), 1.2)
    assert verdict.reason == "the network paths are unknown"


def test_all_ranks_of_a_host_that_ended_are_one_host() -> None:
    group = GroupRecord(1, "everybody", (0, 1, 2))
    killed = [
        replace(dump(rank, entry(1, 1), ended="killed by signal 9", groups=(group,)), host="h")
        for rank in (0, 1)
    ]
    waiting = dump(2, entry(1, 1, FAILED, peers=waits(1)), groups=(group,))
    first = diagnose([*killed, waiting]).verdicts[0]
    assert (first.kind, first.ranks, first.component) == ("CRASHED", (0, 1), "host h")
    assert first.who == "host h"


def test_a_rank_that_gave_up_because_an_operation_failed_did_not_crash() -> None:
    gave_up = [
        dump(rank, before(), entry(1, 2, FAILED, peers=waits(1 - rank, sent=rank)), ended="exit status 1")
        for rank in (0, 1)
    ]
    found = diagnose(gave_up).verdicts
    assert [own.kind for own in found] == [
        "STUCK_IN_NETWORK"
    ]  # from 1, which has sent, to 0, which has not got it
    assert found[0].ranks == (1, 0)


TWO_AND_TWO = (
    GroupRecord(1, "data 0", (0, 2)),
    GroupRecord(2, "data 1", (1, 3)),
    GroupRecord(3, "tensor", (2, 3)),
)


def impatient() -> list[RankDump]:
    """Ranks 0 and 1 of four gave up waiting for 2 and 3. No operation failed, as those have not come to it."""
    return [
        dump(
            rank,
            entry(rank + 1, 1, peers=waits(rank + 2)),
            ended=f"all_reduce #1 on rank {rank}: not done within 5 s; waits to receive from rank {rank + 2}",
            groups=TWO_AND_TWO,
        )
        for rank in (0, 1)
    ]


def test_a_rank_that_was_at_work_after_others_had_given_up_is_not_silent() -> None:
    late = {3: PeerTraffic(1, 50, 9.8, 9.8, 1, 50, 9.8, 0)}
    sent = {2: PeerTraffic(1, 50, 9.8, 9.8, 2, 100, 9.8, 1, 50, 9.9)}
    at_work = [
        dump(2, before(3), entry(3, 7, at_s=9.8, peers=late), groups=TWO_AND_TWO),
        dump(3, before(3), entry(3, 7, at_s=9.8, peers=sent), groups=TWO_AND_TWO),
    ]
    # what it waits for was sent a moment ago, which is nobody's fault yet
    assert diagnose([*impatient(), *at_work]).verdicts == ()


def test_a_rank_that_waits_for_what_was_not_sent_is_not_silent() -> None:
    """Not for as long as others' patience was."""
    patient = dump(2, before(3), entry(3, 7, at_s=5.5, peers=waits(3, sent=0)), groups=TWO_AND_TWO)
    busy = dump(3, before(3), entry(3, 6, COMPLETED, 9.5), groups=TWO_AND_TWO)
    first = diagnose([*impatient(), patient, busy]).verdicts[0]
    assert (first.kind, first.ranks) == ("RANK_NOT_JOINED", (3,))


def test_a_control_part_that_does_not_end_is_the_ranks_own() -> None:
    hangs = entry(1, 2, SCHEDULED, started_s=None)
    (verdict,) = diagnose([dump(0, before(), hangs), dump(1, before(), entry(1, 2, peers=waits(0)))]).verdicts
    assert (verdict.kind, verdict.ranks) == ("SLOW_IO", (0,))


def test_two_ranks_of_which_nobody_knows_who_is_right_are_both_named() -> None:
    small = entry(1, 1, size_bytes=50)
    (verdict, *_) = diagnose([dump(0, small), dump(1, entry(1, 1))]).verdicts
    assert (verdict.kind, verdict.ranks, verdict.certainty) == ("MISMATCH", (0, 1), 0.5)


def test_a_group_like_it_says_who_of_two_is_right() -> None:
    other = GroupRecord(4, "tensor 1", (2, 3))
    groups = (PAIR, other)
    right = [dump(rank, entry(4, 1), groups=groups) for rank in (2, 3)]
    wrong = dump(0, entry(1, 1, dtype="bfloat16"), groups=groups)
    (verdict, *_) = diagnose([wrong, dump(1, entry(1, 1), groups=groups), *right]).verdicts
    assert (verdict.kind, verdict.ranks) == ("MISMATCH", (0,))
    assert "type" in verdict.look_at


def test_sizes_that_may_differ_are_no_mismatch() -> None:
    uneven = [
        dump(rank, entry(1, 1, COMPLETED, name="all_to_all_single", size_bytes=10 * rank)) for rank in (0, 1)
    ]
    assert diagnose(uneven).verdicts == ()


def test_without_counts_of_messages_it_says_who_is_missing() -> None:
    dumps = [dump(rank, before(2), entry(2, 2)) for rank in (0, 1, 2)]
    (verdict,) = diagnose([*dumps, dump(3, before(2))]).verdicts
    assert (verdict.kind, verdict.ranks) == ("RANK_NOT_JOINED", (3,))


def test_nothing_recorded_is_nothing_wrong() -> None:
    found = diagnose([dump(0), dump(1)])
    assert (found.verdicts, found.naive.rank, found.first_incomplete) == ((), None, "")


def test_groups_that_were_split_off_at_once_share_a_number_and_are_not_one() -> None:
    low, high = GroupRecord(5, "data", (0, 1)), GroupRecord(5, "data", (2, 3))
    small = [dump(rank, entry(5, 1, COMPLETED), groups=(low,)) for rank in (0, 1)]
    large = [dump(rank, entry(5, 1, COMPLETED, size_bytes=200), groups=(high,)) for rank in (2, 3)]
    assert diagnose([*small, *large]).verdicts == ()
    late = dump(3, groups=(high,))
    (verdict,) = diagnose(
        [*small, dump(2, entry(5, 1), ended="exit status 1", groups=(high,)), late]
    ).verdicts
    assert (verdict.kind, verdict.ranks) == ("RANK_NOT_JOINED", (3,))
    assert "all_reduce #1 of data of ranks 2 and 3: 1 of 2 ranks have joined" in verdict.evidence
