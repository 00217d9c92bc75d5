"""A small LRU cache keyed by object identity, and the user's cache folder on disk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class IdentityCache(Generic[T]):
    """By the things themselves, which must not change, in no time: not by what they are equal to. most: so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        # with the things, so that their numbers stay theirs
        self._known: OrderedDict[Hashable, tuple[tuple[object, ...], T]] = OrderedDict()

    def of(self, things: tuple[object, ...], made: Callable[[], T], by: Hashable = None) -> T:
        """What was made of these, or is now. by: what else it goes by, by what that is equal to."""
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
    """The user's folder for it; $XDG_CACHE_HOME moves it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "scale-across-testbed" / what
