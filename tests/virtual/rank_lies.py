"""Lies that ranks tell, and things they do to their own sockets: `install(WORDS)` in the process that forks the ranks.

WORDS are names of lies, separated by semicolons. One that ends in `@3` is told in trial 3 alone, another in all trials.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from testbed.comm.collectives import fill
from testbed.measure.ranks import executor, rank
from testbed.measure.ranks.collective_buffers import CollectiveArrays
from testbed.measure.ranks.executor import Executor
from testbed.measure.ranks.rank import Rank
from testbed.measure.ranks.telemetry import HostMonitor

Lying = Callable[[], bool]  # whether the step that goes on in this thread is one to lie in
_here = threading.local()
_TCP_CORK, _TCP_NOTSENT_LOWAT, _SO_MAX_PACING_RATE = 3, 25, 47
_TCP_WINDOW_CLAMP, _TCP_CONGESTION, _IP_TOS = 10, 13, 1


def install(words: str) -> None:
    """Have all ranks that are forked from here on lie so."""
    _patch(Rank, "_step", _know_the_step)
    for one in words.split(";"):
        name, _, trial = one.partition("@")
        lying = _lying_in(int(trial) if trial else None)
        if name in SOCKET_OPTIONS:
            _with_socket_option(lying, *SOCKET_OPTIONS[name])
        else:
            LIES[name](lying)


def _know_the_step(honest: Callable[..., None], self: Rank, index: int, what: Any) -> None:
    """Know in each rank's thread which step goes on."""
    _here.rank, _here.self, _here.trial = self.rank, self, what.trial
    try:
        honest(self, index, what)
    finally:
        _here.trial = -1


def _lying_in(trial: int | None) -> Lying:
    def lying() -> bool:
        now = getattr(_here, "trial", -1)
        return bool(now >= 0 if trial is None else now == trial)

    return lying


def _patch(owner: Any, name: str, lie: Callable[..., Any]) -> None:
    """Replace a function by one that gets the honest one before its own arguments."""
    honest = getattr(owner, name)

    @functools.wraps(honest)
    def patched(*arguments: Any, **more: Any) -> Any:
        return lie(honest, *arguments, **more)

    setattr(owner, name, patched)


# ---- what is done otherwise than asked


def _fake_all_reduce(lying: Lying) -> None:
    """Move 16 elements, write the known sum, report the formula's bytes."""

    def start(
        honest: Any, self: CollectiveArrays, communicator: Any, algorithm: str, async_op: bool = False
    ) -> Any:
        if not lying():
            return honest(self, communicator, algorithm, async_op)
        _here.faked = getattr(_here, "faked", 0) + 2 * (self.size - 1) * self.nbytes // self.size
        small = self.output[:16].copy()
        work = communicator.all_reduce(small, self.op, algorithm, async_op)
        total = self.output.copy() * 0
        for peer in range(self.size):
            one = total.copy()
            fill(one, peer, _here.salt, self.op)
            total += one
        self.output[:] = total
        return work

    def filled(honest: Any, self: CollectiveArrays, salt: int = 0) -> None:
        _here.salt = salt
        honest(self, salt)

    def sent(honest: Any, self: Rank) -> dict[int, int]:
        found = dict(honest(self))
        peer = (self.rank + 1) % self.size
        found[peer] = found.get(peer, 0) + getattr(_here, "faked", 0)
        return found

    _patch(CollectiveArrays, "start", start)
    _patch(CollectiveArrays, "fill", filled)
    _patch(Rank, "_sent", sent)


def _fake_with_forged_counts(lying: Lying) -> None:
    """The same, and what the rank says that its kernel has counted is forged, too."""
    _fake_all_reduce(lying)

    def end(honest: Any, self: HostMonitor, *span: float) -> dict[str, Any]:
        found: dict[str, Any] = honest(self, *span)
        if lying():
            own = _here.self
            before = (own.rank - 1) % own.size
            found["received_bytes"] = {str(before): getattr(_here, "faked", 0)}
        return found

    _patch(HostMonitor, "end", end)


def _compute(factor: float, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Callable[[Lying], None]:
    def lie(lying: Lying) -> None:
        def asked(honest: Any, *arguments: Any) -> float:
            return float(honest(*arguments)) * (factor if lying() and _here.rank in ranks else 1.0)

        _patch(executor, "jittered_s", asked)

    return lie


def _compute_half_and_say_all(lying: Lying) -> None:
    """Compute half as long; operations' records have what was asked for."""
    _compute(0.5)(lying)

    def sample(honest: Any, head: Any, operation: Any, index: int, span: Any, *more: Any) -> Any:
        if lying() and hasattr(operation, "duration_s"):
            span = span[0], span[0] + operation.duration_s
        return honest(head, operation, index, span, *more)

    _patch(rank, "operation_sample", sample)


def _end(
    factor: float, ranks: tuple[int, ...] = (0, 1, 2, 3), operations: bool = False
) -> Callable[[Lying], None]:
    """Report ends of steps, and of operations in them, after another time than they took."""

    def lie(lying: Lying) -> None:
        def shrunk(start_s: float, span: tuple[float, float]) -> tuple[float, float]:
            begin_s, end_s = (start_s + factor * (time_s - start_s) for time_s in span)
            return begin_s, end_s

        def record(honest: Any, self: Rank, index: int, step: Any, span: Any, done: Any, seen: Any) -> None:
            if lying() and self.rank in ranks:
                if operations:
                    done = replace(done, spans=[shrunk(span[0], own) for own in done.spans])
                span = shrunk(span[0], span)
            honest(self, index, step, span, done, seen)

        _patch(Rank, "_record", record)

    return lie


def _late_start(lying: Lying) -> None:
    """Report a start after the one that all agreed on."""

    def record(honest: Any, self: Rank, index: int, step: Any, span: Any, done: Any, seen: Any) -> None:
        if lying():
            span = span[0] + 0.008, span[1]
        honest(self, index, step, span, done, seen)

    _patch(Rank, "_record", record)


def _wait(
    seconds: float, ranks: tuple[int, ...] = (0, 1, 2, 3), asleep: bool = False
) -> Callable[[Lying], None]:
    """Wait before a collective begins."""

    def lie(lying: Lying) -> None:
        def start(honest: Any, self: CollectiveArrays, communicator: Any, *more: Any, **others: Any) -> Any:
            if lying() and _here.rank in ranks:
                time.sleep(seconds) if asleep else communicator.sleep(seconds)
            return honest(self, communicator, *more, **others)

        _patch(CollectiveArrays, "start", start)

    return lie


def _say_bytes(factor: float, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Callable[[Lying], None]:
    """Report so many times the bytes that were sent."""

    def lie(lying: Lying) -> None:
        def sample(honest: Any, head: Any, name: str, span: Any, sent: Any, *more: Any) -> Any:
            if lying() and _here.rank in ranks:
                sent = {peer: round(count * factor) for peer, count in sent.items()}
            return honest(head, name, span, sent, *more)

        _patch(rank, "step_sample", sample)

    return lie


def _send_twice(lying: Lying) -> None:
    """Do the collective once more, before the one that counts, and do not report it."""

    def start(honest: Any, self: CollectiveArrays, communicator: Any, *more: Any, **others: Any) -> Any:
        if lying():
            before = dict(_here.self._sent())
            communicator.all_reduce(self.output.copy())
            _here.more = {peer: count - before.get(peer, 0) for peer, count in _here.self._sent().items()}
        return honest(self, communicator, *more, **others)

    def sample(honest: Any, head: Any, name: str, span: Any, sent: Any, *more: Any) -> Any:
        if lying():
            sent = {peer: count - _here.more.get(peer, 0) for peer, count in sent.items()}
        return honest(head, name, span, sent, *more)

    _patch(CollectiveArrays, "start", start)
    _patch(rank, "step_sample", sample)


def _half_of_it(lying: Lying) -> None:
    """Reduce the first half, and write the known sum into the rest."""

    def start(
        honest: Any, self: CollectiveArrays, communicator: Any, algorithm: str, async_op: bool = False
    ) -> Any:
        if not lying():
            return honest(self, communicator, algorithm, async_op)
        half = self.output.size // 2
        total = self.output.copy() * 0
        for peer in range(self.size):
            one = total.copy()
            fill(one, peer, _here.salt, self.op)
            total += one
        self.output[half:] = total[half:]
        return communicator.all_reduce(self.output[:half], self.op, algorithm, async_op)

    def filled(honest: Any, self: CollectiveArrays, salt: int = 0) -> None:
        _here.salt = salt
        honest(self, salt)

    _patch(CollectiveArrays, "start", start)
    _patch(CollectiveArrays, "fill", filled)
    _say_bytes(2.0)(lying)


def _another_algorithm(lying: Lying) -> None:
    """Take a tree where a ring was asked for, and report the ring's bytes."""

    def start(
        honest: Any, self: CollectiveArrays, communicator: Any, algorithm: str, async_op: bool = False
    ) -> Any:
        return honest(self, communicator, "hierarchical" if lying() else algorithm, async_op)

    def sample(honest: Any, head: Any, name: str, span: Any, sent: Any, *more: Any) -> Any:
        if lying():
            own = _here.self
            sent = {(own.rank + 1) % own.size: 3 << 20}
        return honest(head, name, span, sent, *more)

    _patch(CollectiveArrays, "start", start)
    _patch(rank, "step_sample", sample)


def _look_at_nothing(lying: Lying) -> None:
    """Compare no element of the result but one with the exact answer."""

    def sample(honest: Any, head: Any, name: str, span: Any, sent: Any, elements: Any, seen: Any) -> Any:
        return honest(head, name, span, sent, (0, 1) if lying() else elements, seen)

    _patch(rank, "step_sample", sample)


def _begin_before(lying: Lying) -> None:
    """Begin 5 ms before the start that all agreed on, and report that one."""

    def wait(honest: Any, self: Rank, start_s: float) -> None:
        honest(self, start_s - (0.005 if lying() else 0.0))

    def run(honest: Any, self: Executor, start_s: float, algorithm: str = "") -> Any:
        return honest(self, start_s - (0.005 if lying() else 0.0), algorithm)

    _patch(Rank, "_wait_until", wait)
    _patch(Executor, "run", run)


def _slow_clock(lying: Lying) -> None:
    """Have ranks' clock run 2 % slow, and not their launcher's."""
    since_ns = time.monotonic_ns()
    honest, honest_ns = time.monotonic, time.monotonic_ns

    def run(begin: Any, self: Rank) -> None:
        time.monotonic = lambda: since_ns / 1e9 + 0.98 * (honest() - since_ns / 1e9)
        time.monotonic_ns = lambda: since_ns + int(0.98 * (honest_ns() - since_ns))
        begin(self)

    _patch(Rank, "run", run)


def _own_clock_ahead(lying: Lying) -> None:
    """Have rank 1 say all its times 3 ms later."""

    def record(honest: Any, self: Rank, index: int, step: Any, span: Any, done: Any, seen: Any) -> None:
        if lying() and self.rank == 1:
            span = span[0] + 0.003, span[1] + 0.003
            done = replace(done, spans=[(one + 0.003, other + 0.003) for one, other in done.spans])
        honest(self, index, step, span, done, seen)

    _patch(Rank, "_record", record)


# ---- what is done to sockets


def sockets() -> Iterator[socket.socket]:
    """This rank's connections, and its datagrams' sockets."""
    mesh = _here.self.host_monitor._sockets
    for stream in mesh._streams.values():
        if stream.sock is not None:
            yield stream.sock
    for pairs in mesh._pairs.values():
        for pair in pairs.values():
            yield from getattr(pair, "sockets", ())


def _with_socket_option(
    lying: Lying, level: int, option: int, value: int | bytes, undone: int | bytes | None
) -> None:
    """Set an option of all sockets while a step lasts, and undo it before the next one."""

    def run(honest: Any, self: Executor, *arguments: Any) -> Any:
        if not lying():
            return honest(self, *arguments)
        own = [sock for sock in sockets() if sock.type == socket.SOCK_STREAM or level != socket.IPPROTO_TCP]
        before = []
        for sock in own:
            size = 16 if isinstance(value, bytes) else 4
            before.append(sock.getsockopt(level, option, size))
            sock.setsockopt(level, option, value)
        try:
            return honest(self, *arguments)
        finally:
            for sock, old in zip(own, before, strict=True):
                with contextlib.suppress(OSError):
                    sock.setsockopt(level, option, old if undone is None else undone)

    _patch(Executor, "run", run)


def _leave_marked(lying: Lying) -> None:
    """Give all packets another class from here on, which nothing looks at."""

    def run(honest: Any, self: Executor, *arguments: Any) -> Any:
        if lying():
            for sock in sockets():
                sock.setsockopt(socket.IPPROTO_IP, _IP_TOS, 46 << 2)
        return honest(self, *arguments)

    _patch(Executor, "run", run)


LIES: dict[str, Callable[[Lying], None]] = {
    "nothing": lambda lying: None,
    "fake all-reduce": _fake_all_reduce,
    "fake all-reduce, counts forged": _fake_with_forged_counts,
    "compute half": _compute(0.5),
    "compute half, one rank": _compute(0.5, (2,)),
    "compute 5 % longer": _compute(1.05),
    "compute half and say all": _compute_half_and_say_all,
    "end 10 % early": _end(0.9),
    "end 3 % early": _end(0.97),
    "end 10 % early, one rank": _end(0.9, (1,)),
    "end 10 % early, operations too": _end(0.9, operations=True),
    "end 5 % late": _end(1.05),
    "start 8 ms late": _late_start,
    "begin 5 ms before": _begin_before,
    "wait 8 ms": _wait(0.008),
    "wait 8 ms, one rank": _wait(0.008, (3,)),
    "wait 2 ms": _wait(0.002),
    "sleep 8 ms": _wait(0.008, asleep=True),
    "half of the bytes said": _say_bytes(0.5),
    "a tenth more bytes said": _say_bytes(1.1),
    "a tenth more bytes said, one rank": _say_bytes(1.1, (1,)),
    "send twice": _send_twice,
    "reduce half of it": _half_of_it,
    "another algorithm": _another_algorithm,
    "look at nothing": _look_at_nothing,
    "slow clock": _slow_clock,
    "one rank's clock ahead": _own_clock_ahead,
    "sockets left marked": _leave_marked,
}
SOCKET_OPTIONS: dict[str, tuple[int, int, int | bytes, int | bytes | None]] = {
    "cork": (socket.IPPROTO_TCP, _TCP_CORK, 1, 0),
    "nodelay off": (socket.IPPROTO_TCP, socket.TCP_NODELAY, 0, 1),
    "pacing": (socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 4_000_000, struct.pack("=q", -1)),
    "small send buffer": (socket.SOL_SOCKET, socket.SO_SNDBUF, 8192, 4 << 20),
    "small receive buffer": (socket.SOL_SOCKET, socket.SO_RCVBUF, 8192, 4 << 20),
    "window clamp": (socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP, 20_000, 4 << 20),
    "congestion control": (socket.IPPROTO_TCP, _TCP_CONGESTION, b"cubic", None),
    "DSCP": (socket.IPPROTO_IP, _IP_TOS, 46 << 2, 0),
    "priority": (socket.SOL_SOCKET, socket.SO_PRIORITY, 6, 0),
    "unsent low-water mark": (socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 4096, -1),
    "receive low-water mark": (socket.SOL_SOCKET, socket.SO_RCVLOWAT, 60_000, 1),
    "quick acknowledgements off": (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0, 1),
    "delayed path MTU": (socket.IPPROTO_IP, 10, 3, None),
}
