"""Execution traces: what each rank of a job did in a step, in real figures, whatever tool recorded it."""

from testbed.workload.traces.trace import (
    Collective,
    Compute,
    JobTrace,
    Node,
    PointToPoint,
    RankTrace,
    TraceError,
    element_bytes,
)

__all__ = [
    "Collective",
    "Compute",
    "JobTrace",
    "Node",
    "PointToPoint",
    "RankTrace",
    "TraceError",
    "element_bytes",
]
