"""Messages between two hosts of a guest, one after the other, with each transport: both ranks' program.

    testbed launch -t TOPOLOGY --clock virtual --transport rdma -- python benchmarks/losses/messages.py ASKED.json

Rank 0 prints a line of JSON per transport and size: when each message was whole at rank 1, seconds after rank 0 began
to send it. Both read one clock, as they are processes of one kernel. Rank 1 waits for a message before it says that it
has the one before; of that answer nothing is counted. Messages of one size share a connection: what TCP learns of one
counts for the next. The first `unmeasured` of them are sent and left out.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.comm.transport import Transport, wait_all
from testbed.spec.scale import UNSCALED
from testbed.spec.topology import load_topology
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import endpoints_on, resolve_endpoints
from testbed.workload.job.endpoints import THIS_NAMESPACE, join_job

DATA, ANSWER = 1, 2
TIMEOUT_S = 3000.0
MOMENT = struct.Struct("=d")


def carry(transport: Transport, size_bytes: int, count: int) -> list[float]:
    """Seconds that each message took, on rank 0; of others nothing."""
    peer, took_s = 1 - transport.rank, []
    data, answer = memoryview(bytearray(size_bytes)), memoryview(bytearray(MOMENT.size))

    def done(*requests: Any) -> None:
        wait_all(transport, requests, TIMEOUT_S)

    if transport.rank == 0:
        for number in range(count + 1):
            answered = transport.irecv(peer, ANSWER, answer)
            if number:
                begun_s = time.monotonic()
                done(transport.isend(peer, DATA, data))
            done(answered)
            if number:
                took_s.append(MOMENT.unpack(answer)[0] - begun_s)
        return took_s
    for number in range(count + 1):
        waited = transport.irecv(peer, DATA, data) if number < count else None
        MOMENT.pack_into(answer, 0, time.monotonic())
        done(transport.isend(peer, ANSWER, answer))
        if waited is not None:
            done(waited)
    return took_s


def main() -> None:
    """All that the file asks for."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    rank, topology = int(os.environ["RANK"]), load_topology(Path(asked["topology"])).resolve()
    hosts = dict.fromkeys((host.name for host in topology.hosts), THIS_NAMESPACE)
    endpoints = endpoints_on(topology, topology.hosts, hosts)
    for number, one in enumerate(asked["sent"]):
        spec = TransportSpec.model_validate(one["transport"])
        # source ports go by the seed, and may not be used again at once
        wiring = resolve_endpoints(
            spec,
            UNSCALED,
            topology,
            endpoints,
            asked["seed"] + number,
            congestion_control=spec.congestion_control,
        )
        transport = join_job(replace(wiring, token=f"messages-{number}"), rank).transport
        took_s = carry(transport, one["size_bytes"], one["unmeasured"] + one["count"])
        transport.close()
        if rank == 0:
            print(json.dumps({**one, "took_s": took_s[one["unmeasured"] :]}), flush=True)


if __name__ == "__main__":
    main()
