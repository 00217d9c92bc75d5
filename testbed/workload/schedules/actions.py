"""Actions of pipeline schedules, under PyTorch's names (torch.distributed.pipelining.schedules).

A schedule is a list of actions per rank: the order in which the rank computes. `testbed.workload.pipeline_plan` derives
the messages. The time of each action depends on compute times, links and memory.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from testbed.errors import BadInput


class Kind(Enum):
    """The computation of an action; the value is used in the action's text."""

    FORWARD = "F"
    FULL_BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"

    # members are singletons; Enum hashes their names, which takes longer than the rest of an Action's hash
    __hash__ = object.__hash__

    @property
    def gives_gradient(self) -> bool:
        """Whether the previous stage can continue after this action."""
        return self in (Kind.FULL_BACKWARD, Kind.BACKWARD_INPUT)


FORWARD, FULL = Kind.FORWARD, Kind.FULL_BACKWARD
INPUT, WEIGHT = Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT


def seconds_of(kind: Kind, seconds: tuple[float, float, float]) -> float:
    """Return the time of a kind, given the times of forward, of the input gradients and of the weight gradients."""
    # not a mapping, since kinds are slow to hash, and this is called for every layer of every action
    forward_s, input_s, weight_s = seconds
    if kind is FORWARD:
        return forward_s
    if kind is INPUT:
        return input_s
    return weight_s if kind is WEIGHT else input_s + weight_s


# messages and parameter gathers, which PyTorch includes in schedules; here they follow from the other actions
IMPLIED = (
    "SEND_F",
    "RECV_F",
    "SEND_B",
    "RECV_B",
    "SEND_F_RECV_B",
    "SEND_B_RECV_F",
    "UNSHARD",
    "RESHARD",
    "REDUCE_GRAD",
)
_FORM = re.compile(
    rf"(\d+)({'|'.join(sorted(IMPLIED, key=len, reverse=True))}|BW|[FBIW])(\d*)(?:\.(\d+)/(\d+))?", re.ASCII
)
_OVERLAPPED = re.compile(r"\((.*)\)OVERLAP_F_B")


class ScheduleError(BadInput, ValueError):
    """The error for a schedule that cannot be executed; the message names rank and action."""


class Action(NamedTuple):
    """One stage's computation for one microbatch, or `part` of its `parts` equal parts."""

    stage: int
    kind: Kind
    microbatch: int
    part: int = 0
    parts: int = 1

    def __str__(self) -> str:
        return _text(self)


@lru_cache(8192)  # every layer of an action is named after the action
def _text(action: Action) -> str:
    text = f"{action.stage}{action.kind.value}{action.microbatch}"
    return text if action.parts == 1 else f"{text}.{action.part}/{action.parts}"


def next_stage(action: Action, stages: int) -> int | None:
    """Return the other stage that uses an action's result."""
    if action.kind is Kind.FORWARD:
        return action.stage + 1 if action.stage + 1 < stages else None
    if action.kind.gives_gradient:
        return action.stage - 1 if action.stage else None
    return None


Order = tuple[Action, ...]
"""The actions of one rank, in order."""


def parse_actions(text: str) -> tuple[Action, ...]:
    """Return the actions of one cell: the inverse of `str`, or both actions of "(0F2;3B1)OVERLAP_F_B", in order.

    A message or a parameter gather, such as 0SEND_F1, gives no action, since these follow from the other actions.
    ScheduleError is raised for invalid text.
    """
    text = text.strip()
    if (pair := _OVERLAPPED.fullmatch(text)) is not None:
        return tuple(action for part in pair[1].split(";") for action in parse_actions(part))
    found = _FORM.fullmatch(text)
    if found is None or (found[2] not in IMPLIED and not found[3]):
        expected = "a stage, one of F, B, I, W, and a microbatch, such as 0F3"
        raise ScheduleError(got=repr(text), expected=expected)
    if found[2] in IMPLIED:
        return ()
    part, parts = (int(found[4]), int(found[5])) if found[4] else (0, 1)
    if part >= parts:
        raise ScheduleError(got=repr(text), expected=f"a part from 0 to {parts - 1}")
    kind = FULL if found[2] == "BW" else Kind(found[2])
    return (Action(int(found[1]), kind, int(found[3]), part, parts),)


def read_csv(text: str) -> tuple[Order, ...]:
    """Read a schedule with a line per rank, in order of execution; empty cells are pauses.

    A byte-order mark and empty lines at the end are ignored, since spreadsheets write both. ScheduleError names the
    invalid line.
    """
    orders: list[Order] = []
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    try:
        for row in rows:
            cells = [parse_actions(cell) for cell in row if cell.strip()]
            orders.append(tuple(action for cell in cells for action in cell))
    except csv.Error as error:
        raise ScheduleError(where=f"line {rows.line_num}", got=str(error), expected="a line of CSV") from None
    except ScheduleError as error:
        raise ScheduleError(where=f"line {rows.line_num}", got=error.got, expected=error.expected) from None
    while orders and not orders[-1]:
        orders.pop()
    return _with_input_gradients(orders, "BW" in text)


def _with_input_gradients(orders: Sequence[Order], has_bw: bool) -> tuple[Order, ...]:
    """Rename B to I in a schedule of PyTorch 2.5, which wrote B for I and BW for both gradients.

    Such a schedule has no I, and it has a W for each B.
    """
    keys: dict[Kind, set[tuple[int, int]]] = defaultdict(set)
    for action in (action for order in orders for action in order):
        keys[action.kind].add((action.stage, action.microbatch))
    split = keys[WEIGHT]
    if keys[INPUT] or not split or not (has_bw or keys[FULL] <= split):
        return tuple(orders)

    def renamed(action: Action) -> Action:
        is_input = action.kind is FULL and (action.stage, action.microbatch) in split
        return action._replace(kind=INPUT) if is_input else action

    return tuple(tuple(map(renamed, order)) for order in orders)


def implied_actions(text: str) -> Counter[str]:
    """Count the kinds of actions in a schedule's text that `read_csv` skips, such as SEND_F."""
    cells = re.split(r"[,;()\s\ufeff\"]+", text)
    found = [_FORM.fullmatch(cell) for cell in cells]
    return Counter(one[2] for one in found if one is not None and one[2] in IMPLIED)


def write_csv(orders: Iterable[Sequence[Action]]) -> str:
    """Return a schedule as text that `read_csv` reads."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([map(str, order) for order in orders])
    return out.getvalue()


_NEEDS = {FULL: FORWARD, INPUT: FORWARD, WEIGHT: INPUT}
_KINDS = tuple(Kind)
_WHOLE = [FORWARD, FULL], [FORWARD, INPUT, WEIGHT]


def check_orders(orders: Sequence[Order], microbatches: int) -> tuple[int, ...]:
    """Check a schedule and return the rank of every stage.

    Raises:
        ScheduleError: If a stage belongs to several ranks, or does not run every microbatch exactly once, completely,
            and forward before backward.
    """
    owner: dict[int, int] = {}
    done: dict[tuple[int, Kind, int], list[Action]] = {}  # in parts
    for rank, order in enumerate(orders):
        for action in order:
            stage, kind, microbatch = action.stage, action.kind, action.microbatch
            if owner.setdefault(stage, rank) != rank:
                raise ScheduleError(
                    where=f"rank {rank}",
                    got=str(action),
                    expected=f"it on rank {owner[stage]}, which has stage {stage}",
                )
            parts = done.setdefault((stage, kind, microbatch), [])
            if action in parts:
                raise ScheduleError(where=f"rank {rank}", got=f"{action} twice", expected="each action once")
            needed = _NEEDS.get(kind)
            if needed is not None and (stage, needed, microbatch) not in done:
                expected = f"{Action(stage, needed, microbatch)} before it"
                raise ScheduleError(where=f"rank {rank}", got=str(action), expected=expected)
            parts.append(action)
    stages = len(owner)
    if not stages or sorted(owner) != list(range(stages)):
        raise ScheduleError(got=f"stages {sorted(owner)}", expected="0, 1, 2 and so on without a gap")
    for stage, rank in sorted(owner.items()):
        for microbatch in range(microbatches):
            parts_of = {kind: done.get((stage, kind, microbatch), ()) for kind in _KINDS}
            _check_whole(rank, stage, microbatch, parts_of)
    extra = sorted(
        str(action) for (_, _, number), parts in done.items() if number >= microbatches for action in parts
    )
    if extra:
        raise ScheduleError(got=extra[0], expected=f"microbatches 0 to {microbatches - 1}")
    return tuple(owner[stage] for stage in range(stages))


def _check_whole(rank: int, stage: int, microbatch: int, parts: Mapping[Kind, Sequence[Action]]) -> None:
    """Check that forward and backward run once, backward whole or as input and weight gradients with all parts."""
    some = [kind for kind, own in parts.items() if own]
    whole = all(abs(sum(1 / one.parts for one in parts[kind]) - 1) < 1e-9 for kind in some)
    if not whole or some not in _WHOLE:
        raise ScheduleError(
            where=f"rank {rank}, stage {stage}, microbatch {microbatch}",
            got=", ".join(kind.value for kind in some) or "nothing",
            expected="F and B, or F, I and W, whole",
        )
