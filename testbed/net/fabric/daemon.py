"""The daemon behind `testbed up`: it builds a fabric, watches it, and takes it down on SIGTERM.

`start_background` starts it detached from the terminal and waits until the fabric is up. When a part of the fabric
fails, the daemon sets its state to `failed` with the reason, and keeps the rest up for inspection.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from testbed.net.controller import PolicyChoice
from testbed.net.errors import FabricError
from testbed.net.fabric.fabric_state import FabricState, clean
from testbed.net.fabric.network import Fabric
from testbed.processes import close_pipes
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology

WATCH_INTERVAL_S = 0.5
DOWN_TIMEOUT_S = 20.0


def start_background(path: Path, options: dict[str, Any], progress: Callable[[str], None]) -> str:
    """Build a fabric in a background process.

    Args:
        path: The topology file.
        options: Options of `Fabric`, as JSON-compatible values.
        progress: Called with each line of progress.

    Returns:
        The fabric's id.

    Raises:
        FabricError: The fabric cannot be built.
    """
    request = json.dumps({"path": str(path), "options": options})
    daemon = subprocess.Popen(
        [sys.executable, "-m", "testbed.net.fabric.daemon"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd="/",
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    try:
        daemon.stdin.write(request + "\n")
        daemon.stdin.flush()
        for line in daemon.stdout:
            event = json.loads(line)
            if "progress" in event:
                progress(event["progress"])
            elif "up" in event:
                return str(event["up"])
            else:
                daemon.wait()
                raise FabricError(event["error"])
        daemon.wait()
        raise FabricError(f"the fabric's process ended unexpectedly: {daemon.stderr.read().strip()[-500:]}")
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            daemon.terminate()  # the daemon removes everything that it has built so far
        daemon.wait()
        raise
    finally:
        close_pipes(daemon)


def take_down(state: FabricState) -> None:
    """Take a fabric down: terminate its owner, wait, then remove any remains."""
    if state.owner_alive() and state.owner_pid != os.getpid():
        with contextlib.suppress(psutil.Error):
            psutil.Process(state.owner_pid).terminate()
        deadline = time.monotonic() + DOWN_TIMEOUT_S
        while state.owner_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        if state.owner_alive():
            with contextlib.suppress(psutil.Error):
                psutil.Process(state.owner_pid).kill()
    clean(state)


def _report(**event: str) -> None:
    print(json.dumps(event), flush=True)


def main() -> int:
    """Build a fabric, report it, and keep it up until SIGTERM; return the exit status."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupt(number: int, frame: object) -> None:
        if stop.is_set():
            return
        stop.set()
        if building:
            raise SystemExit(1)

    building = True
    signal.signal(signal.SIGTERM, interrupt)
    request = json.loads(sys.stdin.readline())
    options = request["options"]
    options["scale"] = Scale(**options["scale"])
    options["policy"] = PolicyChoice(**options["policy"])
    topology = load_topology(Path(request["path"])).resolve(options["scale"])
    fabric = Fabric(topology, **options, progress=lambda line: _report(progress=line))
    try:
        fabric.up()
        fabric.apply_queues()
        building = False
        _report(up=fabric.state.id)
    except FabricError as error:
        _report(error=str(error))
        return 1
    except (BrokenPipeError, SystemExit):  # the requesting process is gone, or has sent SIGTERM
        fabric.down()
        return 1
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    while not stop.wait(WATCH_INTERVAL_S):
        if fabric.state.phase == "up" and (failure := fabric.failure()):
            fabric.state.phase, fabric.state.failure = "failed", failure
            fabric.state.save()
    fabric.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
