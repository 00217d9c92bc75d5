"""The agent for a fabric's part on a remote machine, started through SSH as `testbed.net.fabric.machine_agent`.

A request is a line of JSON on standard input, {"do": OPERATION, ...}. Its answer is a line on standard output,
{"result": ...} or {"error": message, "kind": ...}. Between answers there are {"event": ...} lines with the output of
programs that were started here. At the end of standard input, everything that the agent made is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from testbed.net.errors import FabricError
from testbed.net.fabric.fingerprint import WatchedNamespace
from testbed.net.fabric.namespace_holder import mount_private_tmpfs
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.tunnel import TunnelSocket, serve
from testbed.net.fabric.verify import NamespaceSettings
from testbed.net.links import LinkError
from testbed.net.links.ingress import IngressDelay
from testbed.net.links.link_engine import classes_from_json
from testbed.net.links.netns import network_namespace
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape
from testbed.processes import close_pipes, set_parent_death_signal, wait_or_kill

END_TIMEOUT_S = 3.0
FOLDER = Path("/mnt")  # exists everywhere; a private tmpfs for the agent and its programs


class Agent:
    """The agent. Each operation is a method named `do_...`."""

    def __init__(self) -> None:
        self.operations = MachineOperations()
        # The arguments and results of these are JSON-compatible.
        self.do_veth, self.do_tunnel = self.operations.veth, self.operations.tunnel
        self.do_frames = self.operations.frames
        self.do_look, self.do_take = self.operations.look, self.operations.take
        mount_private_tmpfs(str(FOLDER))
        self.folder = FOLDER
        self.offset_s = 0.0
        self.programs: list[subprocess.Popen[str]] = []
        self.tunnels: list[TunnelSocket] = []
        self._send_lock = threading.Lock()

    def send(self, **message: Any) -> None:
        """Write one line of JSON; thread-safe."""
        with self._send_lock:
            print(json.dumps(message), flush=True)

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

    def do_apply(self, setup: dict[str, Any], pid: int | None) -> None:
        """Call `MachineOperations.apply`."""
        self.operations.apply(Setup(**setup), pid)

    def do_verify(self, settings: dict[str, Any]) -> None:
        """Call `MachineOperations.verify`."""
        self.operations.verify(_parse_settings(settings))

    def do_verify_offloads(self, settings: dict[str, Any]) -> None:
        """Call `MachineOperations.verify_offloads`."""
        self.operations.verify_offloads(_parse_settings(settings))

    def do_answer_tunnel(self, interface: str, pid: int, mtu: int) -> None:
        """Start a thread that answers measurement frames from a tunnel."""
        with network_namespace(pid):
            end = TunnelSocket(interface, mtu)
        self.tunnels.append(end)

        def until_closed() -> None:
            with contextlib.suppress(OSError, ValueError):
                serve(end)

        threading.Thread(target=until_closed, daemon=True).start()

    def do_counts(self, pid: int, protocols: bool) -> dict[str, Any]:
        """Call `MachineOperations.counts`."""
        return dataclasses.asdict(self.operations.counts(pid, protocols))

    def do_watch(self, watched: list[dict[str, Any]], excluded: list[list[str]]) -> None:
        """Call `MachineOperations.watch`."""
        namespaces = [
            WatchedNamespace(**{**namespace, "interfaces": tuple(namespace["interfaces"])})
            for namespace in watched
        ]
        self.operations.watch(namespaces, [(name, interface) for name, interface in excluded])

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


def _parse_settings(data: dict[str, Any]) -> NamespaceSettings:
    shapes = {
        name: Shape(**{**shape, "classes": classes_from_json(shape["classes"])})
        for name, shape in data["shapes"].items()
    }
    delays = {name: IngressDelay(**delay) for name, delay in data["ingress_delays"].items()}
    return NamespaceSettings(
        **{**data, "interfaces": tuple(data["interfaces"]), "shapes": shapes, "ingress_delays": delays}
    )


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
