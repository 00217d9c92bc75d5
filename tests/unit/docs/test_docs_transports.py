"""The transport that the documentation writes, as it stands there: made from a scenario's words, carrying messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.comm.transport import Transport, wait_all
from testbed.comm.transport.kinds import transport_kind
from testbed.comm.transport.socket_view import NoSocketView
from testbed.contrib.conformance import check_transport
from testbed.contrib.conformance.harness import in_threads
from testbed.plugins import PluginError
from testbed.spec.scale import Scale
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import multipath_of, options_of, resolve_endpoints
from testbed.workload.job.endpoints import THIS_NAMESPACE, RankEndpoint, join_job

REPOSITORY = Path(__file__).parents[3]
OPTIONS = {"small_bytes": 1000, "wait_s": 0.05}


@pytest.fixture
def kind(tmp_path: Path) -> str:
    text = (REPOSITORY / "docs/how-to/plugins/transports.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "patient.py").write_text(code)
    return f"{tmp_path}/patient.py:PatientTcp"


def test_small_messages_overtake_large_ones(kind: str) -> None:
    spec = TransportSpec(kind=kind, options=OPTIONS)
    ends = [RankEndpoint(rank, "here", 0, f"127.78.0.{rank + 1}", THIS_NAMESPACE) for rank in range(2)]
    wiring = resolve_endpoints(spec, Scale(), None, ends, seed=3)
    come: list[int] = []

    def program(transport: Transport) -> None:
        sizes = {1: 5000, 2: 10}
        if transport.rank == 0:
            wait_all(transport, [transport.isend(1, tag, memoryview(bytes(sizes[tag]))) for tag in sizes], 10)
            return
        requests = [transport.irecv(0, tag, memoryview(bytearray(sizes[tag]))) for tag in sizes]
        for request in requests:
            request.on_done = lambda done: come.append(done.tag)
        wait_all(transport, requests, 10)

    def make(rank: int) -> Transport:
        joined = join_job(wiring, rank)
        assert not isinstance(joined.sockets, NoSocketView), "the TCP connections below are seen"
        return joined.transport

    in_threads(2, make, program)
    assert come == [2, 1]


def test_it_passes_the_suite(kind: str) -> None:
    check_transport(transport_kind(kind, {"small_bytes": 1000, "wait_s": 0.002}))


def test_its_options_are_scaled_and_checked(kind: str) -> None:
    spec = TransportSpec(kind=kind, options=OPTIONS)
    assert options_of(spec, Scale(10)) == {"small_bytes": 100, "wait_s": 0.05}
    assert multipath_of(spec, []) is None
    wrong = TransportSpec(kind=kind, options={**OPTIONS, "hurry": True})
    ends = [RankEndpoint(0, "here", 0, "127.0.0.1", THIS_NAMESPACE)]
    with pytest.raises(PluginError, match=r"patient\.py, line"):
        resolve_endpoints(TransportSpec(kind=kind, options={"wait_s": 1.0}), Scale(), None, ends, 3)
    loose = resolve_endpoints(TransportSpec(kind=kind, options=OPTIONS), Scale(), None, ends, 3)
    assert loose.channels(0, 0) == 1
    assert wrong.options is not None


def test_the_testbeds_own_take_no_options() -> None:
    with pytest.raises(ValueError, match="options with tcp"):
        TransportSpec(options={"hurry": True})
