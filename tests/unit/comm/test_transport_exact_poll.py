"""epoll by nanoseconds: what it finds, how long it waits, what it does not cut short."""

from __future__ import annotations

import select
import signal
import socket
import threading
import time

import pytest

from testbed.comm.transport.event_loop import ExactPoll


@pytest.fixture
def epoll() -> select.epoll:
    return select.epoll()


def test_it_finds_what_pythons_own_finds(epoll: select.epoll) -> None:
    exact = ExactPoll(epoll.fileno())
    assert exact.works  # Linux 5.11 and newer
    assert exact.poll(0.0) == []
    pairs = [socket.socketpair() for _ in range(70)]
    for near, _ in pairs:
        epoll.register(near, select.EPOLLIN)
    for _, far in pairs[::2]:
        far.send(b"x")
    assert sorted(exact.poll(1.0)) == sorted(epoll.poll(0)) == [(near.fileno(), 1) for near, _ in pairs[::2]]
    for near, _ in pairs[::2]:
        near.recv(1)
    pairs[1][1].close()
    assert exact.poll(0.0) == epoll.poll(0) == [(pairs[1][0].fileno(), select.EPOLLIN | select.EPOLLHUP)]
    for pair in pairs:
        for end in pair:
            end.close()


def test_it_waits_as_long_as_told_and_is_woken(epoll: select.epoll) -> None:
    exact = ExactPoll(epoll.fileno())
    for wait_s in (1e-9, 50e-6, 0.02, 1.01):
        began_s = time.monotonic()
        assert exact.poll(wait_s) == []
        assert time.monotonic() - began_s >= wait_s
    near, far = socket.socketpair()
    epoll.register(near, select.EPOLLIN)
    timer = threading.Timer(0.05, far.send, (b"x",))
    timer.start()
    assert exact.poll(30.0) == [(near.fileno(), select.EPOLLIN)]
    timer.join()


def test_a_signals_handler_runs_and_its_exception_comes_out(epoll: select.epoll) -> None:
    def handle(number: int, frame: object) -> None:
        raise InterruptedError

    former = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(InterruptedError):
            ExactPoll(epoll.fileno()).poll(30.0)
    finally:
        signal.signal(signal.SIGALRM, former)


def test_who_is_closed_says_so(epoll: select.epoll) -> None:
    exact = ExactPoll(epoll.fileno())
    epoll.close()
    assert not ExactPoll(-1).works
    with pytest.raises(OSError, match="Bad file descriptor"):
        exact.poll(0.0)
