"""Run one function per rank: over memory in threads, over loopback TCP in threads or forked processes."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Callable
from typing import Any

from testbed.transport import MemoryNetwork, TcpTransport, Transport

Program = Callable[[Transport], Any]


def _threads(size: int, make: Callable[[int], Transport], program: Program, timeout_s: float) -> list[Any]:
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            transport = make(rank)
            try:
                results[rank] = program(transport)
            finally:
                transport.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def in_memory(size: int, program: Program, timeout_s: float = 30) -> list[Any]:
    network = MemoryNetwork(size)
    return _threads(size, lambda rank: network.transports[rank], program, timeout_s)


def addresses(size: int) -> list[tuple[str, int]]:
    """Free loopback ports; each on an address of its own, so that fixed source ports do not clash."""
    found = []
    for rank in range(size):
        with socket.socket() as probe:
            probe.bind((f"127.77.0.{rank + 1}", 0))
            found.append(probe.getsockname())
    return found


def over_tcp(size: int, program: Program, timeout_s: float = 30, **options: Any) -> list[Any]:
    where = addresses(size)
    return _threads(size, lambda rank: TcpTransport(rank, where, token="test", **options), program, timeout_s)


def forked(size: int, program: Program, where: list[tuple[str, int]]) -> list[Any]:
    """Processes of their own, not waited for: (process, pipe end) per rank."""
    context = multiprocessing.get_context("fork")
    made = []
    for rank in range(size):
        ours, theirs = context.Pipe()

        def run(rank: int = rank, pipe: Any = theirs) -> None:
            try:
                pipe.send(program(TcpTransport(rank, where, token="test")))
            except Exception as error:
                pipe.send(error)

        process = context.Process(target=run, daemon=True)
        process.start()
        made.append((process, ours))
    return made
