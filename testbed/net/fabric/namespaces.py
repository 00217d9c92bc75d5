"""Starts and ends the process that holds the namespaces of a fabric's nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from testbed.net.fabric.errors import FabricError
from testbed.processes import close_pipes, wait_or_kill

STOP_TIMEOUT_S = 5.0


class Namespaces:
    """Network and mount namespaces, one pair for each node, made when this is. FabricError when they cannot be.

    `files` has the nodes' names, and for each what to put in place of its /etc/hosts, None to leave it. `pids` has a
    process in each.
    """

    def __init__(self, files: Mapping[str, Path | str | None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testbed.net.fabric.namespaces_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([file and str(file) for file in files.values()]) + "\n")
            self._process.stdin.flush()
            said = json.loads(self._process.stdout.readline() or '{"error": "its process ended"}')
        except BaseException:
            self.stop()
            raise
        if "error" in said:
            self.stop()
            raise FabricError(f"no namespaces for the network's nodes: {said['error']}")
        self.pids: dict[str, int] = dict(zip(files, said["pids"], strict=True))

    def stop(self) -> None:
        """End them all; their interfaces go with them. Harmless when repeated."""
        close_pipes(self._process)
        wait_or_kill(self._process, STOP_TIMEOUT_S)
