"""Ranks that know rank 0's address find all others; strangers do not; who does not come is named; what it costs."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from testbed.comm.transport import TransportTimeout
from testbed.comm.transport.bootstrap import METHODS, bootstrap
from testbed.comm.transport.wire import ConnectionKey, make_hello


def together(
    method: str, size: int, late: int | None = None, tokens: dict[int, str] | None = None
) -> list[Any]:
    """What each rank found, or the error that it ended with."""
    entrance = socket.socket()
    entrance.bind(("127.0.0.1", 0))
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        if rank == late:
            time.sleep(0.1)
        try:
            results[rank] = bootstrap(
                method,
                rank,
                size,
                entrance.getsockname(),
                ("127.0.0.1", 5000 + rank),
                (tokens or {}).get(rank, "token"),
                timeout_s=0.5 if tokens else 10,
                master_listener=entrance if rank == 0 else None,
            )
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    entrance.close()
    return results


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 17])
def test_all_ranks_find_all_others(method: str, size: int) -> None:
    for late in (None, 0, size - 1):
        results = together(method, size, late)
        expected = [("127.0.0.1", 5000 + rank) for rank in range(size)]
        assert [addresses for addresses, _ in results] == [expected] * size


@pytest.mark.parametrize("size", [2, 8, 17])
def test_what_it_costs(size: int) -> None:
    """Star: rank 0 sends a table to each. Ring: a rank sends its own address, n - 2 others and two hellos."""
    entry, hello = 6, 64
    star = [report for _, report in together("star", size)]
    assert (star[0].messages_sent, star[0].messages_received) == (size - 1, size - 1)
    assert star[0].bytes_sent == (size - 1) * size * entry
    assert all(report.bytes_sent == hello + entry and report.connections == 1 for report in star[1:])
    ring = [report for _, report in together("ring_hybrid", size)]
    for rank, report in enumerate(ring):
        handed = (size - 1) * entry if rank == 0 else hello + entry
        assert report.bytes_sent == handed + hello + (size - 1) * entry
        assert report.connections == (size + 1 if rank == 0 else 3)
        assert report.time_s > 0


@pytest.mark.parametrize("method", METHODS)
def test_who_does_not_come_is_named_and_another_job_stays_outside(method: str) -> None:
    results = together(method, 3, tokens={2: "another"})
    assert isinstance(results[0], TransportTimeout)
    assert "rank 0: bootstrap: waiting to hear from peer 2: nothing within 0.5 s" in str(results[0])
    assert all(isinstance(result, Exception) for result in results)


@pytest.mark.parametrize("method", METHODS)
def test_strangers_do_not_disturb(method: str) -> None:
    entrance = socket.socket()
    entrance.bind(("127.0.0.1", 0))
    entrance.listen()
    strangers = [socket.create_connection(entrance.getsockname()) for _ in range(4)]
    strangers[0].sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 100)
    strangers[1].sendall(make_hello(1, 0, 2, "another", ConnectionKey()) + b"123456")
    strangers[2].close()
    results: list[Any] = [None, None]

    def run(rank: int) -> None:
        results[rank] = bootstrap(
            method, rank, 2, entrance.getsockname(), ("127.0.0.1", 5000 + rank), "token", 10,
            entrance if rank == 0 else None,
        )  # fmt: skip

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [found[0] for found in results] == [[("127.0.0.1", 5000), ("127.0.0.1", 5001)]] * 2
    for stranger in strangers:
        stranger.close()


def test_other_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="method: got 'gossip', expected one of star, ring_hybrid"):
        bootstrap("gossip", 0, 1, ("127.0.0.1", 1), ("127.0.0.1", 2), "token")
