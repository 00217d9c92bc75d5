"""Other machines that have a fabric's buildings: an agent on each, through SSH, as with Mininet's cluster edition.

The agent (`python -m testbed.net.fabric.machine_agent`, as root through sudo) does there what `MachineOperations` does
here. All that it makes ends with it, and it ends with the SSH connection.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from testbed.net.errors import FabricError
from testbed.net.fabric.fingerprint import WatchedNamespace
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.verify import NamespaceSettings
from testbed.net.links import LinkError
from testbed.net.links.interfaces import NodeCounts
from testbed.net.links.setup import Setup
from testbed.processes import close_pipes, wait_or_kill, wait_readable

STOP_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 60.0
SSH_OPTIONS = ("-q", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5")
CLOCK_READINGS = 40


def is_here(name: str) -> bool:
    """Whether a machine's name, without a user, means this one. FabricError when it means none."""
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise FabricError(f"machine {name}: {error}") from error
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return address in own or address.startswith("127.")


class Machine(MachineOperations):
    """Another machine, by the name that SSH knows it by, perhaps with a user: `name` or `user@name`.

    This Python must be there at the same path, with the same testbed. FabricError when it cannot be reached.
    """

    def __init__(self, destination: str) -> None:
        super().__init__()
        self.destination = destination
        self.name = destination.rpartition("@")[2]
        self.ended: dict[int, int] = {}  # programs that have ended, and how
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._lines: dict[int, list[str]] = defaultdict(list)
        try:
            self.address = socket.gethostbyname(self.name)
            self._process = subprocess.Popen(
                self._command([sys.executable, "-m", "testbed.net.fabric.machine_agent"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
            self.folder: str = self.call("hello")["folder"]  # there, for files, gone with the agent
            self.clock_s = self._align_clocks()
        except OSError as error:
            self.stop()
            raise FabricError(f"machine {self.name}: {error}") from error
        except BaseException:
            self.stop()
            raise

    def _command(self, arguments: list[str]) -> list[str]:
        """The command line that runs something there as root, with this checkout's modules."""
        there = ["sudo", "-n", "env", f"PYTHONPATH={Path(__file__).parents[3]}", *arguments]
        user = os.environ.get("SUDO_USER", "root")
        # the keys are those of who called sudo, as with Mininet
        before = [] if user == "root" else ["sudo", "-n", "-H", "-u", user, "--"]
        return [*before, "ssh", *SSH_OPTIONS, self.destination, shlex.join(there)]

    @property
    def near(self) -> str:
        """This machine's address on the way there."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, 9))
            return str(probe.getsockname()[0])

    def _align_clocks(self) -> float:
        """Have programs that are started there see this machine's CLOCK_MONOTONIC; by how much it may be wrong."""
        offset_s, error_s = self.clock_offset()
        self.call("shift", offset_s=offset_s)
        self.offset_s = offset_s
        return error_s

    def clock_offset(self) -> tuple[float, float]:
        """(what this machine's CLOCK_MONOTONIC is ahead of that one's, by how much that may be wrong), in seconds."""
        best = (0.0, float("inf"))
        for _ in range(CLOCK_READINGS):
            before_s = time.monotonic()
            there_s = self.call("clock")
            after_s = time.monotonic()
            best = min(
                best, ((before_s + after_s) / 2 - there_s, (after_s - before_s) / 2), key=lambda pair: pair[1]
            )
        return best

    def call(self, operation: str, **arguments: Any) -> Any:
        """Have the agent do something; what it returns. FabricError, LinkError with the machine's name."""
        process = self._process
        if process is None or process.stdin is None:
            raise FabricError(f"machine {self.name}: its agent was stopped")
        try:
            process.stdin.write(json.dumps({"do": operation, **arguments}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise FabricError(f"machine {self.name}: {self._how_it_ended()}") from error
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (answer := self._read(deadline - time.monotonic())) is None:
            if time.monotonic() > deadline:
                raise FabricError(
                    f"machine {self.name}: no answer to {operation} in {ANSWER_TIMEOUT_S:.0f} s"
                )
        if "error" in answer:
            kind = LinkError if answer["kind"] == "LinkError" else FabricError
            raise kind(f"machine {self.name}: {answer['error']}")
        return answer["result"]

    def _read(self, timeout_s: float) -> dict[str, Any] | None:
        """Take in what comes within this time; an answer if that is among it. FabricError at the end."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if b"\n" not in self._pending:
            if not wait_readable([process.stdout], timeout_s):
                return None
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                raise FabricError(f"machine {self.name}: {self._how_it_ended()}")
            self._pending += data
        while b"\n" in self._pending:
            line, _, self._pending = self._pending.partition(b"\n")
            said: dict[str, Any] = json.loads(line)
            if "event" in said:
                self._lines[said["of"]].append(said["event"])
            elif "ended" in said:
                self.ended[said["of"]] = said["ended"]
            else:
                return said
        return None

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "its agent does not listen"
        self._complaints.seek(0)
        words = self._complaints.read().decode(errors="replace").strip().splitlines()
        why = f": {words[-1]}" if words else f" (does `ssh {self.destination} sudo -n true` work?)"
        return f"`ssh {self.destination}` ended with status {status}{why}"

    def failure(self) -> str | None:
        """None while the agent is there; else one sentence."""
        if self._process is None or self._process.poll() is None:
            return None
        return f"machine {self.name}: {self._how_it_ended()}"

    def fileno(self) -> int:
        """Readable when there may be `lines`."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def start(
        self, module: str, arguments: list[str], environment: Mapping[str, str], document: str | None = None
    ) -> int:
        """Start a module there as a program, which gets a line on its standard input; its process id."""
        started: int = self.call(
            "start", module=module, arguments=arguments, environment=dict(environment), document=document
        )
        return started

    def lines(self, pid: int) -> list[str]:
        """What a program that was started there has printed since the last call."""
        while b"\n" in self._pending or wait_readable([self], 0.0):
            self._read(0)
        return self._lines.pop(pid, [])

    def make_namespaces(self, files: Mapping[str, Path | str | None]) -> dict[str, int]:
        """As there; the files' text goes along."""
        texts = {name: Path(file).read_text() if file else None for name, file in files.items()}
        found: dict[str, int] = self.call("namespaces", texts=texts)
        return found

    def veth(self, ends: list[dict[str, Any]]) -> None:
        """As `MachineOperations` does, on that machine."""
        self.call("veth", ends=ends)

    def tunnel(self, interface: str, pid: int, number: int, near: str, far: str) -> None:
        """As `MachineOperations` does, on that machine."""
        self.call("tunnel", interface=interface, pid=pid, number=number, near=near, far=far)

    def apply(self, setup: Setup, pid: int | None) -> None:
        """As `MachineOperations` does, on that machine."""
        self.call("apply", setup=dataclasses.asdict(setup), pid=pid)

    def verify(self, settings: NamespaceSettings) -> None:
        """As `MachineOperations` does, on that machine."""
        self.call("verify", settings=dataclasses.asdict(settings))

    def verify_offloads(self, settings: NamespaceSettings) -> None:
        """As `MachineOperations` does, on that machine."""
        self.call("verify_offloads", settings=dataclasses.asdict(settings))

    def frames(self, interface: str, pid: int | None) -> tuple[int, int]:
        """As `MachineOperations` does, on that machine."""
        came, went = self.call("frames", interface=interface, pid=pid)
        return came, went

    def counts(self, pid: int | None, protocols: bool = False) -> NodeCounts:
        """As `MachineOperations` does, on that machine."""
        return NodeCounts.from_document(self.call("counts", pid=pid, protocols=protocols))

    def watch(self, watched: Sequence[WatchedNamespace], left_out: Sequence[tuple[str, str]]) -> None:
        """As `MachineOperations` does, on that machine."""
        self.call(
            "watch", watched=[dataclasses.asdict(namespace) for namespace in watched], left_out=list(left_out)
        )

    def look(self, thorough: bool) -> list[str]:
        """As `MachineOperations` does, on that machine."""
        found: list[str] = self.call("look", thorough=thorough)
        return found

    def take(self) -> None:
        """As `MachineOperations` does, on that machine."""
        self.call("take")

    def stop(self) -> None:
        """End the agent, and all that it made. Harmless when repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        close_pipes(process)
        wait_or_kill(process, STOP_TIMEOUT_S)
        self._complaints.close()
