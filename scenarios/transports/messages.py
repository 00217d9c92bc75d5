"""What ranks send each other in the scenarios of this folder: plans that they name as messages.py:FUNCTION."""

from testbed.workload.plan import JobPlan
from testbed.workload.plans import PlanBuilder, PlanProblem, WorkloadRequest


def incast(request: WorkloadRequest, size: str = "3 MB") -> JobPlan:
    """All ranks of the first building send one rank of the last one so much, at once."""
    builder = PlanBuilder(request)
    *_, receiver = range(request.ranks)
    for sender in range(request.ranks - 1):
        builder.message(sender, receiver, size, name=f"from {sender}", stream=f"from {sender}")
    return builder.plan()


def pairs(request: WorkloadRequest, size: str = "64 MB", flows: int | None = None) -> JobPlan:
    """Each rank of the first half, or the first so many of them, sends its own of the second half so much."""
    builder = PlanBuilder(request)
    half = request.ranks // 2
    if flows is not None and not 1 <= flows <= half:
        raise PlanProblem(where="flows", got=f"{flows}", expected=f"1 to {half}, of {request.ranks} ranks")
    for sender in range(half if flows is None else flows):
        builder.message(sender, sender + half, size, name=f"from {sender}")
    return builder.plan()
