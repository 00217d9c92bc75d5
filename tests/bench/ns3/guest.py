"""The testbed's side, inside a guest of the virtual clock: `python -m tests.bench.ns3.guest EXPERIMENT...` (JSON each).

All experiments of a kind share a network; its one slow link is changed in place between them. Prints a line of JSON for
each, and one when a network stands.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import random
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from testbed.net.fabric.network import Fabric
from testbed.net.links import network_namespace
from testbed.net.links.link_engine import requested_settings
from testbed.net.links.packet_sockets import SO_RCVBUFFORCE, SO_SNDBUFFORCE, receive_stamped, udp_pair
from testbed.spec.topology import TopologySpec
from tests.bench.ns3.cells import (
    ACCESS_BPS,
    FRAME_BYTES,
    FRAME_S,
    PROBE_PAUSE_S,
    QUIET_S,
    RATE_BPS,
    SEGMENT_BYTES,
    SENDERS,
    Flows,
    Frames,
    from_json,
)
from tests.bench.ns3.theory import fifo_sojourns

PR_SET_TIMERSLACK = 29
BUFFER_BYTES = 32 << 20
BLOCK_BYTES = 1 << 20
# The receiver wakes for so much: that does not hold acknowledgements back, nor the window, against whose growth newer
# kernels (7.3, not 6.1) count what is not read yet.
WAKE_BYTES = 1 << 15
PORT = 5000
SAMPLE_S = 0.005
PROBE = struct.Struct("=q24x")
FRAME = struct.Struct("=q1464x")
DRAIN_EVERY = 64
# Of struct tcp_info: state of congestion control, unacknowledged segments' ssthresh, bytes acknowledged.
CA_STATE_AT, SSTHRESH_AT, ACKED_AT, INFO_BYTES = 1, 76, 120, 232
RECOVERING = (3, 4)
ROOMY_BYTES = 1 << 28


def pair() -> dict[str, Any]:
    """Sixteen senders and one for the probes, a receiver and one for the probes."""
    nic = {"rate": f"{ACCESS_BPS / 1e9:g} Gbit/s", "queue": "100 MB"}
    return {
        "name": "pair",
        "mtu": 1500,
        "buildings": {"east": {"hosts": SENDERS + 1, "nic": nic}, "west": {"hosts": 2, "nic": nic}},
        "wan": [{"a": "east", "b": "west", "rate": f"{RATE_BPS / 1e6:g} Mbit/s", "delay": "1 ms"}],
    }


def star(delays_s: Sequence[float]) -> dict[str, Any]:
    """A building for each sender, so far from the one that the slow link begins at."""
    nic = {"rate": f"{ACCESS_BPS / 1e9:g} Gbit/s", "queue": "100 MB"}
    fast = {"rate": f"{ACCESS_BPS / 1e9:g} Gbit/s", "queue": "100 MB"}
    far = {f"s{number}": delay_s for number, delay_s in enumerate(delays_s)}
    return {
        "name": "star",
        "mtu": 1500,
        "buildings": {
            **{name: {"hosts": 1, "nic": nic} for name in far},
            "east": {"hosts": 1, "nic": nic},
            "west": {"hosts": 2, "nic": nic},
        },
        "wan": [
            {"a": "east", "b": "west", "rate": f"{RATE_BPS / 1e6:g} Mbit/s", "delay": "1 ms"},
            *({"a": name, "b": "east", "delay": f"{s * 1e6:g} us", **fast} for name, s in far.items()),
        ],
    }


class Network:
    """A fabric whose link east to west is the slow one; the last host at either end is the probes'."""

    def __init__(self, fabric: Fabric, senders: Sequence[str]) -> None:
        hosts = {host.name: host for host in fabric.topology.hosts}
        pids = fabric.state.pids
        self.fabric = fabric
        self.senders = [(pids[name], hosts[name].ip) for name in senders]
        self.receiver, self.sink = [
            (pids[host.name], host.ip) for host in fabric.topology.hosts if host.building == "west"
        ]
        prober = [host for host in fabric.topology.hosts if host.building == "east"][-1]
        self.prober = pids[prober.name], prober.ip
        (self.link,) = [wan.name for wan in fabric.topology.wan if {wan.a, wan.b} == {"east", "west"}]
        self.asked = requested_settings(fabric.plan.wan_wires())

    def change(self, delay_s: float, queue_frames: int, loss: float) -> None:
        """Set the slow link, the way back without loss and with room."""
        assert self.fabric.engine is not None
        forth, back = (self.link, "a_to_b"), (self.link, "b_to_a")
        queue_bytes = queue_frames * FRAME_BYTES
        self.fabric.engine.change(
            {
                forth: replace(self.asked[forth], delay_s=delay_s, loss=loss, queue_bytes=queue_bytes),
                back: replace(self.asked[back], delay_s=delay_s, queue_bytes=ROOMY_BYTES),
            }
        )

    def books(self) -> tuple[int, int]:
        """Packets (dropped by the queue, lost on the way) so far."""
        assert self.fabric.engine is not None
        books = self.fabric.engine.stats().directions[self.link, "a_to_b"]
        return books.dropped, books.lost


class Flow:
    """One TCP connection that sends all it can, or one message."""

    def __init__(self, network: Network, number: int, cell: Flows, began_ns: int) -> None:
        pid, self._address = network.senders[number]
        self._cell, self._number, self._began_ns = cell, number, began_ns
        self.arrivals: list[tuple[int, int]] = []  # (when, bytes so far)
        with network_namespace(network.receiver[0]):
            self._listener = socket.socket()
        with network_namespace(pid):
            self.sender = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((network.receiver[1], PORT + number))
        self._listener.listen(1)
        self.sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
        self.sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, cell.congestion_control.encode())
        self.sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        sleep_until(self._began_ns + round(self._cell.starts_s[self._number] * 1e9))
        block, left = bytes(BLOCK_BYTES), self._cell.message_bytes or sys.maxsize
        with contextlib.suppress(OSError):
            self.sender.connect(self._listener.getsockname())
            self.sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while left > 0:
                left -= self.sender.send(block[: min(left, BLOCK_BYTES)])

    def _receive(self) -> None:
        stream, _ = self._listener.accept()
        if not self._cell.message_bytes:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAKE_BYTES)
        buffer, received = bytearray(BLOCK_BYTES), 0
        with stream, contextlib.suppress(ConnectionResetError):
            while count := stream.recv_into(buffer):
                received += count
                self.arrivals.append((time.time_ns(), received))

    def info(self) -> tuple[int, int, int]:
        """Congestion control's state, slow start's threshold, bytes acknowledged."""
        raw = self.sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        (ssthresh,), (acked,) = (
            struct.unpack_from("=I", raw, SSTHRESH_AT),
            struct.unpack_from("=Q", raw, ACKED_AT),
        )
        return raw[CA_STATE_AT], ssthresh, acked

    def received(self, at_ns: int) -> float:
        """Bytes that had come by then, between two wake-ups in proportion."""
        before = (self._began_ns, 0)
        for when, count in self.arrivals:
            if when >= at_ns:
                share = (at_ns - before[0]) / (when - before[0])
                return before[1] + share * (count - before[1])
            before = when, count
        return before[1]

    def end(self) -> None:
        """Reset it."""
        with contextlib.suppress(OSError):
            self.sender.shutdown(socket.SHUT_RDWR)
        self.sender.close()
        for thread in self._threads:
            thread.join()
        self._listener.close()


def sleep_until(at_ns: int) -> None:
    """By CLOCK_REALTIME, which only sleeping moves here."""
    while (left_ns := at_ns - time.time_ns()) > 0:
        time.sleep(left_ns / 1e9)


def drained(receiver: socket.socket) -> Iterator[tuple[bytes, int]]:
    """What has arrived at a socket that does not block, with when, ns."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield receive_stamped(receiver)


class Probes:
    """Small datagrams at times drawn from a Poisson process, each with its wait in the link's queue."""

    def __init__(self, network: Network, seed: int, until_ns: int) -> None:
        self._network, self._drawn, self._until_ns = network, random.Random(seed), until_ns
        self.found: list[tuple[int, int]] = []  # (sent, took), ns
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with udp_pair(self._network.prober, self._network.sink) as (sender, receiver):
            receiver.setblocking(False)
            for number in itertools.count():
                if (now_ns := time.time_ns()) >= self._until_ns:
                    break
                sender.send(PROBE.pack(now_ns))
                time.sleep(self._drawn.expovariate(1 / PROBE_PAUSE_S))
                if number % DRAIN_EVERY == 0:
                    self._note(receiver)
            time.sleep(1.0)
            self._note(receiver)

    def _note(self, receiver: socket.socket) -> None:
        for packet, arrived_ns in drained(receiver):
            (sent_ns,) = PROBE.unpack(packet)
            self.found.append((sent_ns, arrived_ns - sent_ns))

    def waits_s(self, began_ns: int, from_ns: int) -> list[float]:
        """Beyond what the quickest of those before `began_ns` took, of those sent after `from_ns`."""
        self._thread.join()
        idle_ns = min(took for sent, took in self.found if sent < began_ns)
        return [(took - idle_ns) / 1e9 for sent, took in self.found if sent >= from_ns]


def run_flows(network: Network, cell: Flows) -> dict[str, Any]:
    """What the receivers, the link's books, the probes and the senders' own state say."""
    network.change(cell.delay_s, cell.queue_frames, cell.loss)
    began_ns = time.time_ns() + round(QUIET_S * 1e9)
    warm_ns, end_ns = (began_ns + round(s * 1e9) for s in (cell.warm_up_s, cell.duration_s))
    probes = Probes(network, cell.seed, end_ns)
    flows = [Flow(network, number, cell, began_ns) for number in range(len(cell.starts_s))]
    sleep_until(warm_ns)
    before, events = network.books(), [list[tuple[float, float]]() for _ in flows]
    if cell.message_bytes:
        sleep_until(end_ns)
    else:
        events = watch(flows, end_ns)
    after = network.books()
    for flow in flows:
        flow.end()
    waits_s = probes.waits_s(began_ns, warm_ns)
    measured_s = cell.duration_s - cell.warm_up_s
    return {
        "goodput_bps": [(f.received(end_ns) - f.received(warm_ns)) * 8 / measured_s for f in flows],
        "done_s": [done_s(flow, cell.message_bytes, began_ns) for flow in flows],
        "events": events,
        "dropped": after[0] - before[0],
        "lost": after[1] - before[1],
        "mean_wait_s": statistics.fmean(waits_s),
        "peak_wait_s": max(waits_s),
    }


def done_s(flow: Flow, message_bytes: int, began_ns: int) -> float:
    """When the last of a message came; -1: it did not."""
    return next(((when - began_ns) / 1e9 for when, count in flow.arrivals if count == message_bytes), -1.0)


def watch(flows: Sequence[Flow], end_ns: int) -> list[list[tuple[float, float]]]:
    """Of each flow its congestion events: when, how many segments had been acknowledged, both from now on."""
    began_ns = time.time_ns()
    first = [flow.info() for flow in flows]
    last, events = list(first), [list[tuple[float, float]]() for _ in flows]
    while time.time_ns() < end_ns:
        time.sleep(SAMPLE_S)
        for number, flow in enumerate(flows):
            state, ssthresh, acked = flow.info()
            was, former, _ = last[number]
            entered = state in RECOVERING and was not in RECOVERING
            if entered or (ssthresh != former and state in RECOVERING):
                at_s = (time.time_ns() - began_ns) / 1e9
                events[number].append((at_s, (acked - first[number][2]) / SEGMENT_BYTES))
            last[number] = state, ssthresh, acked
    return events


def run_frames(network: Network, cell: Frames) -> dict[str, Any]:
    """How long they took from the system call to the receiving kernel, and what a FIFO of theirs would take."""
    network.change(cell.delay_s, ROOMY_BYTES // FRAME_BYTES, 0.0)
    sent_ns: list[int] = []
    found: list[tuple[int, int]] = []
    with udp_pair(network.prober, network.sink, in_flight_bytes=ROOMY_BYTES) as (sender, receiver):
        receiver.setblocking(False)

        def drain() -> None:
            found.extend((FRAME.unpack(packet)[0], arrived_ns) for packet, arrived_ns in drained(receiver))

        time.sleep(1.0)
        began_ns = time.time_ns()
        for number, at_ns in enumerate(cell.times_ns()):
            if at_ns:  # a burst is sent without a look at the clock: many looks in a row would take time here
                sleep_until(began_ns + at_ns)
            sent_ns.append(time.time_ns() if at_ns else began_ns)
            sender.send(FRAME.pack(sent_ns[-1]))
            if number % DRAIN_EVERY == 0:
                drain()
        time.sleep(1.0)
        drain()
    took_s = [(arrived - sent) / 1e9 for sent, arrived in found]
    gaps_ns = [after[1] - before[1] for before, after in itertools.pairwise(found)]
    return {
        "lost": cell.count - len(found),
        "took_s": statistics.fmean(took_s),
        "fifo_s": statistics.fmean(fifo_sojourns([at / 1e9 - began_ns / 1e9 for at in sent_ns], FRAME_S)),
        "gaps_ns": gaps_ns if cell.load is None else [],
    }


def main() -> None:
    """Build each network that is needed, try what belongs on it."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # threads inherit it: sleeps end when they should
    experiments = [from_json(word) for word in sys.argv[1:]]
    on_star = [cell for cell in experiments if isinstance(cell, Flows) and any(cell.extra_delays_s)]
    on_pair = [cell for cell in experiments if cell not in on_star]
    kinds: list[tuple[dict[str, Any], Sequence[str], Sequence[Flows | Frames]]] = []
    if on_pair:
        kinds.append((pair(), [f"east{number + 1}" for number in range(SENDERS)], on_pair))
    if on_star:
        delays_s = on_star[0].extra_delays_s
        kinds.append((star(delays_s), [f"s{number}1" for number in range(len(delays_s))], on_star))
    for document, senders, cells in kinds:
        topology = TopologySpec.model_validate(document).resolve()
        with Fabric(topology, link_engine="netem", datapath="system") as fabric:
            network = Network(fabric, senders)
            print(json.dumps({"stands": document["name"]}), flush=True)
            for cell in cells:
                found = run_flows(network, cell) if isinstance(cell, Flows) else run_frames(network, cell)
                print(json.dumps({"name": cell.name, "seed": cell.seed, **found}), flush=True)


if __name__ == "__main__":
    main()
