"""Python objects that ranks give each other before they train, such as shapes between stages: really passed on.

Every rank runs by itself, so they go through files. Who waits for an object of a rank says so to who starts ranks.
"""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError

POLL_S = 0.01


class ObjectsMissing(TestbedError):
    """A rank ended without an object that another waits for."""


class Objects:
    """Of one rank. folder: all ranks'. report: a file descriptor that says who waits for whom."""

    def __init__(self, folder: Path, rank: int, report: int) -> None:
        self.folder, self.rank, self.report = folder, rank, report
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def send(self, target: int, found: Any) -> None:
        """Returns at once."""
        number = self._sent[target] = self._sent.get(target, -1) + 1
        path = self.folder / f"{self.rank}-{target}-{number}"
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(found))
        part.rename(path)

    def receive(self, source: int) -> Any:
        """Once the other rank has sent it. ObjectsMissing where that ends before."""
        number = self._received[source] = self._received.get(source, -1) + 1
        path, over = self.folder / f"{source}-{self.rank}-{number}", self.folder / f"over-{source}"
        said = False
        while not path.exists():
            if over.exists() and not path.exists():
                raise ObjectsMissing(
                    f"rank {self.rank} receives an object from rank {source}, which sends it {number}"
                )
            if not said:
                os.write(self.report, f"waits {self.rank} {source}\n".encode())
                said = True
            time.sleep(POLL_S)
        if said:
            os.write(self.report, f"goes {self.rank}\n".encode())
        return pickle.loads(path.read_bytes())
