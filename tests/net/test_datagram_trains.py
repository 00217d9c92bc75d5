"""Trains of datagrams: IP counts each as one packet, the cable carries single ones, and what was cut is told."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from testbed.clock import clock_here
from testbed.comm.transport import MeshSettings, Transport
from testbed.comm.transport.datagram.transport import DatagramTransport
from testbed.contrib.conformance.harness import in_threads, wait_requests
from testbed.net.links import network_namespace
from testbed.net.links.interfaces import read_node_counts
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape, shape_commands
from tests.net.line import LEFT, MTU, RIGHT, back_to_back

pytestmark = pytest.mark.net

RATE_BPS, QUEUE_BYTES = 200e6, 64 * MTU
MESSAGE_BYTES = 4_000_000


def test_packets_of_a_train_are_single_on_the_cable() -> None:
    with back_to_back() as hosts:
        for host in hosts:
            Setup(tc=shape_commands("eth0", Shape(RATE_BPS, QUEUE_BYTES), MTU)).apply(host.pid)
        addresses = [(LEFT, 7001), (RIGHT, 7001)]

        def make(rank: int) -> DatagramTransport:
            with network_namespace(hosts[rank].pid):
                listener = socket.socket()
                listener.bind(addresses[rank])
                return DatagramTransport(
                    rank, addresses, MeshSettings("trains", port_bps=RATE_BPS), listener=listener
                )

        def program(transport: Transport) -> dict[str, Any]:
            assert isinstance(transport, DatagramTransport)
            data = memoryview(bytearray(MESSAGE_BYTES))
            with network_namespace(hosts[transport.rank].pid):
                if transport.rank == 0:
                    wait_requests(transport, transport.isend(1, 1, data))
                    wait_requests(transport, transport.irecv(1, 2, memoryview(bytearray(1))))
                else:
                    wait_requests(transport, transport.irecv(0, 1, data))
                    wait_requests(transport, transport.isend(0, 2, memoryview(b"x")))
            return transport.socket_info()[0]

        told = in_threads(2, make, program)[0]
        sender, receiver = (read_node_counts(host.pid, protocols=True) for host in hosts)
    assert sender.protocols is not None
    assert receiver.protocols is not None
    assert receiver.ports["eth0"].rx_packets == sender.ports["eth0"].tx_packets >= told["packets_sent"]
    assert receiver.protocols.in_packets == sender.protocols.out_packets + told["packets_cut"]
    assert told["packets_resent"] == 0  # what the card's queue did not take was not lost
    # four fit into what the shaper lets go at once, 50 kB; under the virtual clock none are made
    packets = MESSAGE_BYTES / 8920
    assert (0 if clock_here() == "free" else packets / 2) <= told["packets_cut"] < packets
