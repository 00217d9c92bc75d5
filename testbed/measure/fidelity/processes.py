"""How much of the cores' time went to the run's own processes, as the kernel's scheduler counts it.

/proc/PID/schedstat begins with the nanoseconds that a process has run. Only its first thread counts there: ranks, link
engine and switch have one that does the work.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

SWITCH = "ovs-vswitchd"  # switches packets for the run without being one of its children
_LONGEST_LINE = 64


def parse_run_time(text: bytes) -> float:
    """Seconds that a process has run, from its schedstat. ValueError for anything else."""
    ran_ns, _waited_ns, _slices = text.split()
    return int(ran_ns) / 1e9


def run_times_kept() -> bool:
    """Whether this kernel counts them: without CONFIG_SCHED_INFO, or with it switched off, all is zero or missing."""
    try:
        return parse_run_time(Path("/proc/self/schedstat").read_bytes()) > 0
    except (OSError, ValueError):
        return False


def parse_process(text: bytes) -> tuple[str, int]:
    """(name, parent's process id) from a process's stat; names may hold blanks and brackets."""
    opening, closing = text.index(b"("), text.rindex(b")")
    return text[opening + 1 : closing].decode(errors="replace"), int(text[closing + 1 :].split()[1])


def family(root: int, processes: Iterable[tuple[int, str, int]]) -> set[int]:
    """`root`, everything below it, and the switch's daemon, out of (process id, name, parent's process id)."""
    children: dict[int, list[int]] = {}
    found = {root}
    for pid, name, parent in processes:
        children.setdefault(parent, []).append(pid)
        if name == SWITCH:
            found.add(pid)
    to_visit = [root]
    while to_visit:
        below = children.get(to_visit.pop(), [])
        found.update(below)
        to_visit += below
    return found


class OwnProcesses:
    """Follows the processes below `root`, through files kept open: a microsecond for each reading.

    Who they are is looked up in a thread. What the kernel tells of a stranger may have to wait for a lock that the
    stranger holds: for more than a second, where that one starts a program and gets hardly any time (SCHED_IDLE).
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._files: dict[int, int] = {}
        self._last_s: dict[int, float] = {}

    @contextlib.contextmanager
    def followed(self, every_s: float) -> Iterator[None]:
        """Within the block new ones are looked for so often."""
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                self.look_round()
                over.wait(every_s)

        # nobody waits for its end, which may have to wait, too
        threading.Thread(target=look, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def look_round(self) -> None:
        """Follow those that have come since, too; their time counts from the next reading on."""
        for pid in family(self._root, _all_processes()):
            if pid not in self._files:
                with contextlib.suppress(OSError):  # it has ended already
                    self._files[pid] = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def ran_s(self) -> float:
        """Seconds of core time that they took since the last call."""
        total_s = 0.0
        for pid, file in list(self._files.items()):
            try:
                now_s = parse_run_time(os.pread(file, _LONGEST_LINE, 0))
            except (OSError, ValueError):  # it has ended
                os.close(self._files.pop(pid))
                self._last_s.pop(pid, None)
                continue
            total_s += now_s - self._last_s.get(pid, now_s)
            self._last_s[pid] = now_s
        return total_s


def _all_processes() -> Iterator[tuple[int, str, int]]:
    """(process id, name, parent's process id) of every process there is."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                yield (int(entry), *parse_process(file.read()))
