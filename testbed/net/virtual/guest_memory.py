"""The file that is a guest's memory, and how much of this machine's it takes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from testbed.net.errors import VirtualClockError

SHARED_MEMORY = Path("/dev/shm")
MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
BLOCK_BYTES = 512  # that stat counts


class MemoryFile:
    """The memory of a guest, in `folder`; held until `close`, for it has no name there and goes with its last holder.

    expected_bytes: for which there must be room: of the file only what is used takes any. VirtualClockError.
    """

    def __init__(self, expected_bytes: int) -> None:
        self.folder = _choose_folder(expected_bytes)
        self._held = -1

    def look(self, pid: int) -> None:
        """Take hold of it as soon as the guest's kernel, process `pid`, has made it."""
        if self._held >= 0:
            return
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if target.startswith(f"{self.folder}/") and target.endswith("(deleted)"):
                    self._held = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
                    return

    @property
    def used_bytes(self) -> int | None:
        """What was used at most: a guest gives nothing back. None where the file was never found."""
        return os.fstat(self._held).st_blocks * BLOCK_BYTES if self._held >= 0 else None

    def close(self) -> None:
        """Let go of it."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def reached_map_limit(session: int) -> bool:
    """Whether one of a guest's programs has as many as this machine allows: a newer kernel does not say so."""
    most = int(MAX_MAP_COUNT.read_text())
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) == session and (folder / "maps").read_bytes().count(b"\n") >= most:
                return True
    return False


def describe_map_limit() -> str:
    """In words, with what to do."""
    return (
        "a process of the guest has its memory in more pieces than this machine lets it "
        f"({MAX_MAP_COUNT.read_text().strip()}): raise that with `sysctl vm.max_map_count=1000000`"
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
        f"no room for the guest's {expected_bytes >> 20} MiB of memory in {SHARED_MEMORY} or "
        f"{tempfile.gettempdir()}: give it less with --memory"
    )
