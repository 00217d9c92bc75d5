"""Execution traces: what each rank of somebody's job did in a step, in real figures, whoever recorded it."""

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
