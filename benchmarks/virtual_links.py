"""Round trip and goodput of shaped, lossless links under the virtual clock, against theory.

    .venv/bin/python benchmarks/virtual_links.py [RATE...]        default: 1 Mbit/s to 400 Gbit/s

Each rate gets a guest of its own with two buildings of one host each. Round trip: of small datagrams and of such as
fill a frame, one at a time; in theory twice the delay, and there and back a frame's time on each of three links (card,
WAN, card), of which each has all of the frame before the next begins. Goodput: of one TCP flow in its steady state, the
second half of the transfer; in theory the rate times 8948 payload bytes per frame of 9014. Prints a table in Markdown.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from testbed.clock import clock_here
from testbed.net.virtual.guest import Guest, GuestSettings
from testbed.net.virtual.kernel_image import find_image
from testbed.spec.topology import TopologySpec
from testbed.spec.units import format_rate, parse_rate

RATES = (
    "1 Mbit/s",
    "10 Mbit/s",
    "100 Mbit/s",
    "1 Gbit/s",
    "10 Gbit/s",
    "40 Gbit/s",
    "100 Gbit/s",
    "400 Gbit/s",
)
DELAY_S = 2.5e-3
PAYLOAD, FRAME = 8948, 9014
LINKS = 3
FRAMES, DATAGRAM_HEADER_BYTES = (46, FRAME), 42  # of Ethernet, IPv4 and UDP
FLOW_S, LEAST_FRAMES, MOST_BYTES = 0.06, 400, 3_000_000_000
PINGS = 20
MEMORY_BYTES = 6 << 30


def round_trip_s(rate_bps: float, frame_bytes: int) -> float:
    """In theory."""
    return 2 * (DELAY_S + LINKS * frame_bytes * 8 / rate_bps)


def measure(rate: str) -> dict[str, Any]:
    """Inside a guest: build, measure."""
    from testbed.net.fabric.network import Fabric  # noqa: PLC0415 (outside a guest nothing is built)
    from testbed.net.links import network_namespace  # noqa: PLC0415

    document = {
        "name": "pair",
        "mtu": 9000,
        "buildings": {name: {"hosts": 1, "nic": {"rate": rate}} for name in ("east", "west")},
        "wan": [{"a": "east", "b": "west", "rate": rate, "delay": f"{DELAY_S * 1e3} ms"}],
    }
    topology = TopologySpec.model_validate(document).resolve()
    here, there = topology.hosts
    with Fabric(topology, link_engine="netem", datapath="system") as fabric:
        pids = fabric.state.pids

        def make(host: str, kind: socket.SocketKind) -> socket.socket:
            with network_namespace(pids[host]):
                return socket.socket(socket.AF_INET, kind)

        round_trips = [
            statistics.median(
                _ping(
                    make(here.name, socket.SOCK_DGRAM),
                    make(there.name, socket.SOCK_DGRAM),
                    here.ip,
                    there.ip,
                    bytes(size - DATAGRAM_HEADER_BYTES),
                )
            )
            for size in FRAMES
        ]
        goodput = _flow(
            make(here.name, socket.SOCK_STREAM),
            make(there.name, socket.SOCK_STREAM),
            there.ip,
            parse_rate(rate),
        )
    return {"round_trips_s": round_trips, "goodput_bps": goodput}


def _ping(
    client: socket.socket, server: socket.socket, here: str, there: str, datagram: bytes
) -> list[float]:
    client.bind((here, 0))
    server.bind((there, 0))
    client.connect(server.getsockname())
    times = []
    for _ in range(PINGS):
        began_ns = time.monotonic_ns()
        client.send(datagram)
        data, sender = server.recvfrom(FRAME)
        server.sendto(data, sender)
        client.recv(FRAME)
        times.append((time.monotonic_ns() - began_ns) / 1e9)
    return times


def _flow(client: socket.socket, server: socket.socket, there: str, rate_bps: float) -> float:
    """Payload bit/s of the second half."""
    size = int(min(MOST_BYTES, max(LEAST_FRAMES * FRAME, rate_bps / 8 * FLOW_S)))
    server.bind((there, 0))
    server.listen(1)

    def send() -> None:
        client.connect(server.getsockname())
        block, left = bytes(1 << 20), size
        while left > 0:
            left -= client.send(block[: min(left, len(block))])
        client.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    stream, _ = server.accept()
    # half of a first window at most: newer kernels let no window grow of which nothing is read before it is full
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 15)
    buffer, received, marks = bytearray(4 << 20), 0, []
    while count := stream.recv_into(buffer):
        received += count
        if received >= size / 2:
            marks.append((time.monotonic_ns(), received))
    sender.join()
    # the last piece is shorter than the rest wait for: leave it out
    (begin_ns, first), (end_ns, last) = marks[0], marks[-2]
    return (last - first) * 8 / ((end_ns - begin_ns) / 1e9)


def main() -> None:
    """A guest for each rate, one table."""
    if clock_here() is not None:
        print(json.dumps(measure(sys.argv[1])))
        return
    image = find_image()
    print(f"Linux {image.version}, {os.cpu_count()} cores\n")
    trips = " | ".join(f"round trip of {size} bytes | error" for size in FRAMES)
    print(f"| rate | {trips} | goodput expected | measured | error | wall time |")
    print("|---|---|---|---|---|---|---|---|---|")
    for rate in sys.argv[1:] or RATES:
        said: list[str] = []
        errors: list[str] = []
        guest = Guest(image, GuestSettings(memory_bytes=MEMORY_BYTES))
        command = [sys.executable, str(Path(__file__).resolve()), rate]
        ended = guest.run(command, Path.cwd(), {}, said.append, errors.append)
        if ended.status != 0:
            sys.exit(f"{rate}: {''.join(errors)}")
        found = json.loads("".join(said))
        expected = parse_rate(rate) * PAYLOAD / FRAME
        theory_s = [round_trip_s(parse_rate(rate), size) for size in FRAMES]
        trips = " | ".join(
            f"{wanted_s * 1e3:.4f} ms | {(took_s - wanted_s) * 1e6:+.3f} us"
            for wanted_s, took_s in zip(theory_s, found["round_trips_s"], strict=True)
        )
        print(
            f"| {rate} | {trips} | {format_rate(round(expected))} | "
            f"{format_rate(round(found['goodput_bps']))} | {found['goodput_bps'] / expected - 1:+.3%} | "
            f"{ended.wall_s:.0f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
