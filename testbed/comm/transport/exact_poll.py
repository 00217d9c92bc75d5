"""epoll with time-outs in nanoseconds, by one system call: Python's counts milliseconds, and reads the clock as well.

Each of them is a stop of a guest's program, which is most of what a message costs there.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform

Events = list[tuple[int, int]]

_EPOLL_PWAIT2 = 441  # Linux 5.11; the same number on all processors
_SIGNAL_SET_BYTES = 8
_MOST_EVENTS = 64

_libc = ctypes.CDLL(None, use_errno=True)


class _Event(ctypes.Structure):
    _pack_ = 1
    _fields_ = (
        ("events", ctypes.c_uint32),
        ("gap", ctypes.c_char * (0 if platform.machine() == "x86_64" else 4)),
        ("descriptor", ctypes.c_int32),  # of its eight bytes of data Python fills these
        ("rest", ctypes.c_uint32),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


class ExactPoll:
    """Waits on one epoll instance, by its descriptor. `works` says whether this kernel has the call."""

    def __init__(self, descriptor: int) -> None:
        self._events = (_Event * _MOST_EVENTS)()
        self._time = _Time()
        self._arguments = (
            ctypes.c_long(_EPOLL_PWAIT2),
            ctypes.c_long(descriptor),
            ctypes.byref(self._events),
            ctypes.c_long(_MOST_EVENTS),
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
        """What is ready, waiting for it up to so long: (descriptor, mask of epoll). OSError."""
        # to the next nanosecond, save for what counting in seconds has added to a whole one
        left_ns = max(1, math.ceil(timeout_s * 1e9 - 0.01)) if timeout_s > 0 else 0
        self._time.seconds, self._time.nanoseconds = divmod(left_ns, 1_000_000_000)
        found = _libc.syscall(*self._arguments)
        if found < 0:
            number = ctypes.get_errno()
            if number == errno.EINTR:
                return []
            raise OSError(number, os.strerror(number))
        return [(event.descriptor, event.events) for event in self._events[:found]]
