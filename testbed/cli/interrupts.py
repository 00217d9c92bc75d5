"""Ctrl-C, SIGTERM and SIGHUP as exceptions that are not lost.

A signal's handler runs wherever the main thread happens to be. In a finaliser or in the callback of a weak reference
(the import system has such callbacks) the interpreter prints what is raised, and goes on as if nothing had been: a run
told to end would go on to its own end. Where `subprocess.Popen` asks for a process's end, an exception may leave a lock
held for which whoever waits for that process would wait for ever. Such a signal is delivered again a moment later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType

AGAIN_S = 0.01
# Where it takes its lock without a `with`, by CPython's own names; there is nothing to mind where there are none.
_LOCK = "_waitpid_lock"
_TAKE_IT: list[CodeType] = [
    getattr(subprocess.Popen, name).__code__
    for name in ("_internal_poll", "_wait")
    if hasattr(subprocess.Popen, name)
]


def raise_on_signals() -> None:
    """From now on SIGINT raises KeyboardInterrupt, and SIGTERM and SIGHUP raise SystemExit(128 + number).

    To be called in the main thread. A signal that whoever started this process had ignored (nohup does, and a shell in
    the background) stays ignored. Where the exception cannot leave (`sys.unraisablehook`), or must not, the signal
    comes again.
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
    sys.unraisablehook = _again(last, sys.unraisablehook)


def signal_behind(error: BaseException) -> int | None:
    """The signal that an error came of, None for another's.

    typer makes an exit of the KeyboardInterrupt, and what it broke off may fail while it is put away: an event loop
    that was left halfway says so by a RuntimeError of its own.
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
    """The end that a signal asks for."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def _again(last: list[int], others: Callable[[sys.UnraisableHookArgs], object]) -> Callable[..., None]:
    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if last and isinstance(unraisable.exc_value, (KeyboardInterrupt, SystemExit)):
            # not from here: what the handler raised in this hook would be lost, too
            _deliver_again(last[0])
        else:
            others(unraisable)

    return hook


def _holds_lock(frame: FrameType | None) -> bool:
    """Whether what a signal has interrupted has to give a process's lock back first."""
    if frame is None or frame.f_code not in _TAKE_IT:
        return False
    lock = getattr(frame.f_locals.get("self"), _LOCK, None)
    return lock is not None and lock.locked()


def _deliver_again(number: int) -> None:
    timer = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
