"""Conformance suite for transports: `check_transport`."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from testbed.comm.transport import (
    MAX_TAG,
    MeshSettings,
    PeerLost,
    Transport,
    TransportError,
    TransportKind,
    TransportTimeout,
    wait_all,
)
from testbed.comm.transport.onesided import ExposedWindows, OneSided, find_one_sided, put_tag, signal_tag
from testbed.contrib.conformance.harness import Program, Runner, in_threads, linger, raises, wait_requests

Mesh = Callable[[int], AbstractContextManager[Callable[[int], Transport]]]
"""Given the number of ranks, a context manager that yields a factory for the transport of each rank."""


def check_transport(transport: Mesh | TransportKind, *, sends_wait: bool = False) -> None:
    """Check the contract of `comm.transport.Transport`; raises AssertionError naming the check that fails.

    Puts and signals are checked if the transport, or one beneath it, supports them.

    Args:
        transport: A kind of transport with its options, to be run over loopback; or a factory of transports.
        sends_wait: Whether sends complete only when the peer has posted its receive, as with `rendezvous`.

    Example:
        check_transport(Mine(wait_s=0.01))
    """
    run = runner(over_loopback(transport) if isinstance(transport, TransportKind) else transport)
    for name, check in transport_checks(sends_wait).items():
        try:
            check(run)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


def transport_checks(sends_wait: bool = False) -> dict[str, Callable[[Runner], None]]:
    """Return all checks by name, to run them one by one."""
    eager = () if sends_wait else (check_receives_match_by_tag, check_lost_peer_fails_pending_requests)
    found: dict[str, Callable[[Runner], None]] = {
        check.__name__.removeprefix("check_"): check
        for check in (
            *eager,
            check_messages_are_complete_and_ordered_per_tag,
            check_many_messages_between_all_ranks,
            check_counters_count_payload,
            check_timeout_names_rank_and_peer,
            check_invalid_arguments_are_rejected,
            check_requests_fail_after_close,
            check_signals_arrive_after_puts,
            check_puts_bypass_pending_messages,
            check_out_of_bounds_put_loses_its_sender,
        )
    }
    for early, length in itertools.product((True, False), (4, 100_000)):
        check = check_length_mismatch_names_both_ranks
        name = f"{check.__name__.removeprefix('check_')}_{'early' if early else 'late'}_{length}"
        found[name] = partial(check, early=early, length=length)
    return found


def over_loopback(kind: TransportKind) -> Mesh:
    """Return a factory of transports of this kind over loopback, each rank on its own address."""

    @contextlib.contextmanager
    def mesh(size: int) -> Iterator[Callable[[int], Transport]]:
        with contextlib.ExitStack() as probes:
            addresses = []
            for rank in range(size):
                probe = probes.enter_context(socket.socket())
                probe.bind((f"127.77.1.{rank + 1}", 0))
                addresses.append(probe.getsockname())
        settings = MeshSettings(token="check", multipath=kind.multipath)
        yield lambda rank: kind.make(rank, addresses, settings, ["same_rack"] * size)

    return mesh


def runner(mesh: Mesh) -> Runner:
    """Return a runner with ranks as threads on transports of a mesh; it raises the first error of any rank."""

    def run(size: int, program: Program) -> list[Any]:
        with mesh(size) as make:
            return in_threads(size, make, program)

    return run


# ---- the checks


def check_messages_are_complete_and_ordered_per_tag(run: Runner) -> None:
    """Messages of all sizes, from empty to megabytes, arrive complete and in order per tag."""

    sizes = [0, 1, 7, 16_383, 16_384, 65_536, 3_000_000, 0, 5]

    def program(transport: Transport) -> bool:
        peer = 1 - transport.rank
        outgoing = [bytes([number + transport.rank]) * size for number, size in enumerate(sizes)]
        incoming = [bytearray(size) for size in sizes]
        requests = [transport.isend(peer, 9, memoryview(data)) for data in outgoing]
        requests += [transport.irecv(peer, 9, memoryview(data)) for data in incoming]
        wait_requests(transport, *requests)
        return [bytes(data) for data in incoming] == [
            bytes([number + peer]) * size for number, size in enumerate(sizes)
        ]

    assert run(2, program) == [True, True]


def check_receives_match_by_tag(run: Runner) -> None:
    """Messages that arrive before their receives are kept and matched by tag."""

    def program(transport: Transport) -> list[bytes]:
        peer = 1 - transport.rank
        wait_requests(
            transport, *(transport.isend(peer, tag, memoryview(b"tag%d" % tag)) for tag in (3, 1, 2))
        )
        linger(transport, 0.05)  # the messages arrive before their receives are posted
        buffers = [bytearray(4) for _ in range(3)]
        wait_requests(
            transport, *(transport.irecv(peer, tag, memoryview(buffers[tag - 1])) for tag in (1, 2, 3))
        )
        return [bytes(buffer) for buffer in buffers]

    assert run(2, program) == [[b"tag1", b"tag2", b"tag3"]] * 2


def check_many_messages_between_all_ranks(run: Runner) -> None:
    """All ranks send each other the same shuffled messages and post receives in another order, early or late."""
    rng = random.Random(3)
    plan = [(tag, rng.choice([0, 3, 100, 5_000, 40_000, 300_000])) for tag in range(60)]

    def program(transport: Transport) -> int:
        peers = [peer for peer in range(transport.size) if peer != transport.rank]
        sends, receives = plan[:], plan[:]
        random.Random(10 + transport.rank).shuffle(receives)
        requests, wrong = [], []
        buffers: list[tuple[int, int, bytearray]] = []
        for (out_tag, out_size), (in_tag, in_size) in zip(sends, receives, strict=True):
            for peer in peers:
                payload = bytes([(out_tag + transport.rank) % 256]) * out_size
                requests.append(transport.isend(peer, out_tag, memoryview(payload)))
                buffer = bytearray(in_size)
                buffers.append((peer, in_tag, buffer))
                requests.append(transport.irecv(peer, in_tag, memoryview(buffer)))
            transport.progress(0.0)
        wait_requests(transport, *requests)
        for peer, tag, buffer in buffers:
            if buffer != bytes([(tag + peer) % 256]) * len(buffer):
                wrong.append((peer, tag))
        return len(wrong)

    assert run(4, program) == [0] * 4


def check_length_mismatch_names_both_ranks(run: Runner, early: bool, length: int) -> None:
    """A length mismatch is an error naming both ranks, and the connection survives it.

    `early` is whether the receive is posted before the message arrives.
    """

    def program(transport: Transport) -> str:
        if transport.rank == 0:
            linger(transport, 0.1 if early else 0)
            wait_requests(transport, transport.isend(1, 5, memoryview(bytes(length))))
            wait_requests(transport, transport.isend(1, 5, memoryview(b"next")))
            return ""
        linger(transport, 0 if early else 0.1)
        with raises(TransportError) as caught:
            wait_requests(transport, transport.irecv(0, 5, memoryview(bytearray(3))))
        buffer = bytearray(4)
        wait_requests(transport, transport.irecv(0, 5, memoryview(buffer)))
        assert buffer == b"next"
        return str(caught.exception)

    words = f"rank 1: message from peer 0, tag 5: got {length} bytes, expected 3, as posted"
    assert run(2, program)[1] == words


def check_counters_count_payload(run: Runner) -> None:
    """Counters count payload bytes and messages in both directions."""

    def program(transport: Transport) -> tuple[int, ...]:
        peer = 1 - transport.rank
        assert list(transport.counters) == [peer]
        for _ in range(3):
            wait_requests(
                transport,
                transport.isend(peer, 1, memoryview(b"x" * 1000)),
                transport.irecv(peer, 1, memoryview(bytearray(1000))),
            )
        mine = transport.counters[peer]
        return mine.bytes_sent, mine.bytes_received, mine.messages_sent, mine.messages_received

    assert run(2, program) == [(3000, 3000, 3, 3)] * 2


def check_lost_peer_fails_pending_requests(run: Runner) -> None:
    """A lost peer fails pending and later requests at once; messages it sent before can still be received."""

    def program(transport: Transport) -> float:
        if transport.rank == 1:
            wait_requests(transport, transport.isend(0, 2, memoryview(b"last")))
            return 0.0
        request = transport.irecv(1, 1, memoryview(bytearray(4)))
        begun_s = time.monotonic()
        with raises(PeerLost, match="rank 0: lost peer 1: it closed its end"):
            wait_requests(transport, request)
        took_s = time.monotonic() - begun_s
        buffer = bytearray(4)
        wait_requests(transport, transport.irecv(1, 2, memoryview(buffer)))
        assert buffer == b"last"
        for late in (
            transport.irecv(1, 2, memoryview(buffer)),
            transport.isend(1, 2, memoryview(buffer)),
        ):
            assert late.done
            assert isinstance(late.error, PeerLost)
            assert (late.error.rank, late.error.peer) == (0, 1)
        return took_s

    assert run(2, program)[0] < 5


def check_timeout_names_rank_and_peer(run: Runner) -> None:
    """A timeout names rank and peer, and the message can still be received later."""

    def program(transport: Transport) -> str:
        if transport.rank == 1:
            wait_requests(transport, transport.irecv(0, 1, memoryview(bytearray(1))))
            return ""
        with raises(TransportTimeout) as caught:
            wait_all(transport, [transport.irecv(1, 1, memoryview(bytearray(1)))], 0.05)
        wait_requests(transport, transport.isend(1, 1, memoryview(b"x")))
        assert isinstance(caught.exception, TimeoutError)
        return str(caught.exception)

    assert run(2, program)[0] == "rank 0: recv with peer 1: nothing within 0.05 s"


def check_invalid_arguments_are_rejected(run: Runner) -> None:
    """Invalid peers, tags and buffers raise ValueError before anything is sent."""

    def program(transport: Transport) -> None:
        nothing = memoryview(bytearray())
        for peer in (-1, 0, 2):
            with raises(ValueError, match=rf"rank 0: peer: got {peer}, expected another rank of 0 to 1"):
                transport.isend(peer, 1, nothing)
        for tag in (-1, MAX_TAG + 1):
            with raises(ValueError, match=rf"rank 0: tag: got {tag}, expected 0 to"):
                transport.irecv(1, tag, nothing)
        with raises(ValueError, match="view: got read-only memory"):
            transport.irecv(1, 1, memoryview(b"constant"))

    run(2, lambda transport: program(transport) if transport.rank == 0 else None)


def check_requests_fail_after_close(run: Runner) -> None:
    """After close, pending and new requests fail."""

    def program(transport: Transport) -> bool:
        pending = transport.irecv(1 - transport.rank, 1, memoryview(bytearray(1)))
        transport.close()
        transport.close()
        transport.progress(0.0)
        later = transport.isend(1 - transport.rank, 1, memoryview(b"x"))
        return isinstance(pending.error, PeerLost) and isinstance(later.error, PeerLost)

    assert run(2, program) == [True, True]


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
