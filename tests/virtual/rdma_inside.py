"""What is tried on soft-RoCE in one guest: `python -m tests.virtual.rdma_inside conformance | link RATE DELAY ...`.

Hosts are namespaces around a bridge, which holds frames back on their way out; each has a card with verbs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from testbed.comm.transport import MeshSettings, Request, Transport, TransportKind, wait_all
from testbed.comm.transport.kinds import transport_kind
from testbed.contrib.conformance import check_transport
from testbed.net.links.netns import set_network_namespace
from testbed.net.links.setup import add_soft_roce
from testbed.spec.scale import UNSCALED
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import options_of

MTU = 9000


def command(line: str) -> None:
    subprocess.run(line.split(), check=True)


def entered(host: str) -> None:
    """Take this thread into a host's namespace, for good."""
    with open(f"/run/netns/{host}") as file:
        set_network_namespace(file.fileno())


class Hosts:
    """So many, at 10.0.0.1 and on. rate: of their cards, by TBF. delay: of each way from host to host, by netem, which
    loses a share of what goes to the last one.
    """

    def __init__(self, count: int, rate: str | None = None, delay: str = "", loss: str = "") -> None:
        self.names = [f"h{number}" for number in range(1, count + 1)]
        command("ip netns add bridge")
        command("ip -n bridge link add br0 type bridge")
        command(f"ip -n bridge link set br0 mtu {MTU} up")
        for number, name in enumerate(self.names, 1):
            command(f"ip netns add {name}")
            command(f"ip -n {name} link set lo up")
            ends = f"ip link add eth0 netns {name} mtu {MTU} type veth peer name to-{name} netns bridge mtu {MTU}"
            command(ends)
            command(f"ip -n {name} addr add 10.0.0.{number}/24 dev eth0")
            command(f"ip -n {name} link set eth0 up")
            command(f"ip -n bridge link set to-{name} master br0 up")
            if rate:
                shape = f"tbf rate {rate} burst 20k limit 200mb"
                command(f"ip netns exec {name} tc qdisc add dev eth0 root {shape}")
            if delay:
                words = f"netem limit 1000000 delay {delay}" + (
                    f" loss {loss}" if loss and number == count else ""
                )
                command(f"ip netns exec bridge tc qdisc add dev to-{name} root {words}")
        threads = [threading.Thread(target=self._card, args=(name,)) for name in self.names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def _card(name: str) -> None:
        entered(name)
        add_soft_roce(f"rxe_{name}", "eth0")

    def address(self, rank: int) -> tuple[str, int]:
        return f"10.0.0.{rank + 1}", 29_500

    @contextlib.contextmanager
    def mesh(self, kind: TransportKind, size: int) -> Iterator[Callable[[int], Transport]]:
        """What makes each rank's transport, in a thread that is taken into its host."""
        addresses = [self.address(rank) for rank in range(size)]

        def make(rank: int) -> Transport:
            entered(self.names[rank])
            return kind.make(rank, addresses, MeshSettings(token="check"), ["same_region"] * size)

        yield make


def rdma(window: int = 1 << 22, **stripes: object) -> TransportKind:
    own = {"stripes": {"same_region": stripes}, "rdma": {"window": window}}
    spec = TransportSpec.model_validate({"kind": "rdma", **own})
    return transport_kind("rdma", options_of(spec, UNSCALED))


def conformance() -> None:
    """The suite of all transports."""
    hosts = Hosts(4)
    each: tuple[dict[str, Any], ...] = (
        {"connections": 3, "segment": "5 kB", "outstanding": 2},
        {"mode": "spray"},
    )
    for kind in [rdma(**stripes) for stripes in each]:
        check_transport(partial(hosts.mesh, kind))
    print(json.dumps("conforms"))


def measured(hosts: Hosts, size_bytes: int, count: int, **own: Any) -> dict[str, float]:
    """A message of nothing there and back, and messages one way, by two ranks: times in seconds, bits per second."""
    kind, found = rdma(**own), {}

    def rank(number: int, make: Callable[[int], Transport]) -> None:
        transport, peer = make(number), 1 - number

        def done(*requests: Request) -> None:
            wait_all(transport, requests, 600.0)

        def trip() -> None:
            order = (transport.isend, transport.irecv) if number == 0 else (transport.irecv, transport.isend)
            for what in order:
                done(what(peer, 1, memoryview(bytearray(1))))

        for _ in range(3):
            trip()
        began_s = time.monotonic()
        trip()
        if number == 0:
            found["round_trip_s"] = time.monotonic() - began_s
        array = np.zeros(size_bytes, np.uint8)
        if number == 1:
            receives = [transport.irecv(0, 2, array.data) for _ in range(count)]
            done(receives[0])
            began_s, begun = time.monotonic(), count - 1
            done(*receives)
            found["goodput_bps"] = size_bytes * begun * 8 / (time.monotonic() - began_s)
        else:
            done(*(transport.isend(1, 2, array.data) for _ in range(count)))
        trip()
        transport.close()

    with hosts.mesh(kind, 2) as make:
        threads = [threading.Thread(target=rank, args=(number, make)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def link(rate: str, delay: str, loss: str = "", window: str = "4194304") -> None:
    """rate: of the cards; delay: each way; loss: one way; window: packets under way."""
    hosts, size_bytes = Hosts(2, rate, delay, loss), 1 << 20
    print(json.dumps(measured(hosts, size_bytes, 200, window=int(window), connections=1, outstanding=128)))


def main(words: Sequence[str]) -> None:
    """One of them."""
    if words[0] == "conformance":
        conformance()
    else:
        link(*words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
