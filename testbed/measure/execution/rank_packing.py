"""How many ranks of a job one process carries, each in a thread of its own: see `testbed.measure.ranks.process`."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.spec.errors import ConfigError, Problem
from testbed.spec.events import KILL_EVENTS, EventSpec
from testbed.spec.scenario import Scenario

OPTION = "--ranks-per-process"
ALL = "all"
# From so many ranks on one process was the quicker (benchmarks/virtual_start.py): 2 ranks took as long either way,
# 4 a twentieth less, 8 a fifth less, 64 and 128 half as long.
LEAST_TOGETHER = 4
# More gain next to nothing: 64 ranks started in 10.5, 9.8 and 8.9 s by 8, 16 and 64 to a process.
MOST_TOGETHER = 64
# Of what a step reduces or sends, for the ranks of one process together: in pages, as many as the host's kernel allows
# a process pieces of memory (65,530). Seen: a ring of 64 ranks with 32 MB each came to 18,551 pieces, two levels of 64
# with 29 MiB each, and of 32 of them, to too many.
MOST_BYTES = 256 << 20
STOPS_A_PROCESS = ("host_pause", *KILL_EVENTS)


def ranks_per_process(
    asked: int | None, ranks: int, rank_bytes: float, *, exact: bool, apart: bool = False
) -> int:
    """What was asked for, else what was measured to be quickest: 1 to `ranks`.

    rank_bytes: emulated bytes of a rank's arrays. exact: under the virtual clock; by this machine's, ranks of one
    process would wait for each other's Python. apart: each rank needs a process of its own.
    """
    if asked is not None:
        return min(asked, ranks)
    if not exact or apart or ranks < LEAST_TOGETHER:
        return 1
    return max(1, min(ranks, MOST_TOGETHER, int(MOST_BYTES / max(1.0, rank_bytes))))


def ranks_asked(text: str | None, ranks: int, scenario: Scenario | None = None) -> int | None:
    """From a command line's word: a number of ranks, or all of them; None where nothing was asked.

    ConfigError for other words, and for several ranks to a process where an event stops one of them.
    """
    if text is None:
        return None
    if text != ALL and not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise ConfigError([Problem("command line", None, OPTION, text, f"a number from 1 on, or {ALL}")])
    count = ranks if text == ALL else min(int(text), ranks)
    if scenario is not None and count > 1 and (found := stopping(scenario.happenings)):
        expected = f"1, since {' and '.join(found)} stop the process of one rank"
        raise ConfigError([Problem("command line", None, OPTION, text, expected)])
    return count


def stopping(events: Iterable[EventSpec]) -> list[str]:
    """What among these events stops or ends the process of one rank."""
    return sorted({event.action for event in events} & set(STOPS_A_PROCESS))
