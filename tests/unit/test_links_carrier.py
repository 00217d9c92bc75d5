"""The userspace engine's bookkeeping: delay, order, loss, jitter, account."""

from __future__ import annotations

from testbed.links.carrier import Carrier
from testbed.links.wire import Impairment

MS = 1_000_000


def release_all(carrier: Carrier, now_ns: int) -> list[bytes]:
    frames = []
    while (frame := carrier.due(now_ns)) is not None:
        carrier.sent(len(frame))
        frames.append(frame)
    return frames


def test_a_frame_leaves_after_its_delay_and_not_before() -> None:
    carrier = Carrier(Impairment(delay_s=0.005), "seed")
    carrier.accept(b"one", 1 * MS)
    assert carrier.next_release_ns == 6 * MS
    assert carrier.due(6 * MS - 1) is None
    assert release_all(carrier, 6 * MS) == [b"one"]
    assert carrier.next_release_ns is None


def test_jitter_varies_the_delay_within_bounds_and_never_reorders() -> None:
    carrier = Carrier(Impairment(delay_s=0.005, jitter_s=0.002), "seed")
    releases = []
    for number in range(500):
        arrival = number * 10 * MS
        carrier.accept(number.to_bytes(2, "big"), arrival)
        assert carrier.next_release_ns is not None
        releases.append(carrier.next_release_ns - arrival)
        release_all(carrier, carrier.next_release_ns)
    assert min(releases) >= 3 * MS
    assert max(releases) <= 7 * MS
    assert max(releases) - min(releases) > 3 * MS
    back_to_back = Carrier(Impairment(delay_s=0.005, jitter_s=0.004), "seed")
    frames = [number.to_bytes(2, "big") for number in range(500)]
    for number, frame in enumerate(frames):
        back_to_back.accept(frame, number * 1000)
    assert release_all(back_to_back, 1000 * MS) == frames


def test_the_same_seed_loses_the_same_frames() -> None:
    def survivors(seed: str) -> list[bytes]:
        carrier = Carrier(Impairment(delay_s=0.0, loss=0.1), seed)
        for number in range(2000):
            carrier.accept(number.to_bytes(2, "big"), 0)
        return release_all(carrier, 0)

    assert survivors("1/link/a_to_b") == survivors("1/link/a_to_b")
    assert survivors("1/link/a_to_b") != survivors("1/link/b_to_a")
    assert 130 < 2000 - len(survivors("1/link/a_to_b")) < 270


def test_the_books_balance_and_lateness_is_counted() -> None:
    carrier = Carrier(Impairment(delay_s=0.001), "seed")
    for _ in range(10):
        carrier.accept(b"x" * 100, 0)
    release_all(carrier, 0)  # nothing is due yet
    carrier.accept(b"x" * 100, 5 * MS)
    frame = carrier.due(1 * MS + 300_000)  # 0.3 ms late
    assert frame is not None
    carrier.refused()
    release_all(carrier, 4 * MS)  # 3 ms late
    carrier.missed(2)
    books = carrier.account()
    assert books.in_packets == 13
    assert books.in_bytes == 1100
    assert (books.out_packets, books.out_bytes) == (9, 900)
    assert (books.lost, books.overrun, books.held) == (0, 3, 1)
    assert books.in_packets == books.out_packets + books.lost + books.overrun + books.held
    late = dict(zip((*books.lateness_bounds_s, "more"), books.lateness_counts, strict=True))
    assert late[0.0005] == 1
    assert late[0.005] == 9
    assert books.lateness_max_s == 0.003
    assert carrier.account().lateness_max_s == 0.0


def test_settings_change_in_place_also_back_to_zero() -> None:
    carrier = Carrier(Impairment(delay_s=0.005), "seed")
    carrier.accept(b"late", 0)
    carrier.impairment = Impairment(delay_s=0.0)
    carrier.accept(b"soon", 1)
    assert carrier.due(1) is None  # it may not overtake
    assert release_all(carrier, 5 * MS) == [b"late", b"soon"]
    carrier.accept(b"now", 6 * MS)
    assert release_all(carrier, 6 * MS) == [b"now"]
