"""An append-only JSON-lines log that survives a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class JsonlLog:
    """A log file, created if necessary; an unfinished last line, left by a killed process, is dropped.

    `known` has the entries that existed when the log was opened.
    """

    def __init__(self, file: Path) -> None:
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        file.write_text("".join(whole))
        self.known: list[dict[str, Any]] = [json.loads(line) for line in whole]
        self._file = file.open("a")

    def add(self, entry: dict[str, Any]) -> None:
        """Append an entry and flush it to the file."""
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> JsonlLog:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()
