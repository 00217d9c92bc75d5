"""The agent for a fabric's part on a remote machine, started through SSH as `testbed.net.fabric.machine_agent`.

A request is a line of JSON on standard input, {"do": OPERATION, ...}. Its answer is a line on standard output,
{"result": ...} or {"error": message, "kind": ...}. Between answers there are {"event": ...} lines with the output of
programs that were started here. At the end of standard input, everything that the agent made is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import validate_call
from pydantic_core import to_json

from testbed.net.errors import FabricError
from testbed.net.fabric.namespace_holder import mount_private_tmpfs
from testbed.net.fabric.namespaces import AGENT_OPERATIONS, MachineOperations
from testbed.net.fabric.tunnel import TunnelSocket, serve
from testbed.net.links import LinkError
from testbed.net.links.netns import network_namespace
from testbed.processes import close_pipes, set_parent_death_signal, wait_or_kill

END_TIMEOUT_S = 3.0
FOLDER = Path("/mnt")  # exists everywhere; a private tmpfs for the agent and its programs


class Agent:
    """The agent. Each operation is a method named `do_...`."""

    def __init__(self) -> None:
        self.operations = MachineOperations()
        for name in AGENT_OPERATIONS:
            setattr(self, f"do_{name}", validate_call(getattr(self.operations, name)))
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

    def do_hello(self) -> dict[str, Any]:
        """Return the folder for files and the number of CPU cores."""
        return {"folder": str(self.folder), "cores": len(os.sched_getaffinity(0))}

    def do_clock(self) -> float:
        """Return this machine's CLOCK_MONOTONIC."""
        return time.monotonic()

    def do_shift(self, offset_s: float) -> None:
        """Set the offset of CLOCK_MONOTONIC for programs started from now on, in seconds."""
        self.offset_s = offset_s

    def do_namespaces(self, texts: dict[str, str | None]) -> dict[str, int]:
        """Create namespaces; `texts` has the content of each node's /etc/hosts."""
        files: dict[str, Path | str | None] = dict.fromkeys(texts)
        for number, (name, text) in enumerate(texts.items()):
            if text is not None:
                files[name] = self.folder / f"hosts-{number}"
                Path(self.folder / f"hosts-{number}").write_text(text)
        return self.operations.make_namespaces(files)

    def do_answer_tunnel(self, interface: str, pid: int, mtu: int) -> None:
        """Start a thread that answers measurement frames from a tunnel."""
        with network_namespace(pid):
            end = TunnelSocket(interface, mtu)
        self.tunnels.append(end)

        def until_closed() -> None:
            with contextlib.suppress(OSError, ValueError):
                serve(end)

        threading.Thread(target=until_closed, daemon=True).start()

    def do_close_tunnels(self) -> None:
        """Close the sockets of tunnel measurements."""
        for end in self.tunnels:
            end.close()
        self.tunnels.clear()

    def do_start(
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

    def do_end(self, pid: int) -> None:
        """Stop a program that `do_start` started."""
        for program in [program for program in self.programs if program.pid == pid]:
            _stop_program(program)
            self.programs.remove(program)

    def do_files(self) -> dict[str, str]:
        """Return the JSON-lines files that programs have written into the folder, by name."""
        return {path.name: path.read_text() for path in sorted(self.folder.glob("*.jsonl"))}

    def stop(self) -> None:
        """Stop all programs and remove all namespaces."""
        for program in self.programs:
            _stop_program(program)
        self.do_close_tunnels()
        self.operations.stop()


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
    try:
        for line in sys.stdin:
            request = json.loads(line)
            operation = getattr(agent, f"do_{request.pop('do')}")
            try:
                agent.send(result=operation(**request))
            except LinkError as error:
                agent.send(error=str(error), kind="LinkError")
            except (FabricError, OSError) as error:
                agent.send(error=str(error), kind="FabricError")
    finally:
        agent.stop()


if __name__ == "__main__":
    main()
