"""Waiting for files, whatever their numbers: `select` takes none from 1024 on, and a run of 64 hosts has more open."""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Protocol, TypeVar


class _Numbered(Protocol):
    def fileno(self) -> int:
        """Its file descriptor."""
        ...


File = TypeVar("File", bound="int | _Numbered")


def ready(files: Sequence[File], timeout_s: float | None) -> list[File]:
    """Those that can be read from, or have ended, waiting up to `timeout_s` (rounded up to milliseconds) for one."""
    poll = select.poll()
    numbered = {file if isinstance(file, int) else file.fileno(): file for file in files}
    for number in numbered:
        poll.register(number, select.POLLIN)
    found = poll.poll(None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000))
    return [numbered[number] for number, _ in found]
