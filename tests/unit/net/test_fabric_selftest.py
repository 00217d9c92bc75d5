"""The self-test of a fabric leaves no port that a rank cannot bind."""

from __future__ import annotations

import socket

from testbed.net.fabric.selftest import bind_any_port


def test_ports_of_the_self_test_can_be_bound_again_at_once() -> None:
    listener, sender = (socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(2))
    for end in (listener, sender):
        bind_any_port(end, "127.0.0.1")
    listener.listen(1)
    sender.connect(listener.getsockname())
    receiver, _ = listener.accept()
    ports = [end.getsockname() for end in (listener, sender)]
    receiver.close()  # its port, which is the listener's, is in TIME_WAIT from now on
    assert sender.recv(1) == b""
    sender.close()
    listener.close()
    for address in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as rank:
            rank.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rank.bind(address)
