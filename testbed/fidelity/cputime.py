"""How the cores spend their time, from /proc/stat."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_IDLE, _IOWAIT, _STEAL = 3, 4, 7


@dataclass(frozen=True)
class CpuTimes:
    """Ticks of all cores together since boot: in all, idle, taken away by the hypervisor."""

    total: int
    idle: int
    steal: int

    def shares_since(self, before: CpuTimes) -> tuple[float, float]:
        """(idle share, steal share) since an earlier reading; (1, 0) when no tick has passed."""
        total = self.total - before.total
        if total <= 0:
            return 1.0, 0.0
        return (self.idle - before.idle) / total, (self.steal - before.steal) / total


def parse_cpu_times(text: str) -> CpuTimes:
    """The first line of /proc/stat. ValueError for anything else."""
    name, *fields = text.split("\n", 1)[0].split()
    if name != "cpu":
        raise ValueError(f"/proc/stat: got {name!r} first, expected 'cpu'")
    ticks = [int(field) for field in fields[:8]]  # what follows (guests) is part of the first two
    return CpuTimes(total=sum(ticks), idle=ticks[_IDLE] + ticks[_IOWAIT], steal=ticks[_STEAL])


def read_cpu_times() -> CpuTimes:
    """Now."""
    return parse_cpu_times(Path("/proc/stat").read_text())
