"""How the cores spend their time, from /proc/stat."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_IDLE, _IOWAIT, _STEAL = 3, 4, 7


@dataclass(frozen=True)
class CpuShares:
    """Shares of all cores' time: idle, running processes (interrupts are neither), taken away by the hypervisor."""

    idle: float
    processes: float
    steal: float


@dataclass(frozen=True)
class CpuTimes:
    """Ticks of all cores together since boot: in all, idle, running processes, taken away by the hypervisor."""

    total: int
    idle: int
    processes: int
    steal: int

    def shares_since(self, before: CpuTimes) -> CpuShares:
        """How the time since an earlier reading was spent; idle when no tick has passed."""
        total = self.total - before.total
        if total <= 0:
            return CpuShares(idle=1.0, processes=0.0, steal=0.0)
        return CpuShares(
            idle=(self.idle - before.idle) / total,
            processes=(self.processes - before.processes) / total,
            steal=(self.steal - before.steal) / total,
        )


def parse_cpu_times(text: str) -> CpuTimes:
    """The first line of /proc/stat. ValueError for anything else."""
    name, *fields = text.split("\n", 1)[0].split()
    if name != "cpu":
        raise ValueError(f"/proc/stat: got {name!r} first, expected 'cpu'")
    ticks = [int(field) for field in fields[:8]]  # what follows (guests) is part of the first two
    return CpuTimes(
        total=sum(ticks),
        idle=ticks[_IDLE] + ticks[_IOWAIT],
        processes=sum(ticks[:_IDLE]),  # user, nice, system
        steal=ticks[_STEAL],
    )


def read_cpu_times() -> CpuTimes:
    """This machine's CPU times so far, from /proc/stat."""
    return parse_cpu_times(Path("/proc/stat").read_text())
