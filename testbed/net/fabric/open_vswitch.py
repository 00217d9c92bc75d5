"""Open vSwitch's tables of a fabric's edges, changes of rules and ports, and larger receive buffers.

Rules are read over the bridge's management socket, in OpenFlow 1.3. `ovs-ofctl monitor` reports changes as text.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
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
_PORT_SETTINGS = slice(8, 40)  # address, name, configuration and state, but not speeds
_EVENT = re.compile(rb"event=(ADDED|DELETED|MODIFIED) (.*)|OFPT_PORT_STATUS[^:]*: (.*)")

_SETTING = re.compile(rb"\s+((?:config|(state)): .*)")


class EdgeTable:
    """The rules, groups and ports of one bridge, and their changes. Methods raise OSError."""

    def __init__(self, name: str, bridge: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._monitor: subprocess.Popen[bytes] | None = None
        self._pending, self._monitor_output = b"", b""
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
        # The number (miss_send_len) makes it report port changes as well.
        self._monitor = subprocess.Popen(
            ["ovs-ofctl", "-O", "OpenFlow13", "monitor", bridge, "65535", "watch:!initial"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._monitor.stderr is not None
        os.set_blocking(self._monitor.stderr.fileno(), False)

    def close(self) -> None:
        """Close the socket and stop the monitor."""
        self._socket.close()
        if self._monitor is not None:
            self._monitor.terminate()
            wait_or_kill(self._monitor, TIMEOUT_S)
            close_pipes(self._monitor)

    def _message(self) -> tuple[int, int, bytes]:
        """Receive the next message: (type, transaction id, body)."""
        while len(self._pending) < 8 or len(self._pending) < (_HEADER.unpack_from(self._pending)[2]):
            if not (data := self._socket.recv(1 << 16)):
                raise OSError(f"{self.name}: Open vSwitch has closed its connection")
            self._pending += data
        _, kind, length, transaction = _HEADER.unpack_from(self._pending)
        body, self._pending = self._pending[8:length], self._pending[length:]
        return kind, transaction, body

    def _request(self, what: int, body: bytes = b"") -> bytes:
        """Send a multipart request and return the bodies of all reply parts."""
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
                raise OSError(f"{self.name}: Open vSwitch refused a request for its tables")
            elif kind == _REPLY and transaction == what:
                found += answer[_PART.size :]
                if not _PART.unpack_from(answer)[1] & 1:  # no more to come
                    return found

    def state(self) -> dict[str, bytes]:
        """Return rules, groups and ports by a descriptive name, without counters."""
        found: dict[str, bytes] = {}
        for entry in _entries(self._request(_FLOWS, _EVERY_FLOW)):
            _, table, _, _, priority, idle, hard, flags, cookie, _, _ = _FLOW_FIGURES.unpack_from(entry)
            rest = entry[_FLOW_FIGURES.size :]
            length = struct.unpack_from(">H", rest, 2)[0]
            match, instructions = rest[:length], rest[(length + 7) & ~7 :]
            name = f"rule {match[4:].hex() or 'for any packet'} of priority {priority} in table {table}"
            found[name] = struct.pack(">HHHQ", idle, hard, flags, cookie) + instructions
        for entry in _entries(self._request(_GROUPS)):
            found[f"group {struct.unpack_from('>I', entry, 4)[0]}"] = entry
        ports = self._request(_PORTS)
        for at in range(0, len(ports), 64):
            port = ports[at : at + 64]
            found[f"port {port[_PORT_NAME].rstrip(bytes(1)).decode()}"] = port[_PORT_SETTINGS]
        return found

    def take(self) -> None:
        """Take the current state as the reference."""
        for _ in self._events():
            pass
        self._known = self.state()

    def look(self) -> list[str]:
        """Return descriptions of the changes since the last look."""
        found = [f"{self.name}: {words}" for words in self._events()]
        known, self._known = self._known, self.state()
        for name in {**known, **self._known}:
            old, new = known.get(name), self._known.get(name)
            reported = bool(found) and name.startswith("rule")  # by an event, whose text is better
            if old != new and not reported:
                how = "gone" if new is None else "added" if old is None else "changed"
                found.append(f"{self.name}: {name}: {how}")
        return found

    def _events(self) -> Iterator[str]:
        assert self._monitor is not None
        assert self._monitor.stderr is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._monitor.stderr.fileno(), 1 << 16):
                self._monitor_output += data
        if self._monitor.poll() is not None:
            yield "changes are no longer monitored: ovs-ofctl has ended"
        *lines, self._monitor_output = self._monitor_output.split(b"\n")
        port = ""
        for line in lines:
            if match := _EVENT.search(line):
                event, rule, port = (part.decode(errors="replace") if part else "" for part in match.groups())
                if not port:
                    yield f"rule {rule}: {event.lower()}"
            elif port and (match := _SETTING.match(line)):
                port += f" {' '.join(match[1].decode().split())}"
                if match[2]:  # the state is the last relevant line
                    yield f"port {port}"
                    port = ""


def _entries(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = struct.unpack_from(">H", data, at)[0]
        yield data[at : at + length]
        at += length


DEFAULT_RECEIVE_BUFFER = Path("/proc/sys/net/core/rmem_default")
LARGE_RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024
_SAVED_FILE = "rmem_default"  # file in the state root with the original value, in case this process is killed


@contextlib.contextmanager
def large_receive_buffers(root: Path) -> Iterator[None]:
    """Raise the default receive buffer of new sockets within the block, unless the setting is read-only.

    Only one process at a time may do so. `root`, the folder of all fabrics' states, has the lock and the original
    value.
    """
    with _locked(root):
        former = DEFAULT_RECEIVE_BUFFER.read_text().strip()
        try:
            if int(former) < LARGE_RECEIVE_BUFFER_BYTES:
                (root / _SAVED_FILE).write_text(former)
                with contextlib.suppress(OSError):
                    DEFAULT_RECEIVE_BUFFER.write_text(str(LARGE_RECEIVE_BUFFER_BYTES))
            yield
        finally:
            _restore(root)


def restore_after_kill(root: Path) -> None:
    """Restore the default if a process that had raised it was killed; wait for one that is still running."""
    if (root / _SAVED_FILE).exists():
        with _locked(root):
            pass


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _restore(root)  # a value that is still saved under the lock was left by a killed process
        yield
    finally:
        os.close(descriptor)


def _restore(root: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        former = (root / _SAVED_FILE).read_text().strip()
        if former.isdigit():
            with contextlib.suppress(OSError):
                DEFAULT_RECEIVE_BUFFER.write_text(former)
        (root / _SAVED_FILE).unlink()
