"""A workload's Chakra execution traces, with what their computing takes on its accelerator."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from testbed.spec.catalogue import accelerators
from testbed.spec.workload import WorkloadSpec
from testbed.workload.traces import JobTrace


def chakra_trace(spec: WorkloadSpec) -> JobTrace:
    """Of a workload that has `chakra`, in real figures. TraceError."""
    assert spec.chakra is not None
    rates = _rates(spec) if spec.accelerator or spec.peak_flops else None
    return _read_version(Path(spec.chakra), rates, chakra_changed_ns(Path(spec.chakra)))


def _rates(spec: WorkloadSpec) -> tuple[float, float | None]:
    """Operations and bytes of memory per second; None where nobody says what memory does."""
    entry = accelerators()[spec.accelerator] if spec.accelerator else {}
    rate = entry.get("memory_bandwidth")
    return spec.flops, None if rate is None else float(rate)


def chakra_changed_ns(folder: Path) -> tuple[int, ...]:
    """When what is read last changed, of each file."""
    where = folder if folder.is_dir() else folder.parent
    patterns = ("*.et", "*.et.gz", "*.json", "*.yml")
    files = [path for pattern in patterns for path in where.glob(pattern)] if where.is_dir() else []
    return tuple(path.stat().st_mtime_ns for path in sorted(files))


@lru_cache(maxsize=4)
def _read_version(
    folder: Path, rates: tuple[float, float | None] | None, changed_ns: tuple[int, ...]
) -> JobTrace:
    """Once, until it changes: every variant asks."""
    from testbed.workload.traces.chakra import read_job  # noqa: PLC0415 (protobuf, which no other workload waits for)

    if rates is None:
        return read_job(folder)
    flops_rate, memory_rate = rates

    def reckon(flops: float, touched_bytes: float) -> float | None:
        """As a roofline has it: by what takes longer."""
        if memory_rate is None:
            return flops / flops_rate if flops else None
        return max(flops / flops_rate, touched_bytes / memory_rate)

    return read_job(folder, reckon)
