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

    `most`: its capacity.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # holds the objects, so that their ids are not reused
        self._known: OrderedDict[Hashable, tuple[tuple[object, ...], T]] = OrderedDict()

    def of(self, things: tuple[object, ...], made: Callable[[], T], by: Hashable = None) -> T:
        """Return the cached value for these objects, or a new one from `made`. `by`: a further key, by equality."""
        key = tuple(map(id, things)), by
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known[1]
        found = made()
        self._known[key] = things, found
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found


def user_cache(what: str) -> Path:
    """Return the user's cache folder for something; $XDG_CACHE_HOME moves it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "scale-across-testbed" / what
