"""A small LRU cache keyed by object identity, and the user's cache folder on disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class IdentityCache(Generic[T]):
    """An LRU cache keyed by the identity of immutable objects, which avoids hashing and comparing them.

    `capacity`: the number of values it holds.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # holds the objects, so that their ids are not reused
        self._values: OrderedDict[Hashable, tuple[tuple[object, ...], T]] = OrderedDict()

    def of(self, objects: tuple[object, ...], create: Callable[[], T], by: Hashable = None) -> T:
        """Return the cached value for these objects, or a new one from `create`. `by`: a further key, by equality."""
        key = tuple(map(id, objects)), by
        if (known := self._values.get(key)) is not None:
            self._values.move_to_end(key)
            return known[1]
        value = create()
        self._values[key] = objects, value
        while len(self._values) > self._capacity:
            self._values.popitem(last=False)
        return value


def user_cache(name: str) -> Path:
    """Return the user's cache folder of this name; $XDG_CACHE_HOME moves it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "scale-across-testbed" / name
