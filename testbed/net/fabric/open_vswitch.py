"""Open vSwitch's tables of a fabric's edges, changes of rules and ports, and its receive buffers.

Rules are read over the bridge's own socket, in OpenFlow 1.3; changes are told by `ovs-ofctl monitor`, in its words.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from testbed.processes import close_pipes, wait_or_kill

RUN_FOLDER = Path(os.environ.get("OVS_RUNDIR", "/var/run/openvswitch"))
TIMEOUT_S = 10.0
_VERSION, _HELLO, _ERROR, _ECHO, _ECHO_REPLY, _REQUEST, _REPLY = 4, 0, 1, 2, 3, 18, 19
_FLOWS, _GROUPS, _PORTS = 1, 7, 13
_HEADER, _PART = struct.Struct(">BBHI"), struct.Struct(">HHxxxx")
_FLOW_FIGURES = struct.Struct(">HBxIIHHHHxxxxQQQ")  # struct ofp13_flow_stats, up to the match
_EVERY_FLOW = struct.pack(">BxxxIIxxxxQQHHxxxx", 0xFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 1, 4)
_PORT_NAME = slice(16, 32)
_PORT_SETTINGS = slice(8, 40)  # its address, name, configuration and state; not its speeds
_TOLD = re.compile(rb"event=(ADDED|DELETED|MODIFIED) (.*)|OFPT_PORT_STATUS[^:]*: (.*)")

_SETTING = re.compile(rb"\s+((?:config|(state)): .*)")


class EdgeTable:
    """One bridge's. OSError."""

    def __init__(self, name: str, bridge: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._monitor: subprocess.Popen[bytes] | None = None
        self._pending, self._told = b"", b""
        self._known: dict[str, bytes] = {}
        try:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.connect(str(RUN_FOLDER / f"{bridge}.mgmt"))
            self._socket.sendall(_HEADER.pack(_VERSION, _HELLO, 8, 0))
            self._listen(bridge)
        except BaseException:
            self.close()
            raise

    def _listen(self, bridge: str) -> None:
        # the number makes it send ports' changes as well
        self._monitor = subprocess.Popen(
            ["ovs-ofctl", "-O", "OpenFlow13", "monitor", bridge, "65535", "watch:!initial"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._monitor.stderr is not None
        os.set_blocking(self._monitor.stderr.fileno(), False)

    def close(self) -> None:
        """Close what is open."""
        self._socket.close()
        if self._monitor is not None:
            self._monitor.terminate()
            wait_or_kill(self._monitor, TIMEOUT_S)
            close_pipes(self._monitor)

    def _message(self) -> tuple[int, int, bytes]:
        """(type, transaction, body) of the next one."""
        while len(self._pending) < 8 or len(self._pending) < (_HEADER.unpack_from(self._pending)[2]):
            if not (data := self._socket.recv(1 << 16)):
                raise OSError(f"{self.name}: Open vSwitch has closed its connection")
            self._pending += data
        _, kind, length, transaction = _HEADER.unpack_from(self._pending)
        body, self._pending = self._pending[8:length], self._pending[length:]
        return kind, transaction, body

    def _ask(self, what: int, body: bytes = b"") -> bytes:
        """All parts of an answer. OSError."""
        request = _PART.pack(what, 0) + body
        self._socket.sendall(_HEADER.pack(_VERSION, _REQUEST, 8 + len(request), what) + request)
        found = b""
        while True:
            kind, transaction, answer = self._message()
            if kind == _ECHO:
                self._socket.sendall(
                    _HEADER.pack(_VERSION, _ECHO_REPLY, 8 + len(answer), transaction) + answer
                )
            elif kind == _ERROR:
                raise OSError(f"{self.name}: Open vSwitch refuses to tell what it holds")
            elif kind == _REPLY and transaction == what:
                found += answer[_PART.size :]
                if not _PART.unpack_from(answer)[1] & 1:  # no more to come
                    return found

    def state(self) -> dict[str, bytes]:
        """Rules, groups and ports by what they are called, without what counts."""
        found: dict[str, bytes] = {}
        for entry in _entries(self._ask(_FLOWS, _EVERY_FLOW)):
            _, table, _, _, priority, idle, hard, flags, cookie, _, _ = _FLOW_FIGURES.unpack_from(entry)
            rest = entry[_FLOW_FIGURES.size :]
            length = struct.unpack_from(">H", rest, 2)[0]
            match, does = rest[:length], rest[(length + 7) & ~7 :]
            name = f"rule {match[4:].hex() or 'for anything'} of priority {priority} in table {table}"
            found[name] = struct.pack(">HHHQ", idle, hard, flags, cookie) + does
        for entry in _entries(self._ask(_GROUPS)):
            found[f"group {struct.unpack_from('>I', entry, 4)[0]}"] = entry
        ports = self._ask(_PORTS)
        for at in range(0, len(ports), 64):
            port = ports[at : at + 64]
            found[f"port {port[_PORT_NAME].rstrip(bytes(1)).decode()}"] = port[_PORT_SETTINGS]
        return found

    def take(self) -> None:
        """What is now is what should be from now on."""
        for _ in self._events():
            pass
        self._known = self.state()

    def look(self) -> list[str]:
        """What was changed since, in words."""
        found = [f"{self.name}: {words}" for words in self._events()]
        known, self._known = self._known, self.state()
        for name in {**known, **self._known}:
            old, new = known.get(name), self._known.get(name)
            told = bool(found) and name.startswith("rule")  # in better words
            if old != new and not told:
                how = "gone" if new is None else "added" if old is None else "changed"
                found.append(f"{self.name}: {name}: {how}")
        return found

    def _events(self) -> Iterator[str]:
        assert self._monitor is not None
        assert self._monitor.stderr is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._monitor.stderr.fileno(), 1 << 16):
                self._told += data
        if self._monitor.poll() is not None:
            yield "its changes are told no more: ovs-ofctl, which listened, has ended"
        *lines, self._told = self._told.split(b"\n")
        port = ""
        for line in lines:
            if match := _TOLD.search(line):
                event, rule, port = (part.decode(errors="replace") if part else "" for part in match.groups())
                if not port:
                    yield f"rule {rule}: {event.lower()}"
            elif port and (match := _SETTING.match(line)):
                port += f" {' '.join(match[1].decode().split())}"
                if match[2]:  # its state, which comes last of what matters
                    yield f"port {port}"
                    port = ""


def _entries(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = struct.unpack_from(">H", data, at)[0]
        yield data[at : at + length]
        at += length


class EdgeTables:
    """Those of many edges: (name, bridge). OSError."""

    def __init__(self, edges: Iterable[tuple[str, str]]) -> None:
        self._tables: list[EdgeTable] = []
        try:
            for name, bridge in edges:
                self._tables.append(EdgeTable(name, bridge))
            self.take()
        except BaseException:
            self.close()
            raise

    def take(self) -> None:
        """What is now is what should be from now on."""
        for table in self._tables:
            table.take()

    def look(self) -> list[str]:
        """What was changed since, in words."""
        return [words for table in self._tables for words in table.look()]

    def close(self) -> None:
        """Close what is open."""
        for table in self._tables:
            table.close()
        self._tables = []


DEFAULT_RECEIVE_BUFFER = Path("/proc/sys/net/core/rmem_default")
LARGE_BYTES = 16 * 1024 * 1024
_FORMER = "rmem_default"  # file in the state's root: what to put back, should we be killed in between


@contextlib.contextmanager
def large_receive_buffers(root: Path) -> Iterator[None]:
    """Sockets made on this machine within the block get room; one process at a time; left alone where read-only.

    `root` is the folder of all fabrics' states: the lock is on it, and what to put back is written there.
    """
    with _locked(root):
        former = DEFAULT_RECEIVE_BUFFER.read_text().strip()
        try:
            if int(former) < LARGE_BYTES:
                (root / _FORMER).write_text(former)
                with contextlib.suppress(OSError):
                    DEFAULT_RECEIVE_BUFFER.write_text(str(LARGE_BYTES))
            yield
        finally:
            _restore(root)


def restore_after_kill(root: Path) -> None:
    """Put the default back if whoever had raised it was killed; waits for one who is at it."""
    if (root / _FORMER).exists():
        with _locked(root):
            pass


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _restore(root)  # nobody else is at it, so what is written there is a dead one's
        yield
    finally:
        os.close(descriptor)


def _restore(root: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        former = (root / _FORMER).read_text().strip()
        if former.isdigit():
            with contextlib.suppress(OSError):
                DEFAULT_RECEIVE_BUFFER.write_text(former)
        (root / _FORMER).unlink()
