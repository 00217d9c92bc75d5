"""The coordinator: a process beside the launcher, which makes each rank's line to it. No emulated network carries them.

A line is a pair of unix sockets that keep packets apart (SOCK_SEQPACKET), made for every incarnation of a rank: its end
closes with the rank's process, so the coordinator sees a death at once. The launcher hands the other ends over on its
own line.
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
    """The launcher's side: makes lines, and hands one end of each to the coordinator."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def line(self, rank: int, incarnation: int) -> socket.socket:
        """A rank's end, for its process; close it in this one once that is forked."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        who = json.dumps([rank, incarnation]).encode()
        socket.send_fds(self._control, [who], [theirs.fileno()])
        theirs.close()
        return ours

    def close(self) -> None:
        """There will be no more lines; the coordinator ends with the last one."""
        self._control.close()


class Coordinator:
    """Carries out what the membership says, until no line is left."""

    def __init__(self, membership: Membership, control: socket.socket, records: IO[str]) -> None:
        self.membership, self._control, self._records = membership, control, records
        self._poll = select.epoll()
        self._lines: dict[int, tuple[socket.socket, int, int]] = {}  # by descriptor: rank, incarnation
        self._of_rank: dict[int, socket.socket] = {}
        self._poll.register(control, select.EPOLLIN)

    def run(self) -> None:
        """Until the launcher has closed its line and all ranks have theirs."""
        open_ended = True
        while open_ended or self._lines:
            wait_s = self.membership.next_s() - time.monotonic()
            if self.membership.phase is Phase.OVER:
                wait_s = 1.0
            for descriptor, _ in self._poll.poll(max(0.0, min(wait_s, 3600.0))):
                if descriptor == self._control.fileno():
                    open_ended = self._take_line()
                else:
                    self._hear(descriptor)
            self.membership.tick(time.monotonic())
            self._carry_out()
        self._poll.close()

    def _take_line(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, _HAND_OVER_BYTES, 1)
        if not data:
            self._poll.unregister(self._control)
            return False
        rank, incarnation = json.loads(data)
        line = socket.socket(fileno=descriptors[0])
        line.setblocking(False)
        self._lines[line.fileno()] = line, rank, incarnation
        self._of_rank[rank] = line
        self._poll.register(line, select.EPOLLIN)
        return True

    def _hear(self, descriptor: int) -> None:
        """All that a rank has said."""
        line, rank, incarnation = self._lines[descriptor]
        while True:
            try:
                packet = line.recv(MOST_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                packet = b""
            now_s = time.monotonic()
            if not packet:
                self._poll.unregister(descriptor)
                del self._lines[descriptor]
                if self._of_rank.get(rank) is line:
                    del self._of_rank[rank]
                line.close()
                self.membership.closed(rank, incarnation, now_s)
                return
            message = unpack_message(packet)
            if not isinstance(message, FromRank):
                raise MessageError(f"rank {rank}: got {message}, expected what ranks say")
            self.membership.receive(rank, incarnation, message, now_s)

    def _carry_out(self) -> None:
        outbox = self.membership.outbox
        for order in outbox.orders:
            line = self._of_rank.get(order.rank)
            if line is not None:
                try:
                    line.send(pack_message(order.message))
                except (BrokenPipeError, ConnectionResetError):
                    pass  # its end is closed, which is read next
                except BlockingIOError:
                    pass  # it does not read: soon it counts as lost
        outbox.orders.clear()
        for record in outbox.records:
            self._records.write(json.dumps(record) + "\n")
        if outbox.records:
            self._records.flush()
        outbox.records.clear()


def fork_coordinator(
    replicas: Sequence[Sequence[int]], policy: Policy, output: Path
) -> tuple[int, Switchboard]:
    """Its process, which ends by itself, and the launcher's side; records go to `<output>/replicas.jsonl`."""
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
