"""A rank's event loop: its sockets and a wake-up event, in one thread on one epoll instance.

`ExactPoll` is epoll with timeouts in nanoseconds, in one system call. Python's own epoll counts milliseconds, and also
reads the clock. In a guest, system calls are most of the cost of a message, because each one stops the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import platform
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from testbed.clock import clock_here

# The kernel may add a thousandth of the timeout, except for real-time processes such as ranks in a guest. Without
# epoll_pwait2, epoll counts milliseconds; select is exact but slower.
_EXACT_BELOW_S = 0.003
_EARLY_SHARE = 0.998
PR_SET_TIMERSLACK = 29

Handler = Callable[[int], None]


def ignore_events(mask: int) -> None:
    """Ignore events: the handler of a socket that is no longer watched."""


class HasDescriptor(Protocol):
    """A socket, or any other object with a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor, for epoll."""


@dataclass
class StallDetector:
    """Detects that a rank was not scheduled.

    The rank never blocks longer than `wait_s`, so it was stalled if it does not run again within `gap_s`. `gaps` has
    the times (last seen, back again) of each stall, in CLOCK_MONOTONIC.
    """

    wait_s: float
    gap_s: float
    gaps: list[tuple[float, float]] = field(default_factory=list)


class EventLoop:
    """Sockets and their handlers. `wake` may be called from any thread or from a signal handler."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._exact = ExactPoll(self._epoll.fileno())
        self._early = 1.0 if clock_here() == "free" else _EARLY_SHARE
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._handlers: dict[int, Handler] = {self._bell: self._on_bell}
        self._masks: dict[int, int] = {}
        self._priorities: dict[int, int] = {}  # priorities of descriptors, if above 0

    @property
    def closed(self) -> bool:
        """Whether the loop is closed."""
        return self._epoll.closed

    def poll(self, timeout_s: float | None) -> Events:
        """Return the ready sockets as (descriptor, epoll mask), blocking for up to `timeout_s` (None: forever)."""
        if timeout_s is None:
            return self._epoll.poll()
        # wake up too early rather than too late; the caller polls again for the remaining time
        if self._exact.works:
            return self._exact.poll(timeout_s * self._early if timeout_s > _EXACT_BELOW_S else timeout_s)
        if timeout_s > _EXACT_BELOW_S:
            return self._epoll.poll((math.floor(timeout_s * 995.0 - 1.0) - 0.5) / 1000.0)  # rounded up
        if timeout_s > 0:
            readable, _, _ = select.select((self._epoll,), (), (), timeout_s)
            if not readable:
                return []
        return self._epoll.poll(0)

    def handle(self, events: Events) -> None:
        """Call the handlers of events, the highest priority first."""
        if self._priorities and len(events) > 1:
            events.sort(key=lambda event: -self._priorities.get(event[0], 0))
        handlers = self._handlers
        for descriptor, mask in events:
            handler = handlers.get(descriptor)
            if handler is not None:
                handler(mask)

    def watch(self, sock: HasDescriptor, mask: int, handler: Handler, priority: int = 0) -> None:
        """Call `handler` for the events of a socket in `mask`; a mask of 0 stops watching."""
        descriptor = sock.fileno()
        before = self._masks.get(descriptor, 0)
        if not mask:
            if before:
                self._epoll.unregister(descriptor)
                del self._masks[descriptor], self._handlers[descriptor]
                self._priorities.pop(descriptor, None)
            return
        if mask != before:
            if before:
                self._epoll.modify(descriptor, mask)
            else:
                self._epoll.register(descriptor, mask)
            self._masks[descriptor] = mask
        self._handlers[descriptor] = handler
        if priority:
            self._priorities[descriptor] = priority

    def handler_of(self, sock: socket.socket) -> Handler:
        """Return the handler of a watched socket."""
        return self._handlers[sock.fileno()]

    def wake(self) -> None:
        """Make `poll` return."""
        with contextlib.suppress(OSError):  # closed concurrently
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Close the loop."""
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._bell)
            self._bell = -1

    def _on_bell(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)


def set_timer_slack() -> None:
    """Make the kernel wake this thread on time rather than up to 50 us late (the default).

    When a thread waits on sockets, the kernel may add a further 0.1 % of the timeout as slack, except for real-time
    processes. In a guest, where computing takes no time, the real-time class delays no other process.
    """
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    if clock_here() == "free":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


Events = list[tuple[int, int]]

_EPOLL_PWAIT2 = 441  # Linux 5.11; the same number on all architectures
_SIGNAL_SET_BYTES = 8
_MAX_EVENTS = 64

_libc = ctypes.CDLL(None, use_errno=True)


class _Event(ctypes.Structure):
    _pack_ = 1
    _fields_ = (
        ("events", ctypes.c_uint32),
        ("gap", ctypes.c_char * (0 if platform.machine() == "x86_64" else 4)),
        ("descriptor", ctypes.c_int32),  # Python fills only these four of the eight bytes of user data
        ("rest", ctypes.c_uint32),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


class ExactPoll:
    """epoll_pwait2 on one epoll instance, given by its descriptor. `works` says whether this kernel has the call."""

    def __init__(self, descriptor: int) -> None:
        self._events = (_Event * _MAX_EVENTS)()
        self._time = _Time()
        self._arguments = (
            ctypes.c_long(_EPOLL_PWAIT2),
            ctypes.c_long(descriptor),
            ctypes.byref(self._events),
            ctypes.c_long(_MAX_EVENTS),
            ctypes.byref(self._time),
            None,
            ctypes.c_long(_SIGNAL_SET_BYTES),
        )
        try:
            self.poll(0.0)
            self.works = True
        except OSError:
            self.works = False

    def poll(self, timeout_s: float) -> Events:
        """Return the ready sockets as (descriptor, epoll mask), blocking for up to `timeout_s`. Raises OSError."""
        # round up to a nanosecond, except for rounding errors of seconds as floats
        left_ns = max(1, math.ceil(timeout_s * 1e9 - 0.01)) if timeout_s > 0 else 0
        self._time.seconds, self._time.nanoseconds = divmod(left_ns, 1_000_000_000)
        found = _libc.syscall(*self._arguments)
        if found < 0:
            number = ctypes.get_errno()
            if number == errno.EINTR:
                return []
            raise OSError(number, os.strerror(number))
        return [(event.descriptor, event.events) for event in self._events[:found]]
