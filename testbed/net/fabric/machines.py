"""Remote machines of a fabric: an agent on each, through SSH, as in Mininet's cluster edition.

The agent (`python -m testbed.net.fabric.machines`, as root through sudo) performs on that machine the operations that
`MachineOperations` performs on this one. Everything it makes is removed when it ends, and it ends with the SSH
connection.

A request is a line of JSON on its standard input, {"do": OPERATION, ...}. Its answer is a line on standard output,
{"result": ...} or {"error": message, "kind": ...}. Between answers there are {"event": ...} lines with the output of
programs that were started there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, get_type_hints

import psutil
from pydantic import TypeAdapter, validate_call
from pydantic_core import to_json

from testbed.net.errors import FabricError
from testbed.net.fabric.namespace_holder import mount_private_tmpfs
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.tunnel import TunnelSocket, serve
from testbed.net.links import LinkError
from testbed.net.links.netns import network_namespace
from testbed.processes import close_pipes, set_parent_death_signal, wait_or_kill, wait_readable

STOP_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 60.0
SSH_OPTIONS = ("-q", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5")
CLOCK_READINGS = 40


def is_local(name: str) -> bool:
    """Return whether a host name is this machine's; raises FabricError if it cannot be resolved."""
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise FabricError(f"machine {name}: {error}") from error
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return address in own or address.startswith("127.")


class Machine(MachineOperations):
    """A remote machine, by its SSH destination: `name` or `user@name`.

    The same Python and the same testbed must be installed there at the same paths. The agent performs all operations
    except `make_namespaces` and `stop` with the same arguments.

    Raises:
        FabricError: The machine cannot be reached.
    """

    def __init__(self, destination: str) -> None:
        super().__init__()
        self.destination = destination
        self.name = destination.rpartition("@")[2]
        self.ended: dict[int, int] = {}  # exit status of programs that have ended, by process id
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._lines: dict[int, list[str]] = defaultdict(list)
        try:
            self.address = socket.gethostbyname(self.name)
            self._process = subprocess.Popen(
                self._command([sys.executable, "-m", "testbed.net.fabric.machines"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,  # this process handles Ctrl-C
            )
            # on that machine; removed with the agent
            self.folder: str = self.call("hello")["folder"]
            self.clock_s = self._align_clocks()
        except OSError as error:
            self.stop()
            raise FabricError(f"machine {self.name}: {error}") from error
        except BaseException:
            self.stop()
            raise

    def _command(self, arguments: list[str]) -> list[str]:
        """Return the command line that runs a program there as root, with this checkout's modules."""
        remote = ["sudo", "-n", "env", f"PYTHONPATH={Path(__file__).parents[3]}", *arguments]
        user = os.environ.get("SUDO_USER", "root")
        # use the SSH keys of the user who called sudo, as Mininet does
        as_user = [] if user == "root" else ["sudo", "-n", "-H", "-u", user, "--"]
        return [*as_user, "ssh", *SSH_OPTIONS, self.destination, shlex.join(remote)]

    @property
    def near(self) -> str:
        """The source address of packets to that machine."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, 9))
            return str(probe.getsockname()[0])

    def _align_clocks(self) -> float:
        """Give programs started there this machine's CLOCK_MONOTONIC; return the maximum error in seconds."""
        offset_s, error_s = self.clock_offset()
        self.call("shift", offset_s=offset_s)
        self.offset_s = offset_s
        return error_s

    def clock_offset(self) -> tuple[float, float]:
        """Return this machine's CLOCK_MONOTONIC minus that machine's, and the maximum error, in seconds."""
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
        """Call an operation of the agent and return its result.

        Raises:
            FabricError: The operation failed, or the agent does not answer.
            LinkError: The operation failed with a LinkError.
        """
        process = self._process
        if process is None or process.stdin is None:
            raise FabricError(f"machine {self.name}: its agent was stopped")
        try:
            process.stdin.write(to_json({"do": operation, **arguments}) + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise FabricError(f"machine {self.name}: {self._exit_reason()}") from error
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
        """Read input for at most `timeout_s`; return an answer if there is one. Raises FabricError at end of file."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if b"\n" not in self._pending:
            if not wait_readable([process.stdout], timeout_s):
                return None
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                raise FabricError(f"machine {self.name}: {self._exit_reason()}")
            self._pending += data
        while b"\n" in self._pending:
            line, _, self._pending = self._pending.partition(b"\n")
            message: dict[str, Any] = json.loads(line)
            if "event" in message:
                self._lines[message["of"]].append(message["event"])
            elif "ended" in message:
                self.ended[message["of"]] = message["ended"]
            else:
                return message
        return None

    def _exit_reason(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "its agent does not read its input"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        why = f": {lines[-1]}" if lines else f" (does `ssh {self.destination} sudo -n true` work?)"
        return f"`ssh {self.destination}` ended with status {status}{why}"

    def failure(self) -> str | None:
        """Return a message if the agent has ended; None otherwise."""
        if self._process is None or self._process.poll() is None:
            return None
        return f"machine {self.name}: {self._exit_reason()}"

    def fileno(self) -> int:
        """Return a file descriptor that is readable when there may be `lines`."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def start(
        self, module: str, arguments: list[str], environment: Mapping[str, str], document: str | None = None
    ) -> int:
        """Start `python -m MODULE` there and return its process id; `document` is a line for its standard input."""
        started: int = self.call(
            "start", module=module, arguments=arguments, environment=dict(environment), document=document
        )
        return started

    def lines(self, pid: int) -> list[str]:
        """Return the lines that a program started there has printed since the last call."""
        while b"\n" in self._pending or wait_readable([self], 0.0):
            self._read(0)
        return self._lines.pop(pid, [])

    def make_namespaces(self, files: Mapping[str, Path | str | None]) -> dict[str, int]:
        """See `MachineOperations.make_namespaces`; the files' content is sent along."""
        texts = {name: Path(file).read_text() if file else None for name, file in files.items()}
        found: dict[str, int] = self.call("namespaces", texts=texts)
        return found

    def stop(self) -> None:
        """Stop the agent, which removes everything that it made; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        close_pipes(process)
        wait_or_kill(process, STOP_TIMEOUT_S)
        self._stderr.close()


def _remote_operation(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of `Machine` that calls a machine operation through the agent."""
    signature = inspect.signature(operation)
    result = TypeAdapter(get_type_hints(operation)["return"])

    @functools.wraps(operation)
    def call(self: Machine, *arguments: Any, **named: Any) -> Any:
        given = signature.bind(None, *arguments, **named).arguments
        del given["self"]
        return result.validate_python(self.call(operation.__name__, **given))

    return call


for _name, _operation in vars(MachineOperations).items():
    if not _name.startswith("_") and _name not in vars(Machine):
        setattr(Machine, _name, _remote_operation(_operation))


END_TIMEOUT_S = 3.0
FOLDER = Path("/mnt")  # exists everywhere; a private tmpfs for the agent and its programs


class Agent(MachineOperations):
    """The agent: the operations of its machine, and those of programs, clocks and tunnels."""

    def __init__(self) -> None:
        super().__init__()
        mount_private_tmpfs(str(FOLDER))
        self.folder = FOLDER
        self.offset_s = 0.0
        self.programs: list[subprocess.Popen[str]] = []
        self.tunnels: list[TunnelSocket] = []
        self._send_lock = threading.Lock()

    def send(self, **message: Any) -> None:
        """Write one line of JSON; thread-safe."""
        with self._send_lock:
            print(to_json(message).decode(), flush=True)

    def hello(self) -> dict[str, Any]:
        """Return the folder for files and the number of CPU cores."""
        return {"folder": str(self.folder), "cores": len(os.sched_getaffinity(0))}

    def clock(self) -> float:
        """Return this machine's CLOCK_MONOTONIC."""
        return time.monotonic()

    def shift(self, offset_s: float) -> None:
        """Set the offset of CLOCK_MONOTONIC for programs started from now on, in seconds."""
        self.offset_s = offset_s

    def namespaces(self, texts: dict[str, str | None]) -> dict[str, int]:
        """Create namespaces; `texts` has the content of each node's /etc/hosts."""
        files: dict[str, Path | str | None] = dict.fromkeys(texts)
        for number, (name, text) in enumerate(texts.items()):
            if text is not None:
                files[name] = self.folder / f"hosts-{number}"
                Path(self.folder / f"hosts-{number}").write_text(text)
        return self.make_namespaces(files)

    def answer_tunnel(self, interface: str, pid: int, mtu: int) -> None:
        """Start a thread that answers measurement frames from a tunnel."""
        with network_namespace(pid):
            end = TunnelSocket(interface, mtu)
        self.tunnels.append(end)

        def until_closed() -> None:
            with contextlib.suppress(OSError, ValueError):
                serve(end)

        threading.Thread(target=until_closed, daemon=True).start()

    def close_tunnels(self) -> None:
        """Close the sockets of tunnel measurements."""
        for end in self.tunnels:
            end.close()
        self.tunnels.clear()

    def start(
        self, module: str, arguments: list[str], environment: dict[str, str], document: str | None
    ) -> int:
        """Start `python -m MODULE` and return its process id.

        It gets the line `document` on standard input; its output is sent as events.
        """
        program = subprocess.Popen(
            [sys.executable, "-m", "testbed.net.links.clock_offset", str(self.offset_s), module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )
        self.programs.append(program)
        assert program.stdin is not None
        if document is not None:
            with contextlib.suppress(BrokenPipeError):
                program.stdin.write(document + "\n")
                program.stdin.flush()
        threading.Thread(target=self._relay, args=(program,), daemon=True).start()
        return program.pid

    def _relay(self, program: subprocess.Popen[str]) -> None:
        assert program.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in program.stdout:
                self.send(event=line.rstrip("\n"), of=program.pid)
            self.send(ended=program.wait(), of=program.pid)

    def end(self, pid: int) -> None:
        """Stop a program that `start` started."""
        for program in [program for program in self.programs if program.pid == pid]:
            _stop_program(program)
            self.programs.remove(program)

    def files(self) -> dict[str, str]:
        """Return the JSON-lines files that programs have written into the folder, by name."""
        return {path.name: path.read_text() for path in sorted(self.folder.glob("*.jsonl"))}

    def stop(self) -> None:
        """Stop all programs and remove all namespaces."""
        for program in self.programs:
            _stop_program(program)
        self.close_tunnels()
        super().stop()


def _stop_program(program: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        program.terminate()
    wait_or_kill(program, END_TIMEOUT_S)
    close_pipes(program)


def main() -> None:
    """Serve requests until the end of standard input."""
    set_parent_death_signal(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    agent = Agent()
    operation = functools.cache(lambda name: validate_call(getattr(agent, name)))
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                agent.send(result=operation(request.pop("do"))(**request))
            except LinkError as error:
                agent.send(error=str(error), kind="LinkError")
            except (FabricError, OSError) as error:
                agent.send(error=str(error), kind="FabricError")
    finally:
        agent.stop()


if __name__ == "__main__":
    main()
