"""Ctrl-C, SIGTERM and SIGHUP as exceptions that are never lost.

A signal handler runs wherever the main thread happens to be. An exception in a finaliser or in a weak reference's
callback (the import system has such callbacks) is only printed and then ignored, so a run would not end. An exception
in the middle of `subprocess.Popen` polling can leave its lock held, and waiting for that process would block forever.
In these cases the signal is delivered again a moment later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType

REDELIVERY_DELAY_S = 0.01
# The CPython functions that take the lock without a `with`; other implementations may not have them.
_LOCK = "_waitpid_lock"
_LOCK_TAKERS: list[CodeType] = [
    getattr(subprocess.Popen, name).__code__
    for name in ("_internal_poll", "_wait")
    if hasattr(subprocess.Popen, name)
]


def raise_on_signals() -> None:
    """Make SIGINT raise KeyboardInterrupt, and SIGTERM and SIGHUP raise SystemExit(128 + number).

    Call it in the main thread. Signals that were ignored when this process started (by nohup, or by a shell in the
    background) stay ignored. If the exception cannot propagate (`sys.unraisablehook`) or must not, the signal is
    delivered again.
    """
    last: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        last[:] = [number]
        if _holds_lock(frame):
            _deliver_again(number)
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise _Ended(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    sys.unraisablehook = _redelivering_hook(last, sys.unraisablehook)


def signal_behind(error: BaseException) -> int | None:
    """Return the signal that caused an error, or None.

    typer turns KeyboardInterrupt into an exit, and cleaning up after an interrupt may raise other errors, such as a
    RuntimeError from a half-finished event loop.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return signal.SIGINT
        if isinstance(cause, _Ended):
            return cause.number
        cause = cause.__cause__ or cause.__context__
    return None


class _Ended(SystemExit):
    """The exit that a signal requests."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def _redelivering_hook(
    last: list[int], others: Callable[[sys.UnraisableHookArgs], object]
) -> Callable[..., None]:
    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if last and isinstance(unraisable.exc_value, (KeyboardInterrupt, SystemExit)):
            # not raised here, as an exception in this hook would be lost, too
            _deliver_again(last[0])
        else:
            others(unraisable)

    return hook


def _holds_lock(frame: FrameType | None) -> bool:
    """Return whether a signal interrupted code that holds a process's lock."""
    if frame is None or frame.f_code not in _LOCK_TAKERS:
        return False
    lock = getattr(frame.f_locals.get("self"), _LOCK, None)
    return lock is not None and lock.locked()


def _deliver_again(number: int) -> None:
    timer = threading.Timer(REDELIVERY_DELAY_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
