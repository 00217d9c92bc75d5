"""What a message costs in CPU time over loopback TCP, and how exact timed waiting is.

Run it on an idle machine: `python -m tests.bench.collectives_loopback`.

Ranks are forked processes, as in a run. CPU time is user and system time of the ranks, which on loopback includes the
kernel's work for both ends; a message counts once, with its sending and its receiving. "copies" is that time over the
time of one copy of the message in memory.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from testbed.comm.collectives import Communicator, count_wrong, fill
from testbed.comm.transport import MeshSettings, TcpTransport, wait_all

Program = Callable[[TcpTransport, int, int], dict[str, float]]


def run(size: int, program: Program, *arguments: int) -> list[dict[str, float]]:
    """One forked process per rank; what the program returned on each."""
    listeners = []
    for _ in range(size):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listeners.append(listener)
    addresses = [listener.getsockname() for listener in listeners]
    context = multiprocessing.get_context("fork")

    def child(rank: int, pipe: Connection) -> None:
        transport = TcpTransport(
            rank, addresses, MeshSettings(token="bench"), listener=listeners[rank], eager=True
        )
        result = program(transport, *arguments)
        Communicator(transport).barrier()
        transport.close()
        pipe.send(result)

    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(rank, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    for listener in listeners:
        listener.close()
    results = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return results


def ping_pong(transport: TcpTransport, size_bytes: int, rounds: int) -> dict[str, float]:
    """Two ranks, one message at a time."""
    peer = 1 - transport.rank
    out, into = memoryview(bytearray(size_bytes)), memoryview(bytearray(size_bytes))
    begun_s = cpu_s = 0.0
    for index in range(rounds + rounds // 10):
        if index == rounds // 10:
            begun_s, cpu_s = time.monotonic(), time.process_time()
        if transport.rank == 0:
            transport.isend(peer, 1, out)
        wait_all(transport, [transport.irecv(peer, 1, into)], 10)
        if transport.rank == 1:
            transport.isend(peer, 1, out)
    return {"wall_s": time.monotonic() - begun_s, "cpu_s": time.process_time() - cpu_s, "messages": rounds}


def stream(transport: TcpTransport, size_bytes: int, rounds: int) -> dict[str, float]:
    """Rank 0 sends to rank 1, two messages under way."""
    view = memoryview(bytearray(size_bytes))
    begun_s, cpu_s = time.monotonic(), time.process_time()
    start = transport.isend if transport.rank == 0 else transport.irecv
    pending = [start(1 - transport.rank, 1, view)]
    for _ in range(rounds - 1):
        pending.append(start(1 - transport.rank, 1, view))
        wait_all(transport, [pending.pop(0)], 10)
    wait_all(transport, pending, 10)
    cpu_s = time.process_time() - cpu_s
    return {"wall_s": time.monotonic() - begun_s, "cpu_s": cpu_s, "messages": rounds / 2}


def all_reduce(transport: TcpTransport, numel: int, rounds: int) -> dict[str, float]:
    """A flat ring."""
    communicator = Communicator(transport)
    array = np.zeros(numel, dtype=np.float32)
    wall_s = cpu_s = 0.0
    for index in range(rounds + 1):
        fill(array, transport.rank, index)
        communicator.barrier()
        sent = sum(counters.messages_sent for counters in transport.counters.values())
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        communicator.all_reduce(array)
        if index:
            cpu_s += time.process_time() - begun_cpu_s
            wall_s += time.monotonic() - begun_s
        sent = sum(counters.messages_sent for counters in transport.counters.values()) - sent
        if count_wrong(array, transport.size, index):
            raise SystemExit("wrong result")
    return {"wall_s": wall_s, "cpu_s": cpu_s, "messages": rounds * sent, "rounds": rounds}


def sleep(transport: TcpTransport, numel: int, rounds: int) -> dict[str, float]:
    """How late sleep(0.0105) ends, beside a never-ending all-reduce of `numel` elements (0: none)."""
    communicator = Communicator(transport)
    array = np.zeros(numel, dtype=np.float32)
    late_s = []
    for _ in range(rounds):
        work = communicator.all_reduce(array, async_op=True) if numel else None
        begun_s = time.monotonic()
        communicator.sleep(0.0105)
        late_s.append(time.monotonic() - begun_s - 0.0105)
        if work is not None:
            work.wait()
    return {
        "median_s": float(np.median(late_s)),
        "p95_s": float(np.quantile(late_s, 0.95)),
        "max_s": max(late_s),
    }


@functools.cache
def copy_s_per_byte() -> float:
    """CPU seconds that copying a byte in memory takes, out of any cache."""
    source, target = np.ones(1 << 27, np.uint8), np.ones(1 << 27, np.uint8)
    begun_s = time.process_time()
    target[:] = source
    return (time.process_time() - begun_s) / source.size


def report(name: str, size_bytes: int, results: list[dict[str, Any]]) -> None:
    """One line of the table: all ranks' CPU time over all ranks' messages."""
    messages = sum(result["messages"] for result in results)
    cpu_s = sum(result["cpu_s"] for result in results) / messages
    wall_s = results[0]["wall_s"] / results[0].get("rounds", results[0]["messages"])
    copies = f"{cpu_s / copy_s_per_byte() / size_bytes:8.1f}" if size_bytes >= 1 << 20 else ""
    print(f"{name:36} {size_bytes:>13} {wall_s * 1e6:>12.1f} {cpu_s * 1e6:>14.1f} {copies}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    rounds, ranks = arguments.rounds, arguments.ranks
    print(f"{'':36} {'bytes/message':>13} {'time us':>12} {'CPU us/message':>14} {'copies':>8}")
    for size_bytes in (0, 64, 4096, 65536):
        report("ping-pong", size_bytes, run(2, ping_pong, size_bytes, rounds))
    for size_bytes in (65536, 1 << 20, 16 << 20):
        report("stream", size_bytes, run(2, stream, size_bytes, max(8, rounds * 65536 // size_bytes)))
    for chunk_bytes in (4, 4096, 1 << 20):
        results = run(ranks, all_reduce, ranks * chunk_bytes // 4, max(10, rounds // ranks // 4))
        report(f"all_reduce of {ranks * chunk_bytes} bytes, {ranks} ranks", chunk_bytes, results)
    for numel in (0, 25_000, 250_000):
        late = run(4, sleep, numel, 100)[0]
        print(
            f"sleep(10.5 ms), all_reduce of {numel * 4} bytes meanwhile: late by {late['median_s'] * 1e6:.0f} us,"
            f" p95 {late['p95_s'] * 1e6:.0f} us, max {late['max_s'] * 1e6:.0f} us"
        )


if __name__ == "__main__":
    main()
