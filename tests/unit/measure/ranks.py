"""Run one function per rank: over memory in threads, over loopback TCP in threads or forked processes."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from testbed.comm.transport import (
    CostedTransport,
    MemoryNetwork,
    MeshSettings,
    RendezvousTransport,
    StagedTransport,
    StripedTransport,
    StripeSettings,
    TcpTransport,
    Transport,
)
from testbed.comm.transport.datagram.sender import DatagramSettings
from testbed.comm.transport.datagram.transport import DatagramTransport
from testbed.comm.transport.sockets import IPPROTO_MPTCP
from testbed.contrib.conformance.harness import in_threads

Program = Callable[[Any], Any]
Settings = TypeVar("Settings", StripeSettings, DatagramSettings)
TOKEN = "test"
_FORK = multiprocessing.get_context("fork")


class Places:
    """Bound sockets for ranks; each on an address of its own, so that given source ports do not clash."""

    def __init__(self, size: int, protocol: int = socket.IPPROTO_TCP) -> None:
        self.sockets = []
        for rank in range(size):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((f"127.77.0.{rank + 1}", 0))
            self.sockets.append(listener)
        self.addresses = [listener.getsockname() for listener in self.sockets]

    def striped(self, rank: int, **options: Any) -> StripedTransport:
        """As `transport`, with several connections per peer; options of StripeSettings go there."""
        eager = options.pop("eager", False)
        stripes = _taken(StripeSettings, options)
        settings = MeshSettings(**{"token": TOKEN, **options})
        return StripedTransport(
            rank, self.addresses, settings, lambda peer: stripes, eager=eager, listener=self.sockets[rank]
        )

    def datagram(self, rank: int, **options: Any) -> DatagramTransport:
        """As `transport`, with datagrams; options of DatagramSettings go there."""
        eager = options.pop("eager", False)
        datagrams = _taken(DatagramSettings, options)
        settings = MeshSettings(**{"token": TOKEN, **options})
        return DatagramTransport(
            rank, self.addresses, settings, datagrams, eager=eager, listener=self.sockets[rank]
        )

    def transport(self, rank: int, **options: Any) -> TcpTransport:
        """Rank `rank` of as many as there are places."""
        eager = options.pop("eager", False)
        settings = MeshSettings(**{"token": TOKEN, **options})
        return TcpTransport(rank, self.addresses, settings, eager=eager, listener=self.sockets[rank])

    @contextlib.contextmanager
    def transport_closing(self, rank: int, **options: Any) -> Iterator[TcpTransport]:
        """The same, closed at the end of the block."""
        transport = self.transport(rank, **options)
        try:
            yield transport
        finally:
            transport.close()

    def close(self) -> None:
        for listener in self.sockets:
            listener.close()


def _taken(kind: type[Settings], options: dict[str, Any]) -> Settings:
    """Settings of a kind, of the options that are its fields; these are options no longer."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: options.pop(name) for name in list(options) if name in names})


def in_memory(size: int, program: Program) -> list[Any]:
    """What the program returns on each rank; the first error of any is raised."""
    return in_threads(size, MemoryNetwork(size).transports.__getitem__, program)


def with_cost(size: int, program: Program) -> list[Any]:
    """Like `in_memory`, where each message costs its ranks a little."""
    transports = MemoryNetwork(size).transports
    return in_threads(size, lambda rank: CostedTransport(transports[rank], 1e-4, 1e-9), program)


def in_place(size: int, program: Program) -> list[Any]:
    """Like `over_tcp`, with receives announced."""
    return over_tcp(size, lambda transport: _closing(RendezvousTransport(transport), program))


def through_slots(size: int, program: Program) -> list[Any]:
    """Like `over_tcp`, with messages copied through few slots."""
    return over_tcp(size, lambda transport: _closing(StagedTransport(transport, 110_000, 2), program))


def through_announced_slots(size: int, program: Program) -> list[Any]:
    """The same, with slots that are free once their receiver has said so."""
    return over_tcp(
        size, lambda transport: _closing(StagedTransport(transport, 110_000, 2, announced=True), program)
    )


def _closing(transport: Transport, program: Program) -> Any:
    try:
        return program(transport)
    finally:
        transport.close()


def over_tcp(size: int, program: Program, **options: Any) -> list[Any]:
    """Like `in_memory`, each rank with a TcpTransport."""
    places = Places(size, IPPROTO_MPTCP if options.get("multipath") else socket.IPPROTO_TCP)
    try:
        return in_threads(size, lambda rank: places.transport(rank, **options), program)
    finally:
        places.close()


def over_channels(size: int, program: Program, **options: Any) -> list[Any]:
    """Like `in_memory`, each rank with a StripedTransport."""
    places = Places(size)
    options = {"connections": 3, "segment_bytes": 5000, "outstanding": 2, "fast_bytes": 1000, **options}
    try:
        return in_threads(size, lambda rank: places.striped(rank, **options), program)
    finally:
        places.close()


def over_shared_window(size: int, program: Program, **options: Any) -> list[Any]:
    """Like `over_channels`, all peers with one window."""
    return over_channels(size, program, together=3, **options)


def over_spray(size: int, program: Program, **options: Any) -> list[Any]:
    """Like `over_channels`, in the mode without sequence numbers."""
    return over_channels(size, program, mode="spray", **options)


class Forked:
    """Ranks as processes of their own. `results` waits for what each returned, or for the error that it ended with."""

    def __init__(self, places: Places, ranks: list[int], program: Program, **options: Any) -> None:
        self.processes = []
        self._pipes: list[Connection] = []
        for rank in ranks:
            ours, theirs = _FORK.Pipe()
            process = _FORK.Process(target=_child, args=(rank, places, program, theirs, options), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)

    def results(self, timeout_s: float = 20) -> list[Any]:
        found = []
        for pipe in self._pipes:
            assert pipe.poll(timeout_s), "a rank hangs"
            try:
                found.append(pipe.recv())
            except EOFError:
                found.append(None)
        return found

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@contextlib.contextmanager
def forked(program: Program, places: Places, ranks: list[int], **options: Any) -> Iterator[Forked]:
    """These ranks as processes, as long as the block lasts."""
    running = Forked(places, ranks, program, **options)
    try:
        yield running
    finally:
        running.kill()


def _child(rank: int, places: Places, program: Program, pipe: Connection, options: dict[str, Any]) -> None:
    try:
        transport = places.transport(rank, **options)
        try:
            result = program(transport)
        finally:
            transport.close()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    pipe.send(result)


def over_datagrams(size: int, program: Program, **options: Any) -> list[Any]:
    """Like `in_memory`, each rank with a DatagramTransport."""
    places = Places(size)
    try:
        return in_threads(size, lambda rank: places.datagram(rank, **options), program)
    finally:
        places.close()


def over_sprayed_datagrams(size: int, program: Program) -> list[Any]:
    """Like `over_datagrams`, with parity, on several paths."""
    return over_datagrams(size, program, recovery="erasure", paths=3)


def over_granted_datagrams(size: int, program: Program) -> list[Any]:
    """Like `over_datagrams`, as receivers grant them."""
    return over_datagrams(size, program, recovery="go_back_n", control="credits", port_bps=10e9)
