"""Control of Python's garbage collector, for phases in which it would find nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

INFREQUENT_THRESHOLD = 500_000  # new objects before a collection; the default is 700


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the collector while all new objects stay alive; scanning about 10,000 takes a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Collect rarely while objects are created and freed repeatedly, since scanning them takes 10 % of the time."""
    usual = gc.get_threshold()
    set_infrequent_gc()
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def set_infrequent_gc() -> None:
    """Collect rarely from now on, in a process with no other work."""
    gc.set_threshold(INFREQUENT_THRESHOLD, *gc.get_threshold()[1:])


def clear_references(some: Iterable[object]) -> None:
    """Break reference cycles through objects that are no longer needed, to free them without the collector."""
    for one in some:
        vars(one).clear()
