"""What is written down of what a rank has done in a step: a record of each operation, and one of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from testbed.workload.plan import Computing, GroupCollective, Message, Operation, Pause

Sample = dict[str, Any]


def shared_streams(plan: Iterable[Operation]) -> frozenset[str]:
    """Those that several of a rank's operations are on."""
    counts = Counter(operation.stream for operation in plan)
    return frozenset(stream for stream, count in counts.items() if count > 1)


def operation_sample(
    head: Mapping[str, Any],
    operation: Operation,
    index: int,
    span: tuple[float, float],
    itemsize: int,
    shared: frozenset[str] = frozenset(),
    late_s: float | None = None,
) -> Sample:
    """Of one operation. head: variant, trial, step and rank; span: when it began and ended; shared: streams.

    late_s: how long after the begin of the span it was begun in truth, where that is known.
    """
    return {
        **head,
        "operation": _word(operation),
        "index": index,
        "name": operation.name,
        "start_s": span[0],
        "end_s": span[1],
        "bytes": getattr(operation, "numel", 0) * itemsize,
        **_marks(head["rank"], operation, shared),
        **({} if late_s is None else {"late_s": round(late_s, 6)}),
    }


def step_sample(
    head: Mapping[str, Any],
    name: str,
    span: tuple[float, float],
    sent_bytes: Mapping[int, int],
    elements: tuple[int, int],
    seen: Mapping[str, Any],
) -> Sample:
    """Of all of it. sent_bytes: by peer; elements: wrong ones, and those that were checked; seen: of the host."""
    return {
        **head,
        "operation": "step",
        "name": name,
        "start_s": span[0],
        "end_s": span[1],
        "bytes": sum(sent_bytes.values()),
        "sent_bytes": {str(peer): count for peer, count in sent_bytes.items() if count},
        "wrong": elements[0],
        "checked": elements[1],
        **seen,
    }


def _marks(rank: int, operation: Operation, shared: frozenset[str]) -> dict[str, str]:
    """Its stream, if not its alone, and what is the same at both ends of a message."""
    if isinstance(operation, Message):
        here, there = (rank, operation.peer) if operation.sends else (operation.peer, rank)
        return {"stream": operation.stream, "message": f"{here}>{there}/{operation.tag}"}
    return {"stream": operation.stream} if operation.stream in shared else {}


def _word(operation: Operation) -> str:
    """An operation's kind in records."""
    if isinstance(operation, Computing | Pause):
        return operation.kind
    if isinstance(operation, Message):
        return "send" if operation.sends else "recv"
    assert isinstance(operation, GroupCollective)
    return operation.collective
