"""Checks of puts and signals for transports that support them: see `testbed.comm.transport.onesided`."""

from __future__ import annotations

import contextlib
from functools import partial

from testbed.comm.transport import PeerLost, Transport, TransportError, wait_all
from testbed.comm.transport.onesided import ExposedWindows, OneSided, find_one_sided, put_tag, signal_tag
from testbed.contrib.conformance.harness import Runner, raises, wait_requests


def check_signals_arrive_after_puts(run: Runner) -> None:
    """Small puts follow large ones; a signal arrives after all earlier puts, and puts need no receive."""
    sizes = [200_000, 3, 40_000, 1, 120_000]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]

    def program(transport: Transport) -> list[str]:
        peer, window = 1 - transport.rank, bytearray(sum(sizes))
        made = _exposed(transport, window, peer)
        if made is None:
            return []
        carrier, number = made
        sends, wrong = [], []
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            payload = bytes([index + 10 * transport.rank + 1]) * size
            sends.append(carrier.isend(peer, put_tag(number, start), memoryview(payload)))
            sends.append(carrier.isend(peer, signal_tag(number), memoryview(b"")))
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            wait_requests(transport, carrier.irecv(peer, signal_tag(number), memoryview(bytearray())))
            if window[start : start + size] != bytes([index + 10 * peer + 1]) * size:
                wrong.append(f"{size} bytes at {start}")
        wait_requests(transport, *sends)
        counters = transport.counters[peer]
        assert counters.bytes_sent == counters.bytes_received == sum(sizes) + 8, counters
        return wrong

    assert run(2, program) == [[]] * 2


def check_puts_bypass_pending_messages(run: Runner) -> None:
    """Messages without a receive do not block puts, whichever was sent first; each arrives in its own place."""

    def program(transport: Transport) -> bool:
        peer, window = 1 - transport.rank, bytearray(50_000)
        made = _exposed(transport, window, peer)
        if made is None:
            return True
        carrier, number = made
        messages = [bytes([tag]) * 30_000 for tag in range(3)]
        sends = []
        for tag, payload in enumerate(messages):
            sends.append(transport.isend(peer, tag, memoryview(payload)))
            put = memoryview(bytes([100 + tag]) * 10_000)
            sends.append(carrier.isend(peer, put_tag(number, 10_000 * tag), put))
        sends.append(carrier.isend(peer, signal_tag(number), memoryview(b"")))
        wait_requests(transport, carrier.irecv(peer, signal_tag(number), memoryview(bytearray())))
        whole = window == b"".join(bytes([100 + tag]) * 10_000 for tag in range(3)) + bytes(20_000)
        buffers = [bytearray(30_000) for _ in messages]
        wait_requests(
            transport, *sends, *(transport.irecv(peer, t, memoryview(b)) for t, b in enumerate(buffers))
        )
        return whole and [bytes(buffer) for buffer in buffers] == messages

    assert run(2, program) == [True, True]


def check_out_of_bounds_put_loses_its_sender(run: Runner) -> None:
    """The sender of an invalid put is lost; the error names window, offset and size, and nothing is written."""

    def program(transport: Transport, offset: int, wrong: int) -> str:
        peer, window = 1 - transport.rank, bytearray(1000)
        made = _exposed(transport, window, peer)
        if made is None:
            return ""
        carrier, number = made
        if transport.rank == 0:
            request = carrier.isend(peer, put_tag(number + wrong, offset), memoryview(bytes([1]) * 100))
            with contextlib.suppress(TransportError):
                wait_all(transport, [request, transport.irecv(peer, 1, memoryview(bytearray(1)))], 10)
            return ""
        with raises(PeerLost) as caught:
            wait_requests(transport, transport.irecv(peer, 1, memoryview(bytearray(1))))
        assert window == bytes(1000)
        return str(caught.exception)

    for offset, wrong, words in (
        (901, 0, "its put of 100 bytes at offset 901 into window 0, which has 1000 bytes"),
        (0, 7, "its put of 100 bytes at offset 0 into window 7, which is not open to it"),
    ):
        found = run(2, partial(program, offset=offset, wrong=wrong))[1]
        assert found in ("", f"rank 1: lost peer 0: {words}"), found


def _exposed(transport: Transport, window: bytearray, peer: int) -> tuple[Transport, int] | None:
    """Return the transport that supports puts and the number of every rank's window; None without such a transport."""
    carrier = find_one_sided(transport)
    if carrier is None:
        return None
    assert isinstance(carrier, OneSided)
    exposed: ExposedWindows = carrier.exposed
    number = exposed.add(memoryview(window), [peer])
    ready = bytearray(8)
    wait_requests(
        transport,
        transport.isend(peer, 77, memoryview(number.to_bytes(8, "little"))),
        transport.irecv(peer, 77, memoryview(ready)),
    )
    assert int.from_bytes(ready, "little") == number
    return carrier, number
