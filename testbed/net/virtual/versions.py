"""Versions of Linux, and what the virtual clock can do with which."""

from __future__ import annotations

import re
from collections.abc import Sequence

OLDEST = (6, 1)
"""Time travel is older, but nothing older was tried."""
SECCOMP_SINCE = (6, 16)
"""From here on a guest's programs can stop by a filter of their own (seccomp) instead of being traced: quicker."""
NEWEST_TRIED = (7, 3)


def numbers(name: str) -> tuple[int, ...]:
    """The version in a name such as linux-source-6.1.tar.xz or 6.1.176-rc1; empty for none."""
    found = re.search(r"\d+(?:\.\d+)+", name)
    return tuple(map(int, found.group().split("."))) if found else ()


def dotted(version: Sequence[int]) -> str:
    """As people write it."""
    return ".".join(map(str, version))
