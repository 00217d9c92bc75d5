"""The coordinator: a process next to the launcher with a connection to each rank, outside the emulated network.

A connection is a pair of unix sockets that preserve packet boundaries (SOCK_SEQPACKET), made for every incarnation
of a rank. The rank's end closes with its process, so the coordinator sees a death at once. The launcher passes the
other end to the coordinator over its control socket.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from testbed.comm.replicas.loss_policy import Policy
from testbed.comm.replicas.membership import Membership, Phase
from testbed.comm.replicas.messages import MOST_BYTES, FromRank, MessageError, pack_message, unpack_message
from testbed.processes import set_parent_death_signal

_HAND_OVER_BYTES = 256
RECORDS = "replicas.jsonl"


class Switchboard:
    """The launcher's side: makes connections and passes one end of each to the coordinator."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def connect(self, rank: int, incarnation: int) -> socket.socket:
        """Return a rank's end of a new connection; close it in this process after forking the rank."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        address = json.dumps([rank, incarnation]).encode()
        socket.send_fds(self._control, [address], [theirs.fileno()])
        theirs.close()
        return ours

    def close(self) -> None:
        """Make no more connections; the coordinator exits when the last one closes."""
        self._control.close()


class Coordinator:
    """The event loop that connects the membership state machine to the ranks' sockets."""

    def __init__(self, membership: Membership, control: socket.socket, records: IO[str]) -> None:
        self.membership, self._control, self._records = membership, control, records
        self._poll = select.epoll()
        # by file descriptor: socket, rank, incarnation
        self._connections: dict[int, tuple[socket.socket, int, int]] = {}
        self._of_rank: dict[int, socket.socket] = {}
        self._poll.register(control, select.EPOLLIN)

    def run(self) -> None:
        """Run until the launcher has closed its control socket and all ranks have closed their connections."""
        accepting = True
        while accepting or self._connections:
            wait_s = self.membership.next_deadline_s() - time.monotonic()
            if self.membership.phase is Phase.OVER:
                wait_s = 1.0
            for descriptor, _ in self._poll.poll(max(0.0, min(wait_s, 3600.0))):
                if descriptor == self._control.fileno():
                    accepting = self._accept()
                else:
                    self._receive(descriptor)
            self.membership.tick(time.monotonic())
            self._flush_outbox()
        self._poll.close()

    def _accept(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, _HAND_OVER_BYTES, 1)
        if not data:
            self._poll.unregister(self._control)
            return False
        rank, incarnation = json.loads(data)
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        self._connections[connection.fileno()] = connection, rank, incarnation
        self._of_rank[rank] = connection
        self._poll.register(connection, select.EPOLLIN)
        return True

    def _receive(self, descriptor: int) -> None:
        connection, rank, incarnation = self._connections[descriptor]
        while True:
            try:
                packet = connection.recv(MOST_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                packet = b""
            now_s = time.monotonic()
            if not packet:
                self._poll.unregister(descriptor)
                del self._connections[descriptor]
                if self._of_rank.get(rank) is connection:
                    del self._of_rank[rank]
                connection.close()
                self.membership.connection_closed(rank, incarnation, now_s)
                return
            message = unpack_message(packet)
            if not isinstance(message, FromRank):
                raise MessageError(f"rank {rank}: got {message}, expected a message from a rank")
            self.membership.receive(rank, incarnation, message, now_s)

    def _flush_outbox(self) -> None:
        outbox = self.membership.outbox
        for outgoing in outbox.messages:
            connection = self._of_rank.get(outgoing.rank)
            if connection is not None:
                try:
                    connection.send(pack_message(outgoing.message))
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the next read sees that its end is closed
                except BlockingIOError:
                    pass  # the rank does not read, and will soon count as lost
        outbox.messages.clear()
        for record in outbox.records:
            self._records.write(json.dumps(record) + "\n")
        if outbox.records:
            self._records.flush()
        outbox.records.clear()


def fork_coordinator(
    replicas: Sequence[Sequence[int]], policy: Policy, output: Path
) -> tuple[int, Switchboard]:
    """Fork the coordinator; returns its process id and the launcher's side. It exits on its own.

    Records are written to `<output>/replicas.jsonl`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ours.close()
            set_parent_death_signal(signal.SIGKILL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with (output / RECORDS).open("a") as records:
                Coordinator(Membership(replicas, policy), theirs, records).run()
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    return pid, Switchboard(ours)
