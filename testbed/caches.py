"""Small LRU caches by size and by object identity, and the user's cache folder on disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class SizedCache(Generic[T]):
    """An LRU cache whose values have a total size of at most `capacity`; the newest value always stays."""

    def __init__(self, capacity: float, size: Callable[[T], float]) -> None:
        self._capacity, self._size, self._total = capacity, size, 0.0
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def of(self, key: Hashable, create: Callable[[], T]) -> T:
        """Return the cached value for this key, or a new one from `create`."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = create()
        self._total += self._size(value)
        while self._total > self._capacity and len(self._values) > 1:
            self._total -= self._size(self._values.popitem(last=False)[1])
        return value


class IdentityCache(Generic[T]):
    """An LRU cache keyed by the identity of immutable objects, which avoids hashing and comparing them.

    `capacity` is the maximum number of values.
    """

    def __init__(self, capacity: int) -> None:
        # keeps the objects, so that their ids are not reused
        self._values: SizedCache[tuple[tuple[object, ...], T]] = SizedCache(capacity, lambda _: 1)

    def of(self, objects: tuple[object, ...], create: Callable[[], T], by: Hashable = None) -> T:
        """Return the cached value for these objects, or a new one from `create`; `by` is another key, by equality."""
        return self._values.of((tuple(map(id, objects)), by), lambda: (objects, create()))[1]


def user_cache(name: str) -> Path:
    """Return the user's cache folder with this name; it is in $XDG_CACHE_HOME if that is set."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "scale-across-testbed" / name
