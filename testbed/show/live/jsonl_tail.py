"""Reads files of JSON lines while others write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Tail:
    """What has come to a file since it was last read, in whole lines; nothing while the file is not there.

    only: bytes that a line must have to be read at all.
    """

    def __init__(self, path: Path, only: bytes = b"") -> None:
        self.path = path
        self.only = only
        self._place = 0

    def new(self) -> list[Record]:
        """The records that came."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._place)
                content = file.read()
        except OSError:
            return []
        whole, _, _ = content.rpartition(b"\n")
        if not whole:
            return []
        self._place += len(whole) + 1
        return list(_records(whole, self.only))


def records(path: Path, only: bytes = b"") -> list[Record]:
    """All that a file holds; nothing where it is not there."""
    return Tail(path, only).new()


def _records(content: bytes, only: bytes) -> Iterator[Record]:
    for line in content.split(b"\n"):
        if line.endswith(b"}") and only in line:  # a rank may have been killed while it wrote
            yield json.loads(line)
