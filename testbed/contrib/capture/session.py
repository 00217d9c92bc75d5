"""A capture session: runs the recorder in the script's own Python, rank by rank, and assembles the job's trace."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.contrib.capture.rank_classes import (
    RankClass,
    Record,
    class_of,
    find_difference,
    next_leaders,
    peer_of,
    translate_nodes,
)
from testbed.contrib.capture.trace_assembly import assemble, estimate_computing, peaks_of
from testbed.errors import BadInput, TestbedError
from testbed.spec.catalogue import accelerators
from testbed.workload.traces.consistency import first_mismatch
from testbed.workload.traces.trace import JobTrace

_BOOT = """
import importlib.util, runpy, sys
spec = importlib.util.spec_from_file_location(
    "testbed", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv[1]]
)
sys.modules["testbed"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
del sys.argv[1]
runpy.run_module("testbed.contrib.capture.recorder", run_name="__main__")
"""
"""Code that makes only the package `testbed` importable, because the script's Python has its own packages."""


class CaptureError(TestbedError):
    """A script that could not be recorded; the message names rank, place and reason."""


class RanksDoNotMatch(BadInput):
    """Ranks of the script that would deadlock, or exchange messages that do not match."""


@dataclass(frozen=True)
class Request:
    """A request for a capture. python: an interpreter that has PyTorch. at_once: ranks that run concurrently."""

    script: str
    arguments: tuple[str, ...] = ()
    world_size: int = 8
    local_world_size: int = 8
    steps: int = 2
    accelerator: str = "h100"
    compute: str = "utilisation"
    python: str = "python3"
    every_rank: bool = False
    at_once: int = 2


@dataclass
class CaptureResult:
    """The result of a capture.

    trace: the trace of the job.
    classes: classes of ranks that execute the same work.
    ran: ranks that were actually run.
    notes: remarks for the user.
    """

    trace: JobTrace
    classes: list[RankClass]
    ran: list[int]
    seconds: float
    peak_bytes: int
    notes: list[str] = field(default_factory=list)


def capture(request: Request) -> CaptureResult:
    """Record a script. Raises CaptureError, RanksDoNotMatch or BadInput."""
    begun_s = time.monotonic()
    accelerator = accelerators()[request.accelerator]
    model = estimate_computing(request.compute, accelerator)
    if not Path(request.script).is_file():
        raise BadInput(where="capture", got=request.script, expected="a Python file")
    with (
        tempfile.TemporaryDirectory(prefix="testbed-capture-") as folder,
        _recorder(request, Path(folder)) as recorder,
    ):
        ranks, classes, notes = _Capture(request, recorder).run()
    origin = f"{request.script} {' '.join(request.arguments)}".strip()
    records = recorder.records
    trace = assemble(ranks, model.seconds, origin, request.accelerator)
    if (problem := first_mismatch(trace, senders_wait=True)) is not None:
        raise RanksDoNotMatch(f"{request.script}: {problem}")
    return CaptureResult(
        trace,
        classes,
        sorted(records),
        time.monotonic() - begun_s,
        recorder.peak_bytes,
        [*model.notes, *notes, *_scalar_notes(records[min(records)])],
    )


def _scalar_notes(record: Record) -> list[str]:
    sites = sorted(record["scalars"])
    if not sites:
        return []
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return [
        f"numbers read from tensors at {', '.join(sites[:3])}{more}: tensors have no values, 1 was returned"
    ]


_Found = tuple[list[tuple[list[dict[str, Any]], Record]], list[RankClass], list[str]]


class _Capture:
    """Decides which ranks to run, and derives the others."""

    def __init__(self, request: Request, recorder: _Recorder) -> None:
        self.request, self.recorder = request, recorder
        self.classes: list[RankClass] = []
        self.notes: list[str] = []

    def run(self) -> _Found:
        """Return every rank's nodes with the record that they come from, the classes, and notes."""
        if self.request.every_rank:
            return self._all()
        last = self.request.world_size - 1
        if last:
            self.recorder.begin(last)
        self._run_leaders()
        # verify one more rank of the first and the last class
        wanted = {self.classes[0].members[-1], self.classes[-1].members[-1], last}
        wanted -= {one.leader for one in self.classes}
        for rank in sorted(wanted):
            self._copy_objects(rank)
        self.recorder.get(sorted(wanted))
        ranks: dict[int, tuple[list[dict[str, Any]], Record]] = {}
        for own in self.classes:
            record = self.recorder.records[own.leader]
            for rank in own.members:
                nodes = translate_nodes(record, own, rank)
                problem, ran = None, self.recorder.records.get(rank)
                if nodes is None:
                    problem = "its groups are ambiguous"
                elif ran is not None:  # compare with the prediction from its class
                    problem = find_difference(nodes, ran["nodes"])
                if nodes is None or problem is not None:
                    self.notes.append(
                        f"rank {rank} differs from rank {own.leader}: {problem}; so every rank was run"
                    )
                    return self._all()
                ranks[rank] = nodes, record
        return [found for _, found in sorted(ranks.items())], self.classes, self.notes

    def _run_leaders(self) -> None:
        """Run leaders until every rank is in a class."""
        while wanted := next_leaders(self.classes, self.request.world_size):
            records = self.recorder.get(wanted)
            for rank in wanted:
                known = {one for found in self.classes for one in found.members}
                if rank not in known:
                    found = class_of(records[rank], rank)
                    members = tuple(one for one in found.members if one not in known)
                    self.classes.append(RankClass(rank, members, found.pipelines))

    def _copy_objects(self, rank: int) -> None:
        """Give a rank the objects that its class's leader received from its peers."""
        own = next(one for one in self.classes if rank in one.members)
        for path in self.recorder.folder.glob(f"[0-9]*-{own.leader}-[0-9]*"):
            source, _, number = path.name.split("-")
            peer = peer_of(own, int(source), rank)
            if peer is not None:
                part = path.with_name(f"{peer}-{rank}-{number}.part")
                shutil.copy(path, part)
                part.rename(part.with_suffix(""))

    def _all(self) -> _Found:
        size = self.request.world_size
        records = self.recorder.get(list(range(size)))
        classes = [RankClass(rank, (rank,)) for rank in range(size)]
        return [(records[rank]["nodes"], records[rank]) for rank in range(size)], classes, self.notes


class _Recorder:
    """The process that runs ranks."""

    def __init__(self, request: Request, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.request, self.folder, self.process = request, folder, process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout
        self.records: dict[int, Record] = {}
        self.peak_bytes = 0
        self.ended: set[int] = set()

    def get(self, ranks: Sequence[int]) -> dict[int, Record]:
        """Return the records of these ranks, running those that have not been run. Raises CaptureError."""
        missing = [rank for rank in ranks if rank not in self.records]
        self._write("".join(f"run {rank}\n" for rank in missing))
        while not set(missing) <= self.ended:
            line = self.stdout.readline().decode()
            if not line:
                raise CaptureError(f"the recorder ended: {self._errors()}")
            if line.startswith("over "):
                self.ended.add(int(line.split()[1]))
        for rank in sorted(self.ended - set(self.records)):
            self.records[rank] = self._read(rank)
        return self.records

    def begin(self, rank: int) -> None:
        """Start a rank that is needed later, when the objects that it waits for are supplied."""
        self._write(f"try {rank}\n")

    def _write(self, text: str) -> None:
        try:
            self.stdin.write(text.encode())
            self.stdin.flush()
        except BrokenPipeError:
            raise CaptureError(f"the recorder ended: {self._errors()}") from None

    def _errors(self) -> str:
        self.process.wait()
        text = (self.folder / "errors").read_text(errors="replace").strip()
        if "No module named 'torch'" in text:
            return f"{self.request.python} has no PyTorch; name an interpreter that has it with --python"
        return text[-2000:] or f"exit status {self.process.returncode}"

    def _read(self, rank: int) -> Record:
        path = self.folder / f"rank-{rank}.json"
        output = (self.folder / f"output-{rank}").read_text(errors="replace")
        if not path.exists():
            raise CaptureError(f"rank {rank} of {self.request.script} died: {output[-2000:].strip()}")
        record: dict[str, Any] = json.loads(path.read_text())
        self.peak_bytes = max(self.peak_bytes, record["peak_bytes"])
        if "error" in record:
            raise CaptureError(f"rank {rank} of {self.request.script} failed:\n{record['error'].rstrip()}")
        if record["steps"] < self.request.steps:
            steps = self.request.steps
            raise CaptureError(
                f"rank {rank} of {self.request.script}: got {record['steps']} steps, expected {steps}: a step ends "
                f"with an optimizer's step() after a backward pass; --steps says which one is recorded"
            )
        return record


@contextlib.contextmanager
def _recorder(request: Request, folder: Path) -> Iterator[_Recorder]:
    accelerator = accelerators()[request.accelerator]
    document = {
        "script": request.script,
        "arguments": request.arguments,
        "world_size": request.world_size,
        "local_world_size": request.local_world_size,
        "steps": request.steps,
        "accelerator": accelerator["name"],
        "memory_bytes": int(accelerator["memory"]),
        "peaks": peaks_of(accelerator),
        "bytes_per_s": accelerator["memory_bandwidth"],
        "at_once": request.at_once,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [request.python, "-c", _BOOT, str(Path(__file__).parents[2]), str(folder)]
    with (folder / "errors").open("wb") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        except OSError as error:
            raise BadInput(
                where="--python", got=request.python, expected=f"a Python: {error.strerror}"
            ) from None
        recorder = _Recorder(request, folder, process)
        try:
            recorder._write(json.dumps(document) + "\n")
            yield recorder
            recorder._write("end\n")
            process.wait()
        finally:
            with contextlib.suppress(BrokenPipeError):
                recorder.stdin.close()
            recorder.stdout.close()
            process.terminate()
            process.wait()
