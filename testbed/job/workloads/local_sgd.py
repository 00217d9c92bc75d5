"""Local SGD: buildings train on their own and put their weights together now and then, as DiLoCo does."""

from __future__ import annotations

from testbed.job.workloads.base import WORKLOADS
from testbed.workload.plan import JobPlan
from testbed.workload.plans import Mark, PlanBuilder, WorkloadRequest


@WORKLOADS.register("local_sgd")
def local_sgd(
    request: WorkloadRequest,
    parameters: float | str = "1 GB",
    compute: float | str = "100 ms",
    inner_steps: int = 4,
    inner_algorithm: str = "ring",
) -> JobPlan:
    """DiLoCo (arXiv:2311.08105): gradients are reduced inside buildings, and once in `inner_steps` between all ranks.

    Args:
        request: What the plan is for.
        parameters: Bytes of gradients, and of the weights' difference.
        compute: Of an inner step.
        inner_steps: Between two exchanges of all; a step of the plan has so many, and one exchange.
        inner_algorithm: Of all-reduces inside buildings; that of all ranks goes by the variant's.
    """
    builder = PlanBuilder(request)
    inner = [builder.group("building", ranks) for ranks in request.by_building().values() if len(ranks) > 1]
    everybody = builder.group("all") if len(request.by_building()) > 1 else None
    last: list[Mark] = []
    for number in range(inner_steps):
        computed = [
            builder.compute(
                rank, compute, name=f"inner step {number}", after=[one for one in last if one.rank == rank]
            )
            for rank in range(request.ranks)
        ]
        last = computed
        reduced: dict[int, Mark] = {}
        for group in inner:
            members = builder.members(group)
            after = [one for one in computed if one.rank in members]
            reduced |= builder.collective(
                group,
                "all_reduce",
                parameters,
                name=f"gradients {number}",
                after=after,
                algorithm=inner_algorithm,
            )
        last = [reduced.get(one.rank, one) for one in computed]
    if everybody is not None:
        builder.collective(
            everybody, "all_reduce", parameters, name="outer gradients", after=last, kind="outer"
        )
    return builder.plan()
