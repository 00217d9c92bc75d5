"""Ranks as threads of a test, and what checks of transports wait with."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

from testbed.comm.transport import Request, Transport, wait_all

Program = Callable[[Transport], Any]
Runner = Callable[[int, Program], "list[Any]"]
"""Runs a program on each of so many ranks, a thread each; what they returned."""


def in_threads(size: int, make: Callable[[int], Transport], program: Program) -> list[Any]:
    """What a program returns on each rank, a thread each, with the transport that `make` gives it, closed at the end.

    The first error of any is raised; AssertionError where a rank hangs.
    """
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def act(rank: int) -> None:
        try:
            transport = make(rank)
            try:
                results[rank] = program(transport)
            finally:
                transport.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


class raises:
    """A block that raises an error of this class, whose words match; `value` is the error."""

    def __init__(self, kind: type[Exception], match: str = "") -> None:
        self.kind, self.match = kind, match
        self.value: Exception

    def __enter__(self) -> raises:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        assert error is not None, f"no {self.kind.__name__} was raised"
        if not isinstance(error, self.kind):
            return False
        assert re.search(self.match, str(error)), f"got {str(error)!r}, expected {self.match!r}"
        self.value = error
        return True


def finish(transport: Transport, *requests: Request) -> None:
    """Wait for all, ten seconds at most."""
    wait_all(transport, requests, 10)


def linger(transport: Transport, seconds: float) -> None:
    """Make progress, with nothing to wait for."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        transport.progress(0.01)
