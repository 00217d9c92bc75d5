"""Run a module with CLOCK_MONOTONIC ahead: `python -m testbed.net.links.clock_offset SECONDS MODULE [ARGUMENT...]`.

Only children enter a new time namespace, and a process with such children may start no threads (EINVAL in Linux 6.1).
So this process runs the module in its only child and exits with its status.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from types import FrameType

from testbed.net.links.netns import shift_monotonic_clock
from testbed.processes import set_parent_death_signal


def main() -> None:
    """Run the module; exit with its status, or with 128 + n if signal n killed it."""
    seconds, module, *arguments = sys.argv[1:]
    set_parent_death_signal(signal.SIGTERM)
    shift_monotonic_clock(float(seconds))
    child = os.fork()
    if child == 0:
        set_parent_death_signal(signal.SIGTERM)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
