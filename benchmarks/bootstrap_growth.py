"""How the time to find each other grows with the number of ranks: star and ring, over this machine's loopback.

Run it on an idle machine: .venv/bin/python benchmarks/bootstrap_growth.py

Ranks are forked processes. "star" ends with everybody connected to everybody, as in NCCL's baseline, unless it is
"star, lazy"; "ring_hybrid" ends with the ring. Messages and bytes are exact; times are medians. The exponent is the
slope of log time over log ranks.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from testbed.comm.transport import MeshSettings, TcpTransport
from testbed.comm.transport.bootstrap import bootstrap

TIMEOUT_S = 300.0
WAYS = {"star": ("star", True), "star, lazy": ("star", False), "ring_hybrid": ("ring_hybrid", False)}


def child(rank: int, size: int, way: str, entrance: socket.socket, gate: Barrier, pipe: Connection) -> None:
    """One rank: find the others, tell how long it took and what it cost."""
    method, eager = WAYS[way]
    listener = socket.socket()
    listener.bind((f"127.78.{rank // 250}.{rank % 250 + 1}", 0))  # an address of its own, as a host has
    listener.listen(size + 1)
    gate.wait()
    begun_s = time.monotonic()
    addresses, report = bootstrap(
        method, rank, size, entrance.getsockname(), listener.getsockname(), "bench", TIMEOUT_S,
        entrance if rank == 0 else None,
    )  # fmt: skip
    settings = MeshSettings("bench", bootstrap_timeout_s=TIMEOUT_S)
    transport = TcpTransport(rank, addresses, settings, eager=eager, listener=listener)
    took_s = time.monotonic() - begun_s
    gate.wait()  # nobody leaves before all are there
    pipe.send((took_s, report.messages_sent, report.bytes_sent))
    transport.close()


def measure(size: int, way: str) -> tuple[float, int, int]:
    """Seconds until the last rank knew all, messages and bytes sent by all."""
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(size)
    entrance = socket.socket()
    entrance.bind(("127.78.0.1", 0))
    processes, pipes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(rank, size, way, entrance, gate, theirs))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    entrance.close()
    times, messages, sizes = zip(*found, strict=True)
    return max(times), sum(messages), sum(sizes)


def slope(points: dict[int, float]) -> float:
    """Of log value over log ranks, least squares."""
    pairs = [(math.log(size), math.log(value)) for size, value in points.items()]
    mean_x, mean_y = statistics.mean(x for x, _ in pairs), statistics.mean(y for _, y in pairs)
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sum((x - mean_x) ** 2 for x, _ in pairs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="8,16,32,64,128,256")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    results: dict[str, dict[int, tuple[float, int, int]]] = {way: {} for way in WAYS}
    for size in sizes:
        trials: dict[str, list[tuple[float, int, int]]] = {way: [] for way in WAYS}
        for _ in range(options.trials):
            for way in WAYS:  # in turns, so that slow drifts hit all alike
                trials[way].append(measure(size, way))
        for way, found in trials.items():
            median = statistics.median(took_s for took_s, _, _ in found)
            results[way][size] = (median, found[0][1], found[0][2])
            print(
                f"{way:12} {size:4} ranks {median * 1e3:10.2f} ms {found[0][1]:8} messages {found[0][2]:10} bytes",
                flush=True,
            )
    for way, points in results.items():
        exponent = slope({size: took_s for size, (took_s, _, _) in points.items()})
        bytes_exponent = slope({size: float(count) for size, (_, _, count) in points.items()})
        print(f"{way:12} time grows as n^{exponent:.2f}, bytes as n^{bytes_exponent:.2f}")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
