"""What the monitor sees of a run, alone and beside other programs: `python -m tests.bench.fidelity_calibration`.

Eight processes in a ring do what ranks do: wait, pass a block on to the right over loopback TCP, take one from the
left, again and again, so that a process that is held up holds up all of them. How long a step should take is known: as
long as it takes when nothing else runs. Beside them run programs that compute without pause, or half of the time. No
root needed; do it on an otherwise idle machine (in the first row, the column `foreign` tells whether it was).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from testbed.measure.fidelity.cpu_monitor import MonitorProcess, MonitorWindow, read_windows
from testbed.measure.fidelity.invariants import SCARCE_IDLE, cpu_headroom, foreign_load, scheduler_lag
from testbed.measure.fidelity.verdict import judge

RANKS = 8
ROUNDS = 100
PAUSE_S = 0.004
BLOCK_BYTES = 48 * 1024  # some 100 Mbit/s with the pause, as a scaled network card
SPELL_S = 0.010  # of a program that computes half of the time
_fork = multiprocessing.get_context("fork")


def rank(
    left: socket.socket, right: socket.socket, steps: int, start: Connection, result: Connection
) -> None:
    """One process of the ring; sends back when each of its steps began and ended."""
    block = bytes(BLOCK_BYTES)
    into = memoryview(bytearray(BLOCK_BYTES))
    start.recv()
    spans = []
    for _ in range(steps):
        begun_s = time.monotonic()
        for _ in range(ROUNDS):
            time.sleep(PAUSE_S)
            right.sendall(block)  # fits into the socket's buffer: does not wait for the other side
            taken = 0
            while taken < BLOCK_BYTES:
                taken += left.recv_into(into[taken:])
        spans.append((begun_s, time.monotonic()))
    result.send(spans)


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection over loopback with room for a block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * BLOCK_BYTES)
    return near, far


def run(steps: int, output: Path, result: Connection) -> None:
    """A run: monitor and ranks, all below this process. Sends back rank 0's steps."""
    pairs = [connected_pair() for _ in range(RANKS)]  # pair i leads from rank i to rank i + 1
    monitor = MonitorProcess(output)
    monitor.start()
    members, starts, results = [], [], []
    for index in range(RANKS):
        start, started = _fork.Pipe()
        received, sent = _fork.Pipe(duplex=False)
        arguments = (pairs[index - 1][1], pairs[index][0], steps, started, sent)
        members.append(_fork.Process(target=rank, args=arguments, daemon=True))
        members[-1].start()
        starts.append(start)
        results.append(received)
    time.sleep(1.2)  # until the monitor has looked round
    for start in starts:
        start.send(None)
    spans = [received.recv() for received in results]
    for member in members:
        member.join()
    monitor.stop()
    result.send(spans[0])


def hog(share: float) -> None:
    """Compute for `share` of the time, until killed, or until whoever started us is gone."""
    os.setsid()  # somebody else's session: the scheduler shares out cores among sessions first
    parent = os.getppid()
    while os.getppid() == parent:
        until_s = time.monotonic() + SPELL_S
        while time.monotonic() < until_s:
            pass
        if share < 1:
            time.sleep(SPELL_S * (1 - share) / share)


@contextlib.contextmanager
def hogs(count: int, share: float) -> Iterator[None]:
    """`count` programs that compute for `share` of the time, for the length of the block."""
    running = [_fork.Process(target=hog, args=(share,), daemon=True) for _ in range(count)]
    for entry in running:
        entry.start()
    try:
        yield
    finally:
        for entry in running:
            entry.kill()
            entry.join()


def measure(steps: int) -> tuple[list[float], MonitorWindow]:
    """Step times in seconds, and what the monitor saw meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "monitor.jsonl"
        received, sent = _fork.Pipe(duplex=False)
        process = _fork.Process(target=run, args=(steps, output, sent))
        process.start()
        spans = received.recv()
        process.join()
        return [end_s - start_s for start_s, end_s in spans], read_windows(output, spans)


def monitor_cost(seconds: float) -> float:
    """Share of one core that the monitor takes for itself, beside a run's processes."""
    with tempfile.TemporaryDirectory() as folder:
        sleepers = [_fork.Process(target=time.sleep, args=(seconds + 2,), daemon=True) for _ in range(RANKS)]
        for entry in sleepers:
            entry.start()
        known = {child.pid for child in psutil.Process().children()}
        monitor = MonitorProcess(Path(folder) / "monitor.jsonl")
        monitor.start()
        (watcher,) = (child for child in psutil.Process().children() if child.pid not in known)
        before = watcher.cpu_times()
        time.sleep(seconds)
        after = watcher.cpu_times()
        monitor.stop()
        for entry in sleepers:
            entry.kill()
            entry.join()
        return float(after.user + after.system - before.user - before.system) / seconds


def main() -> None:
    """Print one row per kind of company."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="of about half a second each (default: 12)")
    steps = parser.parse_args().steps
    cores = os.cpu_count() or 1
    print(f"{cores} cores, {RANKS} ranks, {steps} steps; the monitor takes {monitor_cost(3):.1%} of one core")
    print("beside it            step time  longer   idle   full  lag p99  foreign  verdict")
    alone_s = 0.0
    for words, count, share in (
        ("nothing", 0, 0.0),
        ("1 program, half", 1, 0.5),
        ("1 program", 1, 1.0),
        (f"{cores} programs, half", cores, 0.5),
        (f"{cores} programs", cores, 1.0),
    ):
        with hogs(count, share):
            times, window = measure(steps)
        median_s = statistics.median(times)
        alone_s = alone_s or median_s
        full = sum(idle < SCARCE_IDLE for idle in window.idle) / len(window.idle)
        verdict = judge([cpu_headroom(window), foreign_load(window), scheduler_lag(window)])
        foreign = "unknown" if window.foreign is None else f"{window.foreign:.1%}"
        broken = ", ".join(entry.name for entry in verdict.invariants if entry.ok is False)
        print(
            f"{words:20} {median_s * 1e3:6.1f} ms {median_s / alone_s - 1:+7.1%}"
            f" {statistics.mean(window.idle):6.1%} {full:6.1%} {window.lag_percentile(0.99) * 1e3:5.2f} ms"
            f" {foreign:>8}  {verdict.status}" + (f" ({broken})" if broken else "")
        )


if __name__ == "__main__":
    main()
