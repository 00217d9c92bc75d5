"""The userspace link engine's process: `python -m testbed.net.links.emulator`.

It runs inside the WAN namespace and carries Ethernet frames between pairs of interfaces over packet sockets, one
process for all links of a fabric. Its configuration is one line of JSON on standard input; the end of standard input
ends it. It answers requests on a Unix socket (a file, so reachable from every network namespace): one line of JSON in,
one out. A frame's delay counts from the kernel's arrival stamp, not from when we got round to reading it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

from testbed.clock import clock_here
from testbed.net.links.emulated_direction import EmulatedDirection
from testbed.net.links.link_engine import direction_from_json, direction_to_json
from testbed.net.links.packet_sockets import (
    ANCILLARY_BYTES,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    SOL_PACKET,
    TIMESPEC,
    packet_socket,
)
from testbed.net.links.pause import LATE_S, create_directions
from testbed.processes import set_parent_death_signal

PACKET_STATISTICS = 6
PR_SET_TIMERSLACK = 29
RECEIVE_BUFFER_BYTES = 32 * 1024 * 1024
# The kernel charges a frame to who sent it for as long as it waits in a queue beyond, however long that is.
SEND_BUFFER_BYTES = 1 << 29
LARGEST_FRAME_BYTES = 65_600
FRAMES_AT_ONCE = 32  # between looks at what is due
REALTIME_PRIORITY = 10


class Port:
    """A packet socket on one interface and the carrier of the frames that come in there."""

    def __init__(self, interface: str, carrier: EmulatedDirection) -> None:
        self.carrier = carrier
        self.socket = packet_socket(interface)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER_BYTES)

    def drain(self) -> None:
        """Hand what has arrived to the carrier, a bounded number of frames at a time."""
        receive, accept = self.socket.recvmsg, self.carrier.accept
        offset_ns = time.monotonic_ns() - time.time_ns()
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame, ancillary, _flags, _address = receive(LARGEST_FRAME_BYTES, ANCILLARY_BYTES)
            except OSError as error:  # nothing there (EAGAIN), or the interface was just taken down
                if error.errno in (errno.EAGAIN, errno.ENETDOWN):
                    return
                raise
            seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
            accept(frame, seconds * 1_000_000_000 + nanoseconds + offset_ns)

    def missed(self) -> int:
        """Frames that the kernel dropped since the last call because we read too slowly."""
        return int(struct.unpack("II", self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1])


@dataclass
class Route:
    """A carrier, where its frames come in, where they leave; when the next one is due, as it was last asked."""

    carrier: EmulatedDirection
    entry: Port
    exit: Port
    due_ns: int | None = None


class Emulator:
    """All links of one fabric."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.carriers = create_directions(
            configuration["links"], configuration["seed"], LATE_S if clock_here() is None else 0.0
        )
        self._receivers: dict[int, Port] = {}
        self._routes: list[Route] = []
        for link in configuration["links"]:
            forth, back = (self.carriers[link["name"], which] for which in ("a_to_b", "b_to_a"))
            port_a, port_b = Port(link["inner_a"], forth), Port(link["inner_b"], back)
            self._routes += [Route(forth, port_a, port_b), Route(back, port_b, port_a)]
            self._receivers[port_a.socket.fileno()] = port_a
            self._receivers[port_b.socket.fileno()] = port_b
        with contextlib.suppress(FileNotFoundError):
            os.unlink(configuration["control"])
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._control.bind(configuration["control"])
        self._control.listen(8)

    def release(self) -> float:
        """Send every frame that is due; returns the seconds until the next one is (at most 1)."""
        # what has left one link may let the sender of another one go on, which was looked at before
        while self._release_once():
            pass
        next_ns = min((route.due_ns for route in self._routes if route.due_ns is not None), default=None)
        if next_ns is None:
            return 1.0
        return min(1.0, max(0.0, (next_ns - time.monotonic_ns()) / 1e9))

    def _release_once(self) -> bool:
        """Look at each link of which something has changed, or is due; whether one may have to be looked at again."""
        now_ns = time.monotonic_ns()
        for route in self._routes:
            carrier = route.carrier
            if not carrier.changed and (route.due_ns is None or route.due_ns > now_ns):
                continue
            carrier.changed = False
            send = route.exit.socket.send
            while (frame := carrier.due(now_ns)) is not None:
                try:
                    send(frame)
                except OSError as error:  # gone, and the counters say so
                    if error.errno in (errno.ENETDOWN, errno.ENXIO):
                        carrier.lost_at_the_end()
                    else:
                        carrier.refused()
                else:
                    carrier.sent(len(frame))
                now_ns = time.monotonic_ns()
            route.due_ns = carrier.next_release_ns
        return any(route.carrier.changed for route in self._routes)

    def run(self) -> None:
        """Carry frames until standard input ends."""
        control = self._control.fileno()
        watched = [*self._receivers, control, 0]
        while True:
            readable, _, _ = select.select(watched, [], [], self.release())
            for descriptor in readable:
                port = self._receivers.get(descriptor)
                if port is not None:
                    port.drain()
                elif descriptor == control:
                    self._answer()
                elif not os.read(0, 4096):
                    return

    def _answer(self) -> None:
        connection, _ = self._control.accept()
        with connection:
            connection.settimeout(0.05)  # a client that does not speak at once must not hold up the frames
            try:
                request = json.loads(connection.makefile("rb").readline())
                connection.sendall((json.dumps(self._reply(request)) + "\n").encode())
            except (OSError, ValueError, KeyError, TypeError) as error:
                with contextlib.suppress(OSError):
                    connection.sendall((json.dumps({"error": repr(error)}) + "\n").encode())

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        for name, direction, lead_s, ends in request.get("leads", ()):
            addresses = [bytes.fromhex(address.replace(":", "")) for address in ends]
            self.carriers[name, direction].lead(max(0, round(lead_s * 1e9)), addresses)
        for name, direction, settings in request.get("changes", ()):
            self.carriers[name, direction].settings = direction_from_json(settings)
        for direction in ("a_to_b", "b_to_a"):
            for name in request.get("cut", ()):
                self.carriers[name, direction].cut(time.monotonic_ns())
            for name in request.get("mended", ()):
                self.carriers[name, direction].mend(time.monotonic_ns())
        for route in self._routes:
            if missed := route.entry.missed():
                route.carrier.missed(missed)
        show: dict[str, Any] = {}
        for (name, direction), carrier in self.carriers.items():
            if request["operation"] == "account":
                shown = dataclasses.asdict(carrier.account(time.monotonic_ns()))
            else:
                shown = direction_to_json(carrier.settings)
            show.setdefault(name, {})[direction] = shown
        return {"time_s": time.monotonic(), "links": show}


def main() -> None:
    """Read the configuration, open the ports, say `ready`, carry frames."""
    set_parent_death_signal(signal.SIGTERM)
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to handle: it stops us in good order
    configuration = json.loads(sys.stdin.readline())
    realtime = True
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REALTIME_PRIORITY))
    except OSError:
        realtime = False
    emulator = Emulator(configuration)
    gc.disable()  # nothing here makes cycles, and a collection would hold up frames
    print(json.dumps({"event": "ready", "realtime": realtime}), flush=True)
    emulator.run()


if __name__ == "__main__":
    main()
