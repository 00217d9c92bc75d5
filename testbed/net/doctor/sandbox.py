"""Sandbox of probes: time limits, and bridges that are always removed.

A small shell holds the bridges until its standard input is closed. The kernel closes it when this process ends, even by
SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

BRIDGE_PREFIX = "tbdoc"
REMOVAL_TIMEOUT_S = 10.0

# One process creates and removes the bridges, so killing this process cannot leave them. It ignores SIGPIPE because its
# reader may be gone when it reports that they exist. Arguments: ovs-vsctl, then NAME:DATAPATH...
_BRIDGE_KEEPER = """trap '' PIPE
vsctl="$1 --timeout=5"; shift
for pair; do
    $vsctl add-br "${pair%:*}" -- set bridge "${pair%:*}" datapath_type="${pair#*:}" >/dev/null 2>&1
done
echo ready
cat >/dev/null
for pair; do $vsctl --if-exists del-br "${pair%:*}"; done
"""


@contextlib.contextmanager
def throwaway_bridges(datapaths: Sequence[str]) -> Iterator[dict[str, str]]:
    """Create an Open vSwitch bridge on each datapath ("system", "netdev") and yield their names by datapath.

    The caller has to check whether a bridge works.

    Raises:
        OSError: The bridges could not be removed again.
    """
    names = {datapath: f"{BRIDGE_PREFIX}{os.getpid()}{datapath[0]}" for datapath in datapaths}
    keeper = subprocess.Popen(
        [
            "sh",
            "-c",
            _BRIDGE_KEEPER,
            "sh",
            locate("ovs-vsctl") or "ovs-vsctl",
            *(f"{n}:{d}" for d, n in names.items()),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # so that Ctrl-C does not prevent the removal
    )
    assert keeper.stdout is not None
    try:
        keeper.stdout.readline()
        yield names
    finally:
        keeper.communicate(timeout=REMOVAL_TIMEOUT_S)
        if keeper.returncode != 0:
            raise OSError(f"Open vSwitch did not remove the bridges {', '.join(names.values())}")


def remove_abandoned_bridges() -> None:
    """Remove the bridges of probes that no longer run; Open vSwitch's database survives even a power loss."""
    for name in abandoned_bridges(run(["ovs-vsctl", "--timeout=5", "list-br"]).output):
        run(["ovs-vsctl", "--timeout=5", "--if-exists", "del-br", name])


def abandoned_bridges(listed: str) -> list[str]:
    """Return the listed bridges whose probe process has ended."""
    found = [re.fullmatch(rf"{BRIDGE_PREFIX}(\d+)[sn]", name) for name in listed.split()]
    return [match[0] for match in found if match and not Path(f"/proc/{match[1]}").exists()]


TIMEOUT_S = 5.0
# Folders of tc, ethtool and Open vSwitch, which are not on an ordinary user's PATH.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program; if it did not finish, `status` is None and `message` has the reason."""

    status: int | None
    output: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the program succeeded."""
        return self.status == 0

    @property
    def reason(self) -> str:
        """The reason for a failure: the first line of the program's message, or its status."""
        return self.message.splitlines()[0] if self.message else f"status {self.status}"


def locate(program: str) -> str | None:
    """Return the path of a program on PATH or in SYSTEM_FOLDERS; None if it is not installed."""
    return shutil.which(program) or shutil.which(program, path=":".join(SYSTEM_FOLDERS))


def run(arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run a program without input; `output` and `message` are its standard output and error, stripped."""
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
        return Outcome(None, message=f"{arguments[0]} did not finish within {timeout_s:g} s")
    except OSError as error:
        return Outcome(None, message=f"{arguments[0]} cannot be run: {error.strerror}")
    return Outcome(done.returncode, done.stdout.strip(), done.stderr.strip())
