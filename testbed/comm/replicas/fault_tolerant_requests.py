"""What operations wait for that must outlive the loss of a peer: requests whose failure fails nobody, and signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from testbed.comm.transport import Request, TransportError


class Signal:
    """Wakes all who wait for it, in the order in which they came, as often as it is given."""

    def __init__(self) -> None:
        self._waiting: dict[FirstOf, None] = {}

    def give(self) -> None:
        """Wake them."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            one.come()

    def add(self, one: FirstOf) -> None:
        """It waits."""
        self._waiting[one] = None

    def discard(self, one: FirstOf) -> None:
        """It does no more."""
        self._waiting.pop(one, None)


class FirstOf:
    """Done when one of these requests is, well or not, or the signal is given. Looking at them is the waiter's part."""

    __slots__ = ("_signal", "done", "error", "on_done")

    def __init__(self, signal: Signal, requests: Sequence[Request] = ()) -> None:
        self.done = any(request.done for request in requests)
        self.error: TransportError | None = None
        self.on_done: Callable[[Any], None] | None = None
        self._signal = signal
        if not self.done:
            signal.add(self)
            for request in requests:
                request.on_done = self.come

    def come(self, _: object = None) -> None:
        """One of them is."""
        if not self.done:
            self.done = True
            self._signal.discard(self)
            if self.on_done is not None:
                self.on_done(self)
