"""A tunnel's measurement, over ends that lose what a network between machines loses."""

from __future__ import annotations

import time

import pytest

from testbed.net.fabric import tunnel

Frame = tuple[bytes, int, float, int]


class LossyEnd:
    """Answers as the other end would; large frames get lost in the first `failures` bursts there and back."""

    def __init__(self, failures: int, small_frames: bool = True) -> None:
        self.failures = failures
        self.small_frames = small_frames
        self.bursts = 0
        self.coming: list[Frame] = []

    def send(self, what: bytes, number: int = 0, figure: float = 0.0, data: bytes = b"") -> None:
        if what == tunnel.ECHO and self.small_frames:
            self.coming.append((tunnel.ECHOED, number, 0.0, 46))
        elif what == tunnel.COUNT and self.small_frames:
            self.coming.append((tunnel.COUNTED, 90_000 if self.passes() else 0, 0.001, 46))
        elif what == tunnel.SEND and self.passes():
            self.coming += [(tunnel.DATA, 0, 0.0, 9000)] * 10

    def passes(self) -> bool:
        return self.small_frames and self.bursts > self.failures

    def receive(self, timeout_s: float) -> Frame | None:
        return self.coming.pop(0) if self.coming else None

    def burst(self) -> None:
        self.bursts += 1


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def measured(end: LossyEnd) -> tunnel.TunnelMeasurement:
    return tunnel.measure_tunnel(end, "machine2", "west", 1e9)  # type: ignore[arg-type]


def test_large_frames_that_fragments_of_others_keep_out_are_tried_again(slept: list[float]) -> None:
    found = measured(end := LossyEnd(failures=3))
    assert end.bursts == 4
    assert slept.count(tunnel.RETRY_INTERVAL_S) == 3
    assert found.there_bps == pytest.approx(90_000 * 8 / 0.001)
    assert found.back_bps > 0


def test_it_is_given_up_when_fragments_would_be_gone_and_says_what_is_missing(slept: list[float]) -> None:
    found = measured(LossyEnd(failures=1000))
    assert sum(slept) > 30
    assert (found.there_bps, found.back_bps) == (0, 0)
    assert found.missing == "small frames come back and large ones do not"


def test_nothing_is_tried_again_where_no_frame_comes_back(slept: list[float]) -> None:
    found = measured(end := LossyEnd(failures=0, small_frames=False))
    assert end.bursts == 1
    assert found.missing == "no frames come back"
