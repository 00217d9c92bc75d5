"""The process of the userspace link engine: `python -m testbed.net.links.emulator`.

One process serves all links of a fabric. It runs in the WAN namespace and forwards Ethernet frames between pairs of
interfaces over packet sockets. Its configuration is one line of JSON on standard input; it exits when standard input is
closed. It answers requests on a Unix socket, one line of JSON in and one out; the socket is a file, so every network
namespace can reach it. A frame's delay counts from the kernel's arrival timestamp, not from when the process reads it.
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
from testbed.net.links.link_engine import direction_from_json
from testbed.net.links.packet_sockets import (
    ANCILLARY_BYTES,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    SOL_PACKET,
    TIMESPEC,
    open_packet_socket,
)
from testbed.net.links.pause import PAUSE_LATENESS_S, create_directions
from testbed.processes import set_parent_death_signal

PACKET_STATISTICS = 6
PR_SET_TIMERSLACK = 29
RECEIVE_BUFFER_BYTES = 32 * 1024 * 1024
# The kernel counts a frame against its sending socket while it waits in any queue behind that socket.
SEND_BUFFER_BYTES = 1 << 29
MAX_FRAME_BYTES = 65_600
RECEIVE_BATCH_FRAMES = 32  # maximum before due frames are released again
REALTIME_PRIORITY = 10


class Port:
    """A packet socket on one interface and the direction that its incoming frames take."""

    def __init__(self, interface: str, direction: EmulatedDirection) -> None:
        self.direction = direction
        self.socket = open_packet_socket(interface)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER_BYTES)

    def drain(self) -> None:
        """Pass received frames to the direction, at most RECEIVE_BATCH_FRAMES at a time."""
        receive, accept = self.socket.recvmsg, self.direction.accept
        offset_ns = time.monotonic_ns() - time.time_ns()
        for _ in range(RECEIVE_BATCH_FRAMES):
            try:
                frame, ancillary, _flags, _address = receive(MAX_FRAME_BYTES, ANCILLARY_BYTES)
            except OSError as error:  # no frame (EAGAIN), or the interface was just taken down
                if error.errno in (errno.EAGAIN, errno.ENETDOWN):
                    return
                raise
            seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
            accept(frame, seconds * 1_000_000_000 + nanoseconds + offset_ns)

    def read_missed(self) -> int:
        """Return how many frames the kernel dropped since the last call because the process read too slowly."""
        return int(struct.unpack("II", self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1])


@dataclass
class Route:
    """A direction with its entry and exit ports, and the cached time at which its next frame is due."""

    direction: EmulatedDirection
    entry: Port
    exit: Port
    due_ns: int | None = None


class Emulator:
    """All links of one fabric."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.directions = create_directions(
            configuration["links"], configuration["seed"], PAUSE_LATENESS_S if clock_here() is None else 0.0
        )
        self._receivers: dict[int, Port] = {}
        self._routes: list[Route] = []
        for link in configuration["links"]:
            forth, back = (self.directions[link["name"], which] for which in ("a_to_b", "b_to_a"))
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
        """Send every frame that is due and return the seconds until the next one (at most 1)."""
        # a departure from one link may resume the paused sender of a link that was already processed
        while self._release_once():
            pass
        next_ns = min((route.due_ns for route in self._routes if route.due_ns is not None), default=None)
        if next_ns is None:
            return 1.0
        return min(1.0, max(0.0, (next_ns - time.monotonic_ns()) / 1e9))

    def _release_once(self) -> bool:
        """Process each link that has changed or has frames due; return whether another pass is needed."""
        now_ns = time.monotonic_ns()
        for route in self._routes:
            direction = route.direction
            if not direction.changed and (route.due_ns is None or route.due_ns > now_ns):
                continue
            direction.changed = False
            send = route.exit.socket.send
            while (frame := direction.pop_due(now_ns)) is not None:
                try:
                    send(frame)
                except OSError as error:  # the frame is lost, and counted
                    if error.errno in (errno.ENETDOWN, errno.ENXIO):
                        direction.count_exit_down()
                    else:
                        direction.count_refused()
                else:
                    direction.count_sent(len(frame))
                now_ns = time.monotonic_ns()
            route.due_ns = direction.next_release_ns
        return any(route.direction.changed for route in self._routes)

    def run(self) -> None:
        """Forward frames until standard input is closed."""
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
            connection.settimeout(0.05)  # a slow client must not delay the frames
            try:
                request = json.loads(connection.makefile("rb").readline())
                connection.sendall((json.dumps(self._reply(request)) + "\n").encode())
            except (OSError, ValueError, KeyError, TypeError) as error:
                with contextlib.suppress(OSError):
                    connection.sendall((json.dumps({"error": repr(error)}) + "\n").encode())

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        for name, which, lead_s, ends in request.get("leads", ()):
            addresses = [bytes.fromhex(address.replace(":", "")) for address in ends]
            self.directions[name, which].set_lead(max(0, round(lead_s * 1e9)), addresses)
        for name, which, settings in request.get("changes", ()):
            self.directions[name, which].settings = direction_from_json(settings)
        for which in ("a_to_b", "b_to_a"):
            for name in request.get("cut", ()):
                self.directions[name, which].cut(time.monotonic_ns())
            for name in request.get("restored", ()):
                self.directions[name, which].restore(time.monotonic_ns())
        for route in self._routes:
            if missed := route.entry.read_missed():
                route.direction.count_missed(missed)
        links: dict[str, Any] = {}
        for (name, which), direction in self.directions.items():
            if request["operation"] == "stats":
                shown = dataclasses.asdict(direction.stats(time.monotonic_ns()))
            else:
                shown = dataclasses.asdict(direction.settings)
            links.setdefault(name, {})[which] = shown
        return {"time_s": time.monotonic(), "links": links}


def main() -> None:
    """Read the configuration, open the ports, print `ready`, and forward frames."""
    set_parent_death_signal(signal.SIGTERM)
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles Ctrl-C and then closes standard input
    configuration = json.loads(sys.stdin.readline())
    realtime = True
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REALTIME_PRIORITY))
    except OSError:
        realtime = False
    emulator = Emulator(configuration)
    gc.disable()  # this process creates no reference cycles, and a collection would delay frames
    print(json.dumps({"event": "ready", "realtime": realtime}), flush=True)
    emulator.run()


if __name__ == "__main__":
    main()
