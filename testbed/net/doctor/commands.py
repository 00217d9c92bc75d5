"""Run a program for what it says: never an exception, never longer than a few seconds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

TIMEOUT_S = 5.0
# Where tc, ethtool and Open vSwitch live; not on an ordinary user's path.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Outcome:
    """What a program said; `status` None when it did not run to its end, and then `message` says why."""

    status: int | None
    output: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.status == 0


def locate(program: str) -> str | None:
    """The program's path, on the user's path or in the system's folders; None when there is none."""
    return shutil.which(program) or shutil.which(program, path=":".join(SYSTEM_FOLDERS))


def run(arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run it without input; `output` and `message` are what it wrote to standard output and error, stripped."""
    path = locate(arguments[0])
    if path is None:
        return Outcome(None, message=f"{arguments[0]} not found")
    try:
        done = subprocess.run(
            [path, *arguments[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, message=f"{arguments[0]} gave no answer in {timeout_s:g} s")
    except OSError as error:
        return Outcome(None, message=f"{arguments[0]} cannot be run: {error.strerror}")
    return Outcome(done.returncode, done.stdout.strip(), done.stderr.strip())
