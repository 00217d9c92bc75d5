"""The `userspace` link engine: it starts, queries and stops the emulator's process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from testbed.net.errors import LinkError
from testbed.net.links.interfaces import set_interfaces_up
from testbed.net.links.link_engine import (
    DirectionStats,
    EngineStats,
    LinkWire,
    compare_settings,
    direction_from_json,
    link_interfaces,
    requested_settings,
)
from testbed.net.links.netns import command_in_namespace
from testbed.processes import close_pipes, wait_or_kill, wait_readable
from testbed.spec.link_direction import Direction

START_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 2.0
ATTEMPTS = 5


def send_request(control: Path, operation: str, **more: Any) -> dict[str, Any]:
    """Send the emulator a request and return its reply.

    The emulator closes a connection whose request does not arrive immediately, which happens on a busy machine. Such a
    request is retried, with up to ATTEMPTS attempts in all.

    Args:
        control: The emulator's Unix socket.
        operation: The requested reply: "stats" or "settings".
        more: Changes to make first: `changes`, `leads`, `cut`, `restored`.

    Raises:
        LinkError: The emulator gave no answer, or reported an error.
    """
    answer = b""
    for attempt in range(ATTEMPTS):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                connection.connect(str(control))
                connection.sendall((json.dumps({"operation": operation, **more}) + "\n").encode())
                answer = connection.makefile("rb").readline()
            break
        except OSError as error:
            was_closed = isinstance(error, (BrokenPipeError, ConnectionResetError))
            if not was_closed or attempt == ATTEMPTS - 1:
                raise LinkError(f"the link engine does not answer: {error}") from error
    try:
        reply: dict[str, Any] = json.loads(answer or b"{}")
    except ValueError as error:
        raise LinkError(f"the link engine does not answer: {error}") from error
    if "links" not in reply:
        raise LinkError(f"the link engine answered {reply.get('error', 'nothing')}")
    return reply


def _directions(reply: Mapping[str, Any]) -> dict[tuple[str, str], Direction]:
    links = reply["links"].items()
    return {(name, which): direction_from_json(item) for name, both in links for which, item in both.items()}


class UserspaceEngine:
    """A link engine that forwards frames in one Python process in the WAN namespace.

    Args:
        pid: A process in the WAN namespace.
        wires: The links.
        control: Path of the Unix socket to create for requests.
        seed: Seed of losses and jitter.
    """

    name = "userspace"

    def __init__(self, pid: int, wires: list[LinkWire], control: Path, seed: int) -> None:
        self._pid = pid
        self._wires = wires
        self._control = control
        self._seed = seed
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[str] | None = None
        self.realtime = False

    @property
    def process_id(self) -> int | None:
        """The process id of the emulator once it is started."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the emulator and compare its settings with those requested."""
        configuration = {
            "seed": self._seed,
            "control": str(self._control),
            "links": [asdict(wire) for wire in self._wires],
        }
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process runs)
        self._process = subprocess.Popen(
            command_in_namespace(self._pid, [sys.executable, "-m", "testbed.net.links.emulator"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            bufsize=1,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(configuration) + "\n")
        stdout = self._process.stdout
        line = stdout.readline() if wait_readable([stdout], START_TIMEOUT_S) else ""
        if not line:
            reason = self.failure() or f"it was not ready after {START_TIMEOUT_S:g} s"
            raise LinkError(f"the link engine did not start: {reason}")
        self.realtime = bool(json.loads(line)["realtime"])
        compare_settings(requested_settings(self._wires), self.settings())

    def settings(self) -> dict[tuple[str, str], Direction]:
        """Return the settings of each direction that the emulator reports."""
        return _directions(send_request(self._control, "settings"))

    def change(self, asked: Mapping[tuple[str, str], Direction]) -> None:
        """Change the settings of directions; frames that the emulator holds keep their timing."""
        changes = [(*key, asdict(direction)) for key, direction in asked.items()]
        compare_settings(asked, _directions(send_request(self._control, "settings", changes=changes)))

    def blackhole(self, links: Collection[str]) -> None:
        """Have the emulator drop the links' frames, those that it holds and those that arrive."""
        send_request(self._control, "settings", cut=list(links))

    def set_carrier(self, link: str, up: bool) -> None:
        """Take the emulator's interfaces down or up; a link that goes down loses the frames held for it."""
        set_interfaces_up(self._pid, link_interfaces(self._wires, link), up)
        send_request(self._control, "settings", **{"restored" if up else "cut": [link]})

    def is_seeded(self) -> bool:
        """Return True: each direction has its own generators, seeded by the run."""
        return True

    def verify(self) -> None:
        """Do nothing: `settings` returns all settings."""

    def compensate(
        self,
        excess_s: Mapping[tuple[str, str], float],
        ends: Mapping[tuple[str, str], Collection[str]],
    ) -> None:
        """Release each frame earlier by the latency of the switches around its link."""
        leads = [(*key, excess, list(ends.get(key, ()))) for key, excess in excess_s.items()]
        send_request(self._control, "settings", leads=leads)

    def stats(self) -> EngineStats:
        """Return all counters that the emulator reports."""
        reply = send_request(self._control, "stats")
        directions = {}
        for name, both in reply["links"].items():
            for which, item in both.items():
                tuples = {key: tuple(value) for key, value in item.items() if isinstance(value, list)}
                directions[name, which] = DirectionStats(**{**item, **tuples})
        return EngineStats(time_s=reply["time_s"], directions=directions)

    def failure(self) -> str | None:
        """Return how the emulator ended; None while it runs."""
        if self._process is None:
            return "it was never started"
        code = self._process.poll()
        if code is None:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        last_line = self._last_error_line()
        return f"the link engine (process {self._process.pid}) {how}" + (
            f": {last_line}" if last_line else ""
        )

    def _last_error_line(self) -> str:
        if self._stderr is None or self._stderr.closed:
            return ""
        self._stderr.seek(0)
        return (self._stderr.read().strip().splitlines() or [""])[-1]

    def stop(self) -> None:
        """Stop the emulator by closing its standard input; kill it if it does not exit."""
        process, self._process = self._process, None
        if process is not None:
            close_pipes(process)
            wait_or_kill(process, STOP_TIMEOUT_S)
        if self._stderr is not None:
            self._stderr.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._control)
