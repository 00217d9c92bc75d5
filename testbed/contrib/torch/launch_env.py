"""What a program's process is told of its job: how ranks are joined, which algorithms they take, accelerators' figures.

A file, whose name stands in the environment; ready for JSON. Neither PyTorch nor what reads scenarios is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testbed.comm.collectives import AUTO, TuningTable
from testbed.errors import TestbedError
from testbed.workload.job.endpoints import JobEndpoints

VARIABLE = "TESTBED_TORCH_JOB"
DEFAULT_VARIABLE = "TESTBED_TORCH_DEFAULT"  # set: what asks for no backend gets this one


def ring_name(rank: int) -> str:
    """The file that a rank's flight recorder writes into."""
    return f"ring-{rank}"


class BackendError(TestbedError):
    """A process group that cannot be made, or an operation that it does not have."""


@dataclass(frozen=True)
class ProgramJob:
    """algorithms: by collective, for those that are not `auto`. accelerators: as `catalogue.accelerators` has them.

    rings: the folder with every rank's memory for its flight recorder; "": nobody records.
    """

    wiring: JobEndpoints
    algorithms: Mapping[str, str] = field(default_factory=dict)
    tuning: TuningTable = field(default_factory=TuningTable)
    accelerators: Mapping[str, Any] = field(default_factory=dict)
    rings: str = ""

    def algorithm(self, collective: str) -> str:
        """For a collective, by name."""
        return self.algorithms.get(collective, AUTO)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ProgramJob:
        """The inverse."""
        document = json.loads(path.read_text())
        document["wiring"] = JobEndpoints.from_document(document["wiring"])
        document["tuning"] = TuningTable.from_document(document["tuning"])
        return cls(**document)

    @classmethod
    def here(cls) -> ProgramJob:
        """Of this process. BackendError where nobody has told it."""
        file = os.environ.get(VARIABLE)
        if file is None:
            raise BackendError(
                where="torch backend testbed",
                got=f"no {VARIABLE} in the environment",
                expected="a program that was started by: testbed launch -t TOPOLOGY -- python SCRIPT",
            )
        return cls.read(Path(file))
