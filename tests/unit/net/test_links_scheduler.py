"""What leaves next, where classes have queues of their own: priorities, guarantees, limits, turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.net.links.class_scheduler import Scheduler
from testbed.net.links.emulated_direction import EmulatedDirection
from testbed.spec.link_direction import Direction, QueueClass

RATE_BPS = 1e9
SIZE = 1000
FRAME_NS = 8_000  # of SIZE bytes at RATE_BPS


def frame(dscp: int, size: int = SIZE) -> bytes:
    """An IPv4 frame of a class."""
    head = bytes(12) + b"\x08\x00" + b"\x45" + bytes([dscp << 2])
    return head + bytes(size - len(head))


def dscp_of(found: bytes) -> int:
    return found[15] >> 2


def backlogged(classes: Sequence[QueueClass], sends: Sequence[int], frames: int) -> Counter[int]:
    """Of so many frames that leave, how many of each DSCP in `sends`, all of which always have some waiting."""
    scheduler = Scheduler(classes, RATE_BPS, 10**9, None)
    for dscp in sends:
        for _ in range(20):
            scheduler.enqueue_frame(frame(dscp), 0)
    left: Counter[int] = Counter()
    free_ns = 0.0
    for _ in range(frames):
        at_ns = scheduler.next_departure(free_ns)
        assert at_ns is not None
        out = scheduler.dequeue_frame(at_ns)
        left[dscp_of(out)] += 1
        free_ns = at_ns + FRAME_NS
        scheduler.enqueue_frame(out, int(free_ns))
    return left


def test_the_first_class_goes_before_all_others() -> None:
    classes = [QueueClass("first", (46,), 0), QueueClass("second", (26,), 1), QueueClass("rest", (), 2)]
    assert backlogged(classes, [0, 26, 46], 500) == {46: 500}
    assert backlogged(classes, [0, 26], 500) == {26: 500}
    assert backlogged(classes, [0, 7], 500)[0] == pytest.approx(250, abs=20)


def test_a_guarantee_holds_against_those_that_go_first() -> None:
    classes = [QueueClass("first", (46,), 0), QueueClass("rest", (), 1, share=0.2)]
    assert backlogged(classes, [46, 0], 2000)[0] == pytest.approx(400, abs=30)


def test_a_class_that_had_the_link_alone_is_not_in_debt() -> None:
    # as in HTB, where only what goes by its guarantee counts against it, not what it borrows while nobody else sends
    classes = [
        QueueClass("first", (46,), 0),
        QueueClass("bulk", (26,), 1, share=0.6),
        QueueClass("rest", (), 2),
    ]
    scheduler, free_ns = Scheduler(classes, RATE_BPS, 10**9, None), 0.0
    left: Counter[int] = Counter()
    for number in range(12_000):
        for dscp in (26,) if number < 10_000 else (26, 46):
            if not scheduler.backlog_bytes(frame(dscp)):
                scheduler.enqueue_frame(frame(dscp), free_ns)
        at_ns = scheduler.next_departure(free_ns)
        assert at_ns is not None
        dscp = dscp_of(scheduler.dequeue_frame(at_ns))
        left[dscp] += number >= 10_000
        free_ns = at_ns + FRAME_NS
    assert left[26] == pytest.approx(1200, abs=40)


def test_equals_share_by_their_shares() -> None:
    classes = [
        QueueClass("big", (40,), 0, share=0.6),
        QueueClass("small", (41,), 0, share=0.2),
        QueueClass("rest"),
    ]
    left = backlogged(classes, [40, 41], 4000)
    assert left[40] / left[41] == pytest.approx(3, rel=0.1)
    assert backlogged(classes, [41], 300) == {41: 300}


def test_a_limit_holds_and_nothing_is_lost() -> None:
    scheduler = Scheduler([QueueClass("slow", (8,), limit=0.25), QueueClass("rest")], RATE_BPS, 10**9, None)
    for _ in range(400):
        scheduler.enqueue_frame(frame(8), 0)
    free_ns, count = 0.0, 0
    while (at_ns := scheduler.next_departure(free_ns)) is not None:
        assert dscp_of(scheduler.dequeue_frame(at_ns)) == 8
        free_ns, count = at_ns + FRAME_NS, count + 1
    assert count == 400
    assert free_ns == pytest.approx(400 * FRAME_NS * 4, rel=0.06)  # but for what goes at once


def test_each_class_has_a_queue_of_its_own() -> None:
    scheduler = Scheduler([QueueClass("a", (46,)), QueueClass("rest")], RATE_BPS, 3 * SIZE, None)
    assert [scheduler.enqueue_frame(frame(46), 0) for _ in range(4)] == [SIZE, 2 * SIZE, 3 * SIZE, None]
    assert scheduler.enqueue_frame(frame(0), 0) == SIZE
    assert (scheduler.packets, scheduler.bytes) == (4, 4 * SIZE)
    in_packets = Scheduler([QueueClass("rest")], RATE_BPS, 10**9, 2)
    assert [in_packets.enqueue_frame(frame(0), 0) is None for _ in range(3)] == [False, False, True]


def carrier(*classes: QueueClass, queue_bytes: int = 10**6) -> EmulatedDirection:
    return EmulatedDirection(Direction(RATE_BPS, 0.001, 0.0, 0.0, queue_bytes, classes=classes), seed="x")


STRICT = (QueueClass("first", (46,), 0), QueueClass("rest", (), 1))


def released(carried: EmulatedDirection, until_ns: int) -> list[tuple[int, int]]:
    """(when, DSCP) of what comes out, asked whenever the carrier says so."""
    found, now_ns = [], 0
    while (due_ns := carried.next_release_ns) is not None and due_ns <= until_ns:
        now_ns = max(now_ns, due_ns)
        while (out := carried.pop_due(now_ns)) is not None:
            found.append((now_ns, dscp_of(out)))
            carried.count_sent(len(out))
    return found


def test_an_urgent_frame_passes_those_that_wait_but_not_the_one_on_the_wire() -> None:
    carried = carrier(*STRICT)
    for _ in range(4):
        carried.accept(frame(0), 0)
    carried.accept(frame(46), 1000)
    out = released(carried, 10**9)
    assert [dscp for _, dscp in out] == [0, 46, 0, 0, 0]
    assert [when for when, _ in out] == [1_000_000 + FRAME_NS * number for number in range(1, 6)]


def test_the_books_balance_with_classes_and_when_they_come_and_go() -> None:
    carried = carrier(*STRICT, queue_bytes=3 * SIZE)
    for number in range(10):
        carried.accept(frame(46 if number % 2 else 0), number * 100)
    account = carried.stats(500)
    assert account.in_packets == account.dropped + account.held == 10
    carried.settings = Direction(RATE_BPS, 0.001, 0.0, 0.0, 3 * SIZE)
    carried.accept(frame(0), 2000)
    carried.settings = Direction(RATE_BPS, 0.001, 0.0, 0.0, 3 * SIZE, classes=STRICT)
    carried.accept(frame(46), 3000)
    out = released(carried, 10**9)
    account = carried.stats(10**9)
    assert account.held == 0
    assert account.in_packets == 12 == len(out) + account.dropped
    assert account.sent_bytes == len(out) * SIZE


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 8, 26, 46]), st.integers(60, 9000), st.integers(0, 50_000)), max_size=60
    )
)
def test_whatever_comes_leaves_once_and_never_faster_than_the_wire(
    arrivals: list[tuple[int, int, int]],
) -> None:
    classes = (
        QueueClass("first", (46,), 0),
        QueueClass("shared", (26,), 1, share=0.3),
        QueueClass("slow", (8,), 1, limit=0.2),
        QueueClass("rest", (), 2, share=0.1),
    )
    carried = carrier(*classes)
    now_ns = 0
    sizes: Counter[int] = Counter()
    for dscp, size, pause_ns in arrivals:
        now_ns += pause_ns
        carried.accept(frame(dscp, size), now_ns)
        sizes[dscp] += 1
    out = released(carried, 10**12)
    assert Counter(dscp for _, dscp in out) == sizes
    total_ns = sum(size for _, size, _ in arrivals) * 8
    assert not out or out[-1][0] >= 1_000_000 + total_ns - 1
    assert carried.stats(10**12).held == 0
