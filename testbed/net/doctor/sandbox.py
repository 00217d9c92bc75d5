"""Run probes with a time limit, in namespaces and bridges that are removed whatever happens.

Each is kept by a small shell that lives until its standard input ends, which the kernel brings about when this process
ends in any way, SIGKILL included.
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

_NAMESPACE_KEEPER = "echo ready; exec cat >/dev/null"
# Bridges are made and removed by one process, one after the other, so no kill of this one can come between the two. It
# ignores SIGPIPE: its reader may be gone when it says that they are made. Arguments: ovs-vsctl, then NAME:DATAPATH...
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
def throwaway_namespace() -> Iterator[int]:
    """A fresh network namespace; yields the id of the process that keeps it. OSError with the reason when refused."""
    keeper = subprocess.Popen(
        [locate("unshare") or "unshare", "--net", "sh", "-c", _NAMESPACE_KEEPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C at the terminal must not take it away under a probe
    )
    assert keeper.stdout is not None
    try:
        if keeper.stdout.readline() != "ready\n":
            _, said = keeper.communicate()
            raise OSError(said.strip() or "unshare said nothing")
        yield keeper.pid
    finally:
        keeper.kill()
        keeper.communicate()


def run_in_namespace(pid: int, arguments: Sequence[str]) -> Outcome:
    """Run a program in the network namespace of process `pid`."""
    program = locate(arguments[0])
    if program is None:
        return Outcome(None, message=f"{arguments[0]} not found")
    return run(["nsenter", f"--net=/proc/{pid}/ns/net", program, *arguments[1:]])


@contextlib.contextmanager
def throwaway_bridges(datapaths: Sequence[str]) -> Iterator[dict[str, str]]:
    """An Open vSwitch bridge on each kind of datapath ("system", "netdev"); yields the bridges' names by kind.

    Whether a bridge works is for the caller to find out. OSError when they cannot be removed again.
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
        start_new_session=True,  # what ends this process at the terminal must not end its cleaning
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
    """Remove bridges of probes that are no more: Open vSwitch's database outlives even a machine that lost power."""
    for name in abandoned_bridges(run(["ovs-vsctl", "--timeout=5", "list-br"]).output):
        run(["ovs-vsctl", "--timeout=5", "--if-exists", "del-br", name])


def abandoned_bridges(listed: str) -> list[str]:
    """Those of the listed bridges that a probe of a process no longer alive made."""
    found = [re.fullmatch(rf"{BRIDGE_PREFIX}(\d+)[sn]", name) for name in listed.split()]
    return [match[0] for match in found if match and not Path(f"/proc/{match[1]}").exists()]


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
