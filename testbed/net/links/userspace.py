"""The `userspace` link engine: starts, asks and stops the emulator's process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
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
    direction_to_json,
    link_interfaces,
    requested_settings,
    wire_to_json,
)
from testbed.net.links.netns import command_in_namespace
from testbed.processes import close_pipes, wait_or_kill
from testbed.spec.link_direction import Direction

START_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 2.0
ATTEMPTS = 5


def ask(control: Path, operation: str, **more: Any) -> dict[str, Any]:
    """Ask the emulator for its account or its settings, after changes or leads in `more`. LinkError if mute.

    It hangs up on who does not speak at once, as this process may on a busy machine: then once more.
    """
    said = b""
    for attempt in range(ATTEMPTS):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                connection.connect(str(control))
                connection.sendall((json.dumps({"operation": operation, **more}) + "\n").encode())
                said = connection.makefile("rb").readline()
            break
        except OSError as error:
            hung_up = isinstance(error, (BrokenPipeError, ConnectionResetError))
            if not hung_up or attempt == ATTEMPTS - 1:
                raise LinkError(f"the link engine does not answer: {error}") from error
    try:
        reply: dict[str, Any] = json.loads(said or b"{}")
    except ValueError as error:
        raise LinkError(f"the link engine does not answer: {error}") from error
    if "links" not in reply:
        raise LinkError(f"the link engine answered {reply.get('error', 'nothing')}")
    return reply


def _directions(reply: Mapping[str, Any]) -> dict[tuple[str, str], Direction]:
    links = reply["links"].items()
    return {(name, which): direction_from_json(item) for name, both in links for which, item in both.items()}


class UserspaceEngine:
    """Carries frames in one Python process that lives in the WAN namespace (process `pid`'s)."""

    name = "userspace"

    def __init__(self, pid: int, wires: list[LinkWire], control: Path, seed: int) -> None:
        self._pid = pid
        self._wires = wires
        self._control = control
        self._seed = seed
        self._process: subprocess.Popen[str] | None = None
        self._complaints: IO[str] | None = None
        self.realtime = False

    @property
    def process_id(self) -> int | None:
        """The emulator's process id, once started."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the emulator and compare its settings with what was asked."""
        configuration = {
            "seed": self._seed,
            "control": str(self._control),
            "links": [wire_to_json(wire) for wire in self._wires],
        }
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            command_in_namespace(self._pid, [sys.executable, "-m", "testbed.net.links.emulator"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            bufsize=1,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(configuration) + "\n")
        line = _read_line(self._process.stdout, START_TIMEOUT_S)
        if not line:
            raise LinkError(f"the link engine did not start: {self.failure() or 'no word within its time'}")
        self.realtime = bool(json.loads(line)["realtime"])
        compare_settings(requested_settings(self._wires), self.settings())

    def settings(self) -> dict[tuple[str, str], Direction]:
        """What each direction is set to, as the emulator says."""
        return _directions(ask(self._control, "settings"))

    def change(self, asked: Mapping[tuple[str, str], Direction]) -> None:
        """Set directions anew; frames that the emulator holds keep their times."""
        changes = [(*key, direction_to_json(direction)) for key, direction in asked.items()]
        compare_settings(asked, _directions(ask(self._control, "settings", changes=changes)))

    def darken(self, links: Collection[str]) -> None:
        """The emulator loses what it holds of the links, and what comes."""
        ask(self._control, "settings", cut=list(links))

    def set_carrier(self, link: str, up: bool) -> None:
        """Take the emulator's interfaces down or up; what it holds of a link that is cut is lost."""
        set_interfaces_up(self._pid, link_interfaces(self._wires, link), up)
        ask(self._control, "settings", **{"mended" if up else "cut": [link]})

    def seeded(self) -> bool:
        """Return True: each direction draws from a generator of its own."""
        return True

    def verify(self) -> None:
        """Nothing: `settings` tells all."""

    def compensate(
        self,
        excess_s: Mapping[tuple[str, str], float],
        ends: Mapping[tuple[str, str], Collection[str]],
    ) -> None:
        """Release every frame earlier by what the switches around its link add."""
        leads = [(*key, excess, list(ends.get(key, ()))) for key, excess in excess_s.items()]
        ask(self._control, "settings", leads=leads)

    def account(self) -> EngineStats:
        """All counters, as the emulator tells them."""
        reply = ask(self._control, "account")
        directions = {}
        for name, both in reply["links"].items():
            for which, item in both.items():
                for key in ("queue_counts", "lateness_bounds_s", "lateness_counts"):
                    item[key] = tuple(item[key])
                directions[name, which] = DirectionStats(**item)
        return EngineStats(time_s=reply["time_s"], directions=directions)

    def failure(self) -> str | None:
        """How the emulator ended, if it has."""
        if self._process is None:
            return "it was never started"
        code = self._process.poll()
        if code is None:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        words = self._last_words()
        return f"the link engine (process {self._process.pid}) {how}" + (f": {words}" if words else "")

    def _last_words(self) -> str:
        if self._complaints is None or self._complaints.closed:
            return ""
        self._complaints.seek(0)
        return (self._complaints.read().strip().splitlines() or [""])[-1]

    def stop(self) -> None:
        """End the emulator by closing its standard input; kill it if that does not do."""
        process, self._process = self._process, None
        if process is not None:
            close_pipes(process)
            wait_or_kill(process, STOP_TIMEOUT_S)
        if self._complaints is not None:
            self._complaints.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._control)


def _read_line(stream: IO[str], timeout_s: float) -> str:
    """One line, or what there is of it when the stream ends or the time is up."""
    readable, _, _ = select.select([stream], [], [], timeout_s)
    return stream.readline() if readable else ""
