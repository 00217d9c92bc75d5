"""Datagrams beside TCP by the real clock on links of 1 Gbit/s: `sudo .venv/bin/python -m tests.bench.datagram_speed`.

Two ranks in namespaces of their own, their cards shaped as a fabric's are (HTB, no offloads, MTU 9000), back to back or
with the userspace link engine's WAN link between them. Both keep both transports open and send one message after the
other, by TCP and by datagrams in turn; what is told is the ratio of each pair of neighbours, so that what else the
machine does meets both. `--busy N` has N processes compute meanwhile. As JSON lines with `--json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from testbed.comm.transport import MeshSettings, TcpTransport, wait_all
from testbed.comm.transport.datagram.sender import DatagramSettings
from testbed.comm.transport.datagram.transport import DatagramTransport
from testbed.net.links import network_namespace
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape, shape_commands
from tests.net.line import LEFT, MTU, RIGHT, back_to_back, direction, running, two_hosts
from tests.net.namespaces import Namespace

RATE_BPS, QUEUE_BYTES = 1e9, 64 * 9000
PORTS = {"tcp": 7001, "datagram": 7002}
# bytes of a full packet as links count them, of which payload
FRAMES = {"tcp": (9014, 8948), "datagram": (9010, 8920)}
IDLE_PATH_S = 0.0002  # back to back, there and back, processes' waking included
TIMEOUT_S = 120.0
_FORK = multiprocessing.get_context("fork")


@contextlib.contextmanager
def across(delay_s: float) -> Iterator[tuple[Namespace, Namespace]]:
    """Two hosts with a WAN link of the userspace engine between them; no delay: back to back."""
    if not delay_s:
        with back_to_back() as hosts:
            yield hosts
        return
    forth = direction(RATE_BPS, delay_s, queue_bytes=QUEUE_BYTES)
    with (
        two_hosts() as line,
        tempfile.TemporaryDirectory() as folder,
        running("userspace", line, Path(folder), forth, forth),
    ):
        yield line.left, line.right


def shape(host: Namespace) -> None:
    """Its card, at the rate."""
    Setup(tc=shape_commands("eth0", Shape(RATE_BPS, QUEUE_BYTES), MTU)).apply(host.pid)


def cpu_s() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rank(number: int, pid: int, options: argparse.Namespace, pipe: Connection) -> None:
    """Rank 0 sends, rank 1 says what each message took: (name, seconds, its own CPU seconds)."""
    made: dict[str, TcpTransport | DatagramTransport] = {}
    bdp_bytes = round(RATE_BPS / 8 * (2 * options.delay_ms / 1e3 + IDLE_PATH_S))
    settings = MeshSettings("bench", port_bps=RATE_BPS, bdp_bytes=[bdp_bytes] * 2, path_bps=[RATE_BPS] * 2)
    datagrams = DatagramSettings(recovery=options.recovery, control=options.control)
    with network_namespace(pid):
        for name, port in PORTS.items():
            listener = socket.socket()
            listener.bind(((LEFT, RIGHT)[number], port))
            addresses = [(LEFT, port), (RIGHT, port)]
            if name == "tcp":
                made[name] = TcpTransport(number, addresses, settings, listener=listener)
            else:
                made[name] = DatagramTransport(number, addresses, settings, datagrams, listener=listener)
        room = memoryview(bytearray(options.size))
        for turn in range(options.rounds + 1):
            for name in list(made) if turn % 2 else list(made)[::-1]:
                transport, begun_s, begun_cpu_s = made[name], time.monotonic(), cpu_s()
                if number:
                    receive = transport.irecv(0, 1, room)
                    wait_all(transport, [transport.isend(0, 2, memoryview(b"go"))], TIMEOUT_S)
                    wait_all(transport, [receive], TIMEOUT_S)
                else:
                    wait_all(transport, [transport.irecv(1, 2, memoryview(bytearray(2)))], TIMEOUT_S)
                    wait_all(transport, [transport.isend(1, 1, room)], TIMEOUT_S)
                    wait_all(transport, [transport.irecv(1, 3, memoryview(bytearray(2)))], TIMEOUT_S)
                took_s = time.monotonic() - begun_s
                if number:
                    wait_all(transport, [transport.isend(0, 3, memoryview(b"ok"))], TIMEOUT_S)
                if turn:  # the first opens windows
                    pipe.send((name, took_s, cpu_s() - begun_cpu_s))
        pipe.send(made["datagram"].socket_info())
        for transport in made.values():
            transport.close()


def measured(options: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]], Any]:
    """Seconds of each message by transport; CPU seconds of both ranks; what the sender's pair says."""
    with across(options.delay_ms / 1e3) as hosts:
        pipes, ranks = [], []
        for host in hosts:
            shape(host)
        for number, host in enumerate(hosts):
            ours, theirs = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=rank, args=(number, host.pid, options, theirs), daemon=True)
            process.start()
            pipes.append(ours)
            ranks.append(process)
        took: dict[str, list[float]] = {name: [] for name in PORTS}
        cpu: dict[str, list[float]] = {name: [] for name in PORTS}
        for _ in range(options.rounds * len(PORTS)):
            (name, _, sent_s), (_, took_s, received_s) = (pipe.recv() for pipe in pipes)
            took[name].append(took_s)
            cpu[name].append(sent_s + received_s)
        told = pipes[0].recv()
        pipes[1].recv()
        for process in ranks:
            process.join()
    return took, cpu, told


def _compute() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """With so many processes that compute."""
    others = [_FORK.Process(target=_compute, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def main() -> None:
    """One row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64_000_000, help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way, by a WAN link; 0: back to back")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--recovery", default="selective_repeat")
    parser.add_argument("--control", default="window")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with busy(options.busy):
        took, cpu, told = measured(options)
    ratios = sorted(tcp / own for tcp, own in zip(took["tcp"], took["datagram"], strict=True))
    quarter = len(ratios) // 4
    found: dict[str, Any] = {"load": load, **vars(options), "ratio": statistics.median(ratios)}
    found["ratio_quartiles"] = ratios[quarter], ratios[-1 - quarter]
    for name, times in took.items():
        frame, payload = FRAMES[name]
        line_s = options.size / payload * frame * 8 / RATE_BPS
        found[f"{name}_of_line"] = line_s / statistics.median(times)
        found[f"{name}_cpu_s"] = statistics.median(cpu[name])
    found["pair"] = told
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"datagrams carry {found['ratio']:.3f} of what TCP does (middle half {ratios[quarter]:.3f} to "
        f"{ratios[-1 - quarter]:.3f}, {len(ratios)} pairs, load {load:.1f})"
    )
    for name in PORTS:
        print(
            f"{name}: {found[f'{name}_of_line']:.3f} of the line, {found[f'{name}_cpu_s'] * 1e3:.0f} ms of CPU"
        )


if __name__ == "__main__":
    main()
