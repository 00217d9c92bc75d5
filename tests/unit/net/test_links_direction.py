"""The userspace engine's bookkeeping: queue, serialisation, delay, order, loss, jitter, account."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest

from testbed.net.links.emulated_direction import QUEUE_HISTOGRAM_BINS, EmulatedDirection
from testbed.spec.link_direction import PACKET_FAULTS, Direction, LossBursts

MS = 1_000_000
INSTANT_BPS = 8e18


def link(rate_bps: float = INSTANT_BPS, delay_s: float = 0.0, **more: Any) -> Direction:
    """A direction without a queue's limit or a rate to speak of, unless given."""
    return Direction(rate_bps, delay_s, **({"jitter_s": 0.0, "loss": 0.0, "queue_bytes": 1 << 40} | more))


def release_all(carrier: EmulatedDirection, now_ns: int) -> list[bytes]:
    frames = []
    while (frame := carrier.pop_due(now_ns)) is not None:
        carrier.count_sent(len(frame))
        frames.append(frame)
    return frames


def numbered(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") for number in range(count)]


def delays_ns(settings: Direction, count: int = 4000) -> list[int]:
    """Of frames that come far apart."""
    carrier, found = EmulatedDirection(settings, "seed"), []
    for frame in numbered(count):
        arrival = int.from_bytes(frame, "big") * 1000 * MS
        carrier.accept(frame, arrival)
        assert carrier.next_release_ns is not None
        found.append(carrier.next_release_ns - arrival)
        release_all(carrier, carrier.next_release_ns)
    return found


def test_a_frame_leaves_after_its_delay_and_not_before() -> None:
    carrier = EmulatedDirection(link(delay_s=0.005), "seed")
    carrier.accept(b"one", 1 * MS)
    assert carrier.next_release_ns == 6 * MS
    assert carrier.pop_due(6 * MS - 1) is None
    assert release_all(carrier, 6 * MS) == [b"one"]
    assert carrier.next_release_ns is None


@pytest.mark.parametrize("jitter_s", [0.0, 1e-12])
def test_the_edge_that_a_frame_only_passes_is_left_to_the_next_link(jitter_s: float) -> None:
    here, elsewhere = (bytes.fromhex(f"02000a00000{last}") for last in (1, 2))
    first, second = (EmulatedDirection(link(delay_s=0.005, jitter_s=jitter_s), "seed") for _ in range(2))
    first.set_lead(300_000, [here])
    second.set_lead(300_000, [elsewhere])
    # the edge between the two, half of what a link's path adds, is made up for by the second link alone
    first.accept(elsewhere + b"payload", 1 * MS)
    assert first.next_release_ns == pytest.approx(6 * MS - 150_000, abs=1)
    second.accept(elsewhere + b"payload", 1 * MS)
    assert second.next_release_ns == pytest.approx(6 * MS - 300_000, abs=1)
    alone = EmulatedDirection(link(delay_s=0.005, jitter_s=jitter_s), "seed")
    alone.set_lead(300_000)
    alone.accept(elsewhere + b"payload", 1 * MS)
    assert alone.next_release_ns == pytest.approx(6 * MS - 300_000, abs=1)


def test_frames_are_put_on_the_wire_one_after_the_other_at_the_rate() -> None:
    carrier = EmulatedDirection(link(rate_bps=8e6, delay_s=0.01), "seed")  # a microsecond per byte
    carrier.accept(b"x" * 1000, 0)
    carrier.accept(b"y" * 500, 0)
    carrier.accept(b"z" * 100, 5 * MS)  # the wire has been free since 1.5 ms
    found = []
    while (due := carrier.next_release_ns) is not None:
        found.append(due)
        release_all(carrier, due)
    assert found == [11 * MS, 11 * MS + MS // 2, 15 * MS + MS // 10]


def test_a_full_queue_drops_what_comes_last() -> None:
    carrier = EmulatedDirection(link(rate_bps=8e6, queue_bytes=2500), "seed")
    for letter in b"abcd":
        carrier.accept(bytes([letter]) * 1000, 0)
    books = carrier.stats(0)
    assert (books.in_packets, books.dropped, books.held) == (4, 2, 2)
    assert (books.queue_bytes, books.queue_peak_bytes, books.sent_bytes) == (2000, 2000, 0)
    assert sum(books.queue_counts) == 4
    carrier.accept(b"e" * 1000, MS // 2)  # half of the first is gone: 1500 + 1000 fit
    assert [frame[:1] for frame in release_all(carrier, 10 * MS)] == [b"a", b"b", b"e"]
    assert carrier.stats(10 * MS).sent_bytes == 3000


def test_a_queue_may_be_limited_in_packets() -> None:
    carrier = EmulatedDirection(link(rate_bps=8e6, queue_packets=3), "seed")
    for _ in range(5):
        carrier.accept(b"x" * 1000, 0)
    carrier.accept(b"y" * 1000, MS)  # one has left
    assert carrier.stats(MS).dropped == 2
    assert len(release_all(carrier, 100 * MS)) == 4


def test_queue_occupancy_is_counted_as_arrivals_find_it() -> None:
    carrier = EmulatedDirection(link(rate_bps=8e6, queue_bytes=6400), "seed")
    for _ in range(6):
        carrier.accept(b"x" * 1000, 0)
    counts = carrier.stats(0).queue_counts
    assert len(counts) == QUEUE_HISTOGRAM_BINS
    assert [index for index, count in enumerate(counts) if count] == [0, 10, 20, 30, 40, 50]


IPV4_ECT = bytes(12) + b"\x08\x00" + bytes.fromhex("4502003c1c4640004006b1e4ac100a63ac100a0c") + bytes(40)


def checksum(header: bytes) -> int:
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_from_the_threshold_on_capable_packets_are_marked_with_a_right_checksum() -> None:
    carrier = EmulatedDirection(link(rate_bps=8e6, ecn_bytes=100), "seed")
    plain = IPV4_ECT[:15] + b"\x00" + IPV4_ECT[16:]
    for frame in (IPV4_ECT, IPV4_ECT, IPV4_ECT, plain):
        carrier.accept(frame, 0)
    first, second, third, last = release_all(carrier, 100 * MS)
    assert (first, second, last) == (IPV4_ECT, IPV4_ECT, plain)
    assert third[15] & 3 == 3
    assert checksum(third[14:34]) == checksum(IPV4_ECT[14:34])
    assert carrier.stats(0).marked == 1


@pytest.mark.parametrize("correlation", [0.0, 0.8])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "pareto"])
def test_jitter_has_its_size_and_distribution_whatever_its_correlation(
    distribution: str, correlation: float
) -> None:
    settings = link(
        delay_s=0.05, jitter_s=0.004, jitter_distribution=distribution, jitter_correlation=correlation
    )
    found = [delay / MS - 50 for delay in delays_ns(settings, 20_000)]
    deviation = (
        4 / 3**0.5 if distribution == "uniform" else 4
    )  # a uniform one's size is its largest deviation
    tail = 0.35 if distribution == "pareto" else 0.1  # whose fourth moment is infinite
    assert abs(statistics.mean(found)) < 0.4
    assert statistics.stdev(found) == pytest.approx(deviation, rel=tail)
    assert statistics.correlation(found[1:], found[:-1]) == pytest.approx(correlation, abs=0.15)
    if distribution == "uniform":
        assert max(map(abs, found)) <= 4
    assert (statistics.median(found) < -0.5) == (distribution == "pareto")


def test_jitter_never_reorders_and_no_delay_is_negative() -> None:
    assert min(delays_ns(link(delay_s=0.001, jitter_s=0.001, jitter_distribution="normal"))) == 0
    carrier = EmulatedDirection(link(delay_s=0.005, jitter_s=0.004), "seed")
    frames = numbered(500)
    for number, frame in enumerate(frames):
        carrier.accept(frame, number * 1000)
    assert release_all(carrier, 1000 * MS) == frames


def survivors(seed: str, **settings: Any) -> set[bytes]:
    carrier = EmulatedDirection(link(**settings), seed)
    for frame in numbered(20_000):
        carrier.accept(frame, 0)
    return set(release_all(carrier, 1000 * MS))


def test_the_same_seed_loses_the_same_frames() -> None:
    kept = survivors("1/link/a_to_b", loss=0.1)
    assert kept == survivors("1/link/a_to_b", loss=0.1)
    assert kept == survivors("1/link/a_to_b", loss=0.1, delay_s=0.01, jitter_s=0.005, duplicate=0.1)
    assert kept != survivors("1/link/b_to_a", loss=0.1)
    assert 1800 < 20_000 - len(kept) < 2200


def test_losses_come_in_bursts() -> None:
    bursts = LossBursts(enter=0.01, leave=0.25, loss=0.9, loss_between=0.001)
    kept = survivors("seed", loss_bursts=bursts)
    lost = [frame not in kept for frame in numbered(20_000)]
    assert sum(lost) / 20_000 == pytest.approx(bursts.mean, rel=0.2)
    after_a_loss = [now for before, now in itertools.pairwise(lost) if before]
    assert sum(after_a_loss) / len(after_a_loss) == pytest.approx(0.75 * 0.9, rel=0.1)


@pytest.mark.parametrize("fault", PACKET_FAULTS)
def test_every_declared_fault_is_drawn_and_counted(fault: str) -> None:
    carrier = EmulatedDirection(link(delay_s=0.005, **{fault: 1.0}), "seed")
    for _ in range(10):
        carrier.accept(bytes(64), 0)
    assert carrier.stats(0).faults == {name: 10 * (name == fault) for name in PACKET_FAULTS}


def test_duplicates_and_broken_frames_are_as_many_as_asked() -> None:
    carrier = EmulatedDirection(link(duplicate=0.1, corrupt=0.05), "seed")
    for _ in range(10_000):
        carrier.accept(bytes(64), 0)
    found = release_all(carrier, MS)
    books = carrier.stats(MS)
    assert books.duplicated == len(found) - 10_000
    assert 900 < books.duplicated < 1100
    assert 400 < books.faults["corrupt"] < 600
    broken = [frame for frame in found if any(frame)]
    assert books.faults["corrupt"] <= len(broken) < books.faults["corrupt"] * 1.3  # some of them twice
    for frame in broken:
        assert int.from_bytes(frame, "big").bit_count() == 1
        assert not any(frame[:14])


def test_who_overtakes_leaves_at_once_and_the_others_keep_their_order() -> None:
    carrier = EmulatedDirection(link(delay_s=0.005, reorder=0.1), "seed")
    frames = numbered(1000)
    for number, frame in enumerate(frames):
        carrier.accept(frame, number * 1000)
    at_once = release_all(carrier, 1 * MS)
    rest = release_all(carrier, 1000 * MS)
    assert carrier.stats(0).faults["reorder"] == len(at_once)
    assert 70 < len(at_once) < 130
    assert sorted(at_once) == at_once
    assert sorted(rest) == rest
    assert sorted(at_once + rest) == frames


def test_the_books_balance_and_lateness_is_counted() -> None:
    carrier = EmulatedDirection(link(delay_s=0.001), "seed")
    for _ in range(10):
        carrier.accept(b"x" * 100, 0)
    release_all(carrier, 0)  # nothing is due yet
    carrier.accept(b"x" * 100, 5 * MS)
    frame = carrier.pop_due(1 * MS + 300_000)  # 0.3 ms late
    assert frame is not None
    carrier.count_refused()
    release_all(carrier, 4 * MS)  # 3 ms late
    carrier.count_missed(2)
    books = carrier.stats(5 * MS)
    assert books.in_packets == 13
    assert books.in_bytes == 1100
    assert (books.out_packets, books.out_bytes) == (9, 900)
    assert (books.lost, books.overrun, books.held) == (0, 3, 1)
    late = dict(zip((*books.lateness_bounds_s, "more"), books.lateness_counts, strict=True))
    assert late[0.0005] == 1
    assert late[0.005] == 9
    assert books.lateness_max_s == 0.003
    assert carrier.stats(5 * MS).lateness_max_s == 0.0


def test_with_everything_on_the_books_balance() -> None:
    settings = link(
        rate_bps=8e8,
        delay_s=0.002,
        jitter_s=0.001,
        queue_bytes=20_000,
        loss=0.05,
        duplicate=0.05,
        reorder=0.05,
        corrupt=0.05,
    )
    carrier = EmulatedDirection(settings, "seed")
    for number in range(5000):
        carrier.accept(bytes(1000), number * 8_000)
        release_all(carrier, number * 8_000)
    books = carrier.stats(5000 * 8_000)
    assert books.dropped > 0
    assert books.in_packets + books.duplicated == (
        books.out_packets + books.lost + books.cut + books.dropped + books.overrun + books.held
    )


def test_settings_change_in_place_also_back_to_zero() -> None:
    carrier = EmulatedDirection(link(delay_s=0.005), "seed")
    carrier.accept(b"late", 0)
    carrier.settings = link()
    carrier.accept(b"soon", 1)
    assert carrier.pop_due(1) is None  # it may not overtake
    assert release_all(carrier, 5 * MS) == [b"late", b"soon"]
    carrier.accept(b"now", 6 * MS)
    assert release_all(carrier, 6 * MS) == [b"now"]
    carrier.settings = link(rate_bps=8e6)
    carrier.accept(b"x" * 1000, 7 * MS)
    assert carrier.next_release_ns == 8 * MS


def test_a_cut_link_loses_what_is_in_it_and_what_comes_until_it_is_mended() -> None:
    carrier = EmulatedDirection(link(delay_s=0.005), "seed")
    carrier.accept(b"before", 0)
    carrier.cut(0)
    carrier.accept(b"meanwhile", 1 * MS)
    assert carrier.next_release_ns is None
    carrier.restore(0)
    carrier.accept(b"after", 2 * MS)
    assert release_all(carrier, 100 * MS) == [b"after"]
    books = carrier.stats(100 * MS)
    assert (books.in_packets, books.cut, books.lost, books.out_packets, books.held) == (3, 2, 0, 1, 0)
