"""Whoever changes what a connection goes by is noticed: by the socket's owner, and by anybody who asks the kernel."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from testbed.comm.transport.socket_view import NoSocketView
from testbed.comm.transport.sockets import SocketOptions, changed_options, read_socket_options
from testbed.measure.execution.rank_evidence import socket_changes
from testbed.measure.ranks.telemetry import HostMonitor
from testbed.net.links.socket_table import SocketTable

_SO_MAX_PACING_RATE = 47


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over the loopback: the end that dialled, and the other one."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        dialled = stack.enter_context(socket.create_connection(listener.getsockname()))
        yield dialled, stack.enter_context(listener.accept()[0])


@pytest.mark.parametrize(
    ("level", "option", "value", "words"),
    [
        (socket.IPPROTO_TCP, socket.TCP_CORK, 1, "TCP_CORK 0 -> 1"),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1, "TCP_NODELAY 0 -> 1"),
        (socket.IPPROTO_IP, socket.IP_TOS, 184, "IP_TOS 0 -> 184"),
        (socket.SOL_SOCKET, socket.SO_SNDBUF, 8192, "SO_SNDBUF sized by the kernel -> 16384"),
    ],
)
def test_an_option_that_is_changed_is_told_with_both_values(
    connection: tuple[socket.socket, socket.socket], level: int, option: int, value: int, words: str
) -> None:
    dialled, _ = connection
    before = read_socket_options(dialled)
    assert changed_options(before, read_socket_options(dialled)) == []
    dialled.setsockopt(level, option, value)
    assert words in changed_options(before, read_socket_options(dialled))


def test_the_kernel_tells_others_what_a_connection_goes_by(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    """But for a connection that is still being set up."""
    dialled, _ = connection
    port = f":{dialled.getsockname()[1]} to "
    table = SocketTable(None)

    def told() -> list[str]:
        return [words.partition(": ")[2] for words in table.changes() if port in words]

    assert told() == []
    dialled.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8)
    assert told() == told() == []
    dialled.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 125_000)
    dialled.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 184)
    found = told()
    assert "TOS 8 -> 184" in found
    assert any(words.endswith("-> 125000") for words in found)
    assert told() == []
    table.close()


class Sockets(NoSocketView):
    """One connection, as far as a monitor looks at it."""

    corked = 0

    def socket_options(self) -> dict[tuple[int, object], SocketOptions]:
        return {(3, "it"): {"TCP_CORK": self.corked}}


def test_a_rank_tells_of_each_change_once_and_the_verdict_names_its_host() -> None:
    sockets = Sockets()
    monitor = HostMonitor(sockets)
    monitor.begin()
    sockets.corked = 1
    first, second = monitor.end(1.0, 2.0), monitor.end(2.0, 3.0)
    assert first["socket_changes"] == ["the connection with rank 3: TCP_CORK 0 -> 1"]
    assert "socket_changes" not in second
    samples = [{"rank": 1, "end_s": 2.0, **first}, {"rank": 0, "end_s": 3.0, **second}]
    (change,) = socket_changes(samples, ["east1", "west1"])
    assert (change.time_s, change.words) == (2.0, "west1: the connection with rank 3: TCP_CORK 0 -> 1")
