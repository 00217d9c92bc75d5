"""A program that sees CLOCK_MONOTONIC ahead: `python -m testbed.net.links.clock_offset SECONDS MODULE [ARGUMENT...]`.

Only children are in a new time namespace, and who may have such children may start no threads (EINVAL in Linux 6.1): so
this is a process of its own, which has the module run by its one child and ends as that does.
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
    """Its exit status is the module's; 128 + n where signal n ended that."""
    seconds, module, *arguments = sys.argv[1:]
    set_parent_death_signal(signal.SIGTERM)
    shift_monotonic_clock(float(seconds))
    child = os.fork()
    if child == 0:
        set_parent_death_signal(signal.SIGTERM)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    sys.exit(ended if ended >= 0 else 128 - ended)


if __name__ == "__main__":
    main()
