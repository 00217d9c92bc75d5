"""Python's garbage collector, while it would look in vain."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MANY = 500_000  # objects that live and have not been looked at, until it looks; usual are 700


@contextmanager
def gc_disabled() -> Iterator[None]:
    """What is made lives as long as what goes on, some ten thousand objects: looking for cycles takes a third of it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """What is made, and let go, time and again: it would be looked through anew each time, a tenth of all time."""
    usual = gc.get_threshold()
    set_infrequent_gc()
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def set_infrequent_gc() -> None:
    """The same, of a process that does nothing else."""
    gc.set_threshold(MANY, *gc.get_threshold()[1:])


def clear_references(some: Iterable[object]) -> None:
    """Nobody asks for these any more: what leads back to them, and a plan with it, goes without a collector."""
    for one in some:
        vars(one).clear()
