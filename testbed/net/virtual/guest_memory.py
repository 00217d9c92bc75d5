"""The file behind a guest's memory, and the host memory that it takes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from testbed.net.errors import VirtualClockError

SHARED_MEMORY = Path("/dev/shm")
MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
BLOCK_BYTES = 512  # the unit of st_blocks


class MemoryFile:
    """The file behind a guest's memory, in `folder`.

    The guest's kernel unlinks it at once, so it is kept open here until `close`. The file is sparse: only used memory
    takes space.

    Args:
        expected_bytes: Space that must be free.

    Raises:
        VirtualClockError: No folder has that much space.
    """

    def __init__(self, expected_bytes: int) -> None:
        self.folder = _choose_folder(expected_bytes)
        self._descriptor = -1

    def attach(self, pid: int) -> None:
        """Open the file if the guest's kernel, process `pid`, has created it."""
        if self._descriptor >= 0:
            return
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if target.startswith(f"{self.folder}/") and target.endswith("(deleted)"):
                    self._descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
                    return

    @property
    def used_bytes(self) -> int | None:
        """Peak memory use, since a guest never returns memory; None if the file was never found."""
        return os.fstat(self._descriptor).st_blocks * BLOCK_BYTES if self._descriptor >= 0 else None

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def reached_map_limit(session: int) -> bool:
    """Return whether a process of a guest has as many memory maps as this machine allows.

    Newer guest kernels print no message about it.
    """
    most = int(MAX_MAP_COUNT.read_text())
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) == session and (folder / "maps").read_bytes().count(b"\n") >= most:
                return True
    return False


def describe_map_limit() -> str:
    """Return the message for a process with too many memory maps."""
    return (
        "a process of the guest has more memory maps than this machine allows "
        f"({MAX_MAP_COUNT.read_text().strip()}): raise the limit with `sysctl vm.max_map_count=1000000`"
    )


def _choose_folder(expected_bytes: int) -> Path:
    for folder in (SHARED_MEMORY, Path(tempfile.gettempdir())):
        if (
            folder.is_dir()
            and os.access(folder, os.W_OK)
            and shutil.disk_usage(folder).free >= expected_bytes
        ):
            return folder
    raise VirtualClockError(
        f"no space for the guest's {expected_bytes >> 20} MiB of memory in {SHARED_MEMORY} or "
        f"{tempfile.gettempdir()}: give it less with --memory"
    )
