"""Configurations tried on the model, each once, by this process or by several; what is known is not tried again."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context

from testbed.config import Scenario
from testbed.explorer.errors import TryingStopped
from testbed.explorer.evaluation import Configuration, Evaluation, Infeasible, evaluate
from testbed.links.process import end_with_parent

FEW = 24  # that are tried before other processes have started
AT_ONCE = 4  # that a process is handed together

Tried = Evaluation | Infeasible


@dataclass(frozen=True)
class Standing:
    """How far a search is. planned: how many it means to try, about; best: the quickest so far that fits."""

    done: int
    planned: int
    best: tuple[Configuration, Evaluation] | None


@dataclass
class Tries:
    """Tries configurations of a scenario. known: what they came to, by key; found: told of each that is new.

    jobs: processes; several are started afresh, as `multiprocessing` does by "spawn".
    """

    scenario: Scenario
    known: dict[str, Tried]
    found: Callable[[Configuration, Tried], None]
    progress: Callable[[Standing], None]
    planned: int
    jobs: int = 1
    _seen: set[str] = field(default_factory=set)
    _best: tuple[Configuration, Evaluation] | None = None
    _pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Tries:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if self._pool is not None:
            # without waiting for what nobody wants any more
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def all(self, configurations: Sequence[Configuration], *, among: bool = True) -> list[Tried]:
        """What each comes to, in their order. among: whether one of them may be the best so far."""
        fresh = list({one.key: one for one in configurations if one.key not in self.known}.values())
        results = self._evaluated(fresh)
        found = []
        for one in configurations:
            key = one.key
            if key not in self.known:  # these come in the order of `fresh`
                self.known[key] = next(results)
                self.found(one, self.known[key])
            found.append(self.known[key])
            self._tell(one, self.known[key], among=among)
        return found

    def _tell(self, one: Configuration, tried: Tried, *, among: bool) -> None:
        self._seen.add(one.key)
        quickest_s = self._best[1].step_time_s if self._best else math.inf
        if among and isinstance(tried, Evaluation) and tried.step_time_s < quickest_s:
            self._best = one, tried
        self.progress(Standing(len(self._seen), max(self.planned, len(self._seen)), self._best))

    def _evaluated(self, fresh: Sequence[Configuration]) -> Iterator[Tried]:
        if self.jobs > 1 and len(fresh) > FEW and self._pool is None:
            self._pool = ProcessPoolExecutor(self.jobs, get_context("spawn"), _begin, (self.scenario,))
        if self._pool is None or len(fresh) <= AT_ONCE:
            return (evaluate(self.scenario, one) for one in fresh)
        return _whole(self._pool.map(_one, fresh, chunksize=AT_ONCE))


def _whole(results: Iterator[Tried]) -> Iterator[Tried]:
    try:
        yield from results
    except BrokenProcessPool:
        message = "a process that tried configurations was killed, by somebody or for want of memory"
        hint = "the same command with -o FOLDER goes on; --jobs 1 takes the least memory"
        raise TryingStopped(message, hint=hint) from None


_SCENARIO: list[Scenario] = []  # of a process that tries


def _begin(scenario: Scenario) -> None:
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search is told, and ends its processes
    _SCENARIO[:] = [scenario]


def _one(configuration: Configuration) -> Tried:
    return evaluate(_SCENARIO[0], configuration)
