"""A machine's part in a fabric that another machine leads, started through SSH as `testbed.net.fabric.machine_agent`.

One request is a line of JSON on standard input, {"do": OPERATION, ...}; its answer a line on standard output,
{"result": ...} or {"error": words, "kind": ...}. Between answers come {"event": ...}: lines that a program which was
started there has printed. The end of standard input ends all that was made.
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
from testbed.net.fabric.namespace_holder import keep_files_apart
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.fabric.tunnel import TunnelSocket, answer
from testbed.net.fabric.verify import NamespaceSettings
from testbed.net.links import LinkError
from testbed.net.links.ingress import IngressDelay
from testbed.net.links.link_engine import classes_from_json
from testbed.net.links.netns import network_namespace
from testbed.net.links.setup import Setup
from testbed.net.links.shaping import Shape
from testbed.processes import close_pipes, set_parent_death_signal, wait_or_kill

END_TIMEOUT_S = 3.0
FOLDER = Path("/mnt")  # there everywhere, and another one for the agent and what it starts


class Agent:
    """Does what it is asked. Each operation is a method named `do_...`."""

    def __init__(self) -> None:
        self.operations = MachineOperations()
        keep_files_apart(str(FOLDER))
        self.folder = FOLDER
        self.offset_s = 0.0
        self.programs: list[subprocess.Popen[str]] = []
        self.tunnels: list[TunnelSocket] = []
        self._saying = threading.Lock()

    def say(self, **words: Any) -> None:
        """Write one line of JSON; lines of several threads do not mix."""
        with self._saying:
            print(json.dumps(words), flush=True)

    def do_hello(self) -> dict[str, Any]:
        """Where files may lie, and how many cores there are."""
        return {"folder": str(self.folder), "cores": len(os.sched_getaffinity(0))}

    def do_clock(self) -> float:
        """This machine's CLOCK_MONOTONIC."""
        return time.monotonic()

    def do_shift(self, offset_s: float) -> None:
        """What is started from now on sees it so much ahead."""
        self.offset_s = offset_s

    def do_namespaces(self, texts: dict[str, str | None]) -> dict[str, int]:
        """Namespaces; `texts` are their /etc/hosts."""
        files: dict[str, Path | str | None] = dict.fromkeys(texts)
        for number, (name, text) in enumerate(texts.items()):
            if text is not None:
                files[name] = self.folder / f"hosts-{number}"
                Path(self.folder / f"hosts-{number}").write_text(text)
        return self.operations.make_namespaces(files)

    def do_veth(self, ends: list[dict[str, Any]]) -> None:
        """As `MachineOperations` does."""
        self.operations.veth(ends)

    def do_tunnel(self, **end: Any) -> None:
        """As `MachineOperations` does."""
        self.operations.tunnel(**end)

    def do_apply(self, setup: dict[str, Any], pid: int | None) -> None:
        """As `MachineOperations` does."""
        self.operations.apply(Setup(**setup), pid)

    def do_verify(self, settings: dict[str, Any]) -> None:
        """As `MachineOperations` does."""
        self.operations.verify(_settings(settings))

    def do_verify_offloads(self, settings: dict[str, Any]) -> None:
        """As `MachineOperations` does."""
        self.operations.verify_offloads(_settings(settings))

    def do_answer_tunnel(self, interface: str, pid: int, mtu: int) -> None:
        """Answer what comes through a tunnel."""
        with network_namespace(pid):
            end = TunnelSocket(interface, mtu)
        self.tunnels.append(end)

        def until_closed() -> None:
            with contextlib.suppress(OSError, ValueError):
                answer(end)

        threading.Thread(target=until_closed, daemon=True).start()

    def do_frames(self, interface: str, pid: int) -> tuple[int, int]:
        """As `MachineOperations` does."""
        return self.operations.frames(interface, pid)

    def do_counts(self, pid: int, protocols: bool) -> dict[str, Any]:
        """As `MachineOperations` does."""
        return dataclasses.asdict(self.operations.counts(pid, protocols))

    def do_watch(self, watched: list[dict[str, Any]], left_out: list[list[str]]) -> None:
        """As `MachineOperations` does."""
        namespaces = [
            WatchedNamespace(**{**namespace, "interfaces": tuple(namespace["interfaces"])})
            for namespace in watched
        ]
        self.operations.watch(namespaces, [(name, interface) for name, interface in left_out])

    def do_look(self, thorough: bool) -> list[str]:
        """As `MachineOperations` does."""
        return self.operations.look(thorough)

    def do_take(self) -> None:
        """As `MachineOperations` does."""
        self.operations.take()

    def do_close_tunnels(self) -> None:
        """Close the sockets that tunnels were measured through."""
        for end in self.tunnels:
            end.close()
        self.tunnels.clear()

    def do_start(
        self, module: str, arguments: list[str], environment: dict[str, str], document: str | None
    ) -> int:
        """Start `python -m MODULE`; the line `document` goes in, its lines come out as events. Its process id."""
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
                self.say(event=line.rstrip("\n"), of=program.pid)
            self.say(ended=program.wait(), of=program.pid)

    def do_end(self, pid: int) -> None:
        """End a program that was started."""
        for program in [program for program in self.programs if program.pid == pid]:
            _end(program)
            self.programs.remove(program)

    def do_files(self) -> dict[str, str]:
        """What programs have written into the folder."""
        return {path.name: path.read_text() for path in sorted(self.folder.glob("*.jsonl"))}

    def stop(self) -> None:
        """End everything that was started here."""
        for program in self.programs:
            _end(program)
        self.do_close_tunnels()
        self.operations.stop()


def _end(program: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        program.terminate()
    wait_or_kill(program, END_TIMEOUT_S)
    close_pipes(program)


def _settings(data: dict[str, Any]) -> NamespaceSettings:
    shapes = {
        name: Shape(**{**shape, "classes": classes_from_json(shape["classes"])})
        for name, shape in data["shapes"].items()
    }
    delays = {name: IngressDelay(**delay) for name, delay in data["ingress_delays"].items()}
    return NamespaceSettings(
        **{**data, "interfaces": tuple(data["interfaces"]), "shapes": shapes, "ingress_delays": delays}
    )


def main() -> None:
    """Answer until the end of standard input."""
    set_parent_death_signal(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    agent = Agent()
    try:
        for line in sys.stdin:
            request = json.loads(line)
            operation = getattr(agent, f"do_{request.pop('do')}")
            try:
                agent.say(result=operation(**request))
            except LinkError as error:
                agent.say(error=str(error), kind="LinkError")
            except (FabricError, OSError) as error:
                agent.say(error=str(error), kind="FabricError")
    finally:
        agent.stop()


if __name__ == "__main__":
    main()
