"""The self-test of a new fabric: TCP across every WAN link and between buildings, and the path's own latency.

A working ping is not enough: with a wrong offload setting, small packets pass while TCP hangs. So the test sends bytes
and compares them.

Switches and wake-ups add latency (about 0.3 ms one way through two userspace edges). This is measured on the idle path,
and the link engine subtracts it from the delay. The far edge causes part of it: a third on an idle machine (0.13 of
0.41 ms), two thirds on a busy one. So for a packet that continues on another link, half of the latency is left for that
link to subtract.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import time
from dataclasses import dataclass

from testbed.net.errors import FabricError
from testbed.net.fabric.plan import Plan, probe_node
from testbed.net.links import network_namespace
from testbed.net.links.packet_sockets import measure_one_way_delays, probe_transmission_s
from testbed.spec.topology import probe_address

TRANSFER_BYTES = 64 * 1024
TIMEOUT_S = 20.0
EXCESS_PACKETS = 9
EXCESS_PAUSE_S = 0.02  # as sparse as ping, so that every packet wakes up each process on the path
EXCESS_MAX_S = 0.0006  # twice the latency that two userspace edges add to a path on an idle machine


@dataclass
class _Transfer:
    """A TCP connection within this process, with its ends in two namespaces."""

    name: str
    sender: socket.socket
    listener: socket.socket
    payload: bytes
    sent: int = 0
    receiver: socket.socket | None = None
    received: bytearray | None = None

    @property
    def done(self) -> bool:
        return self.received is not None and len(self.received) >= len(self.payload)


def check_transfers(plan: Plan, pids: dict[str, int]) -> None:
    """Send TRANSFER_BYTES over every WAN link in both directions, and between all buildings with hosts.

    Hosts on other machines, which are not in `pids`, are skipped; all probe nodes are on this machine.

    Raises:
        FabricError: A transfer failed; the message names it.
    """
    ends = []
    for index, link in enumerate(plan.topology.wan):
        a = (probe_node(link.a), probe_address(index, "a"))
        b = (probe_node(link.b), probe_address(index, "b"))
        ends += [(f"link {link.name} a to b", a, b), (f"link {link.name} b to a", b, a)]
    hosts = [building.hosts[0] for building in plan.topology.populated]
    first = [(host.name, host.ip) for host in hosts if host.name in pids]
    ends += [
        (f"host {here[0]} to host {there[0]}", here, there)
        for here, there in itertools.permutations(first, 2)
    ]
    # In batches, since many concurrent transfers would take long on slow links.
    for start in range(0, len(ends), 16):
        with contextlib.ExitStack() as stack:
            _run([_open(stack, pids, *end) for end in ends[start : start + 16]])


def measure_path_excess(plan: Plan, pids: dict[str, int]) -> dict[tuple[str, str], float]:
    """Measure the latency of each idle WAN direction beyond its configured delay and serialisation time.

    It is the minimum over EXCESS_PACKETS, at most EXCESS_MAX_S: a machine that is busy during the measurement must not
    make its links permanently too fast. This process takes the send times, the receiving kernel the arrival times.

    Returns:
        Seconds by (link, direction).
    """
    excess = {}
    for index, link in enumerate(plan.topology.wan):
        a = (pids[probe_node(link.a)], probe_address(index, "a"))
        b = (pids[probe_node(link.b)], probe_address(index, "b"))
        for direction, here, there in (("a_to_b", a, b), ("b_to_a", b, a)):
            times = measure_one_way_delays(here, there, EXCESS_PACKETS, EXCESS_PAUSE_S)
            if times:  # a link that loses everything has no result; the probes will report it
                configured = getattr(link, direction)
                measured_s = min(times) - configured.delay_s - probe_transmission_s(configured.rate_bps)
                excess[link.name, direction] = min(measured_s, EXCESS_MAX_S)
    return excess


def far_end_macs(plan: Plan) -> dict[tuple[str, str], list[str]]:
    """Return the Ethernet addresses of hosts and the probe node at the far end of each WAN direction."""
    at = {
        building.name: [plan.probe_mac(building.name), *(host.mac for host in building.hosts)]
        for building in plan.topology.buildings
    }
    ends = [((link.name, "a_to_b"), link.b) for link in plan.topology.wan]
    ends += [((link.name, "b_to_a"), link.a) for link in plan.topology.wan]
    return {where: at[building] for where, building in ends}


def _open(
    stack: contextlib.ExitStack,
    pids: dict[str, int],
    name: str,
    here: tuple[str, str],
    there: tuple[str, str],
) -> _Transfer:
    ends = []
    for node, address in (there, here):
        with network_namespace(pids[node]):
            end = stack.enter_context(
                socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            )
        bind_any_port(end, address)
        ends.append(end)
    listener, sender = ends
    listener.listen(1)
    with contextlib.suppress(BlockingIOError):
        sender.connect(listener.getsockname())
    return _Transfer(name, sender, listener, os.urandom(TRANSFER_BYTES))


def bind_any_port(sock: socket.socket, address: str) -> None:
    """Bind to a free port that ranks can bind again at once.

    Ranks bind fixed ports. A socket of the self-test in TIME_WAIT would block one of them for a minute, unless both
    have SO_REUSEADDR. It is set after `bind`, since before it the kernel would choose another port.
    """
    sock.bind((address, 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _run(transfers: list[_Transfer]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    try:
        with selectors.DefaultSelector() as selector:
            for transfer in transfers:
                selector.register(transfer.sender, selectors.EVENT_WRITE, transfer)
                selector.register(transfer.listener, selectors.EVENT_READ, transfer)
            while pending := [transfer for transfer in transfers if not transfer.done]:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    names = ", ".join(transfer.name for transfer in pending)
                    raise FabricError(
                        f"a TCP transfer of {TRANSFER_BYTES} bytes did not arrive in {TIMEOUT_S:.0f} s: {names}"
                    )
                for key, _events in selector.select(remaining_s):
                    _step(selector, key.data, key.fileobj)
        for transfer in transfers:
            if bytes(transfer.received or b"") != transfer.payload:
                raise FabricError(f"a TCP transfer was corrupted: {transfer.name}")
    finally:
        for transfer in transfers:
            if transfer.receiver is not None:
                transfer.receiver.close()


def _step(selector: selectors.BaseSelector, transfer: _Transfer, ready: object) -> None:
    if ready is transfer.listener:
        transfer.receiver, _ = transfer.listener.accept()
        transfer.receiver.setblocking(False)
        transfer.received = bytearray()
        selector.unregister(transfer.listener)
        selector.register(transfer.receiver, selectors.EVENT_READ, transfer)
    elif ready is transfer.sender:
        if error := transfer.sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise FabricError(f"a TCP connection failed: {transfer.name}: {os.strerror(error)}")
        transfer.sent += transfer.sender.send(transfer.payload[transfer.sent :])
        if transfer.sent == len(transfer.payload):
            selector.unregister(transfer.sender)
    elif transfer.receiver is not None and transfer.received is not None:
        transfer.received += transfer.receiver.recv(1 << 16)
        if transfer.done:
            selector.unregister(transfer.receiver)
