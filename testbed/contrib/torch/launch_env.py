"""The job description passed to a program's process: endpoints, algorithms, and figures of accelerators.

It is a JSON file named in an environment variable. Reading it needs neither PyTorch nor the scenario reader.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.comm.collectives import AUTO, TuningTable
from testbed.documents import from_json, to_json
from testbed.errors import TestbedError
from testbed.workload.job.endpoints import JobEndpoints

VARIABLE = "TESTBED_TORCH_JOB"
DEFAULT_VARIABLE = "TESTBED_TORCH_DEFAULT"  # if set, this is the default backend


def ring_name(rank: int) -> str:
    """Return the file name of a rank's flight recorder."""
    return f"ring-{rank}"


class BackendError(TestbedError):
    """A process group that cannot be made, or an unsupported operation."""


@dataclass(frozen=True)
class ProgramJob:
    """The job of a launched program.

    algorithms: the algorithm of each collective for which it is not `auto`.
    accelerators: the entries of `catalogue.accelerators`.
    rings: the folder with the flight-recorder memory of every rank; "": no recording.
    """

    wiring: JobEndpoints
    algorithms: Mapping[str, str] = field(default_factory=dict)
    tuning: TuningTable = field(default_factory=TuningTable)
    accelerators: Mapping[str, Any] = field(default_factory=dict)
    rings: str = ""

    def algorithm(self, collective: str) -> str:
        """Return the algorithm of a collective."""
        return self.algorithms.get(collective, AUTO)

    def write(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(to_json(self))

    @classmethod
    def read(cls, path: Path) -> ProgramJob:
        """Read a job from a file made by `write`."""
        return from_json(cls, path.read_text())

    @classmethod
    def here(cls) -> ProgramJob:
        """Return the job of this process. Raises BackendError if it was not launched."""
        file = os.environ.get(VARIABLE)
        if file is None:
            raise BackendError(
                where="torch backend testbed",
                got=f"no {VARIABLE} in the environment",
                expected="a program that was started by: testbed launch -t TOPOLOGY -- python SCRIPT",
            )
        return cls.read(Path(file))
