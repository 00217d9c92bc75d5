"""The launcher's process, as its parent sees it: a document in, events out, an end in any case."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from testbed.processes import close_pipes, wait_or_kill, wait_readable

STOP_TIMEOUT_S = 2.0


def launcher_environment(more: Mapping[str, str]) -> dict[str, str]:
    """What ranks find in their environment beside what all programs do."""
    return {**more, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class LauncherProcess:
    """Forks the ranks of a document: see `launcher`, also for `arguments`. A context: at its end nothing is left."""

    def __init__(self, document: str, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._pending = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testbed.measure.ranks.launcher", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, **launcher_environment(environment)},
        )
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(document.encode() + b"\n")
                self._process.stdin.flush()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> LauncherProcess:
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()

    def fileno(self) -> int:
        """Readable when there are events."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def events(self, timeout_s: float | None) -> list[dict[str, Any]] | None:
        """What it has said within this time; None at its end."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        if not wait_readable([output], timeout_s):
            return []
        data = os.read(output, 1 << 16)
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def return_ranks(self, ranks: Sequence[int]) -> None:
        """Have it fork these ranks anew, once more each; nothing where it has ended."""
        self._ask({"return": list(ranks)})

    def tell_of_death(self, rank: int) -> None:
        """Have it let go of a killed rank's line, which it may hold for when a machine is lost without a word."""
        self._ask({"died": rank})

    def dump(self, name: str) -> None:
        """Have it dump the ranks' flight recorders into a folder of that name; the event `dumped` says when."""
        self._ask({"dump": name})

    def _ask(self, what: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    def ended(self, timeout_s: float) -> str | None:
        """How it ended, in words, unless it ended well."""
        status = self._process.wait(timeout_s)
        if status == 0:
            return None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        self._complaints.seek(0)
        words = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"the launcher of the ranks {how}" + (f": {words[-1]}" if words else "")

    def stop(self) -> None:
        """Kill what is left."""
        close_pipes(self._process)
        wait_or_kill(self._process, STOP_TIMEOUT_S)
        self._complaints.close()
