"""Runs ranks of a script, each in a fork of a process with PyTorch loaded, on commands from standard input.

The first line is a request (JSON). Commands are `run RANK`, `try RANK` (which does not start the ranks that it waits
for) and `end`. Prints `over RANK` when a rank has ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from testbed.contrib.capture.recorder.rank import run_rank


class Runner:
    """Runs at most `most` ranks at a time.

    A rank that waits for another rank's objects does not count, and the other rank runs first.
    """

    def __init__(self, request: dict[str, object], folder: Path, most: int) -> None:
        self.request, self.folder, self.most = request, folder, most
        self.queue: list[int] = []
        self.started: set[int] = set()
        self.running: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.tried: set[int] = set()
        self.reports, self.report = os.pipe()

    def run(self) -> None:
        """Run until the command `end`."""
        selector = selectors.DefaultSelector()
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(self.reports, selectors.EVENT_READ)
        rest = {sys.stdin.fileno(): b"", self.reports: b""}
        ending = False
        while not ending or self.running or self.queue:
            for key, _ in selector.select(timeout=0.05):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fd)
                    ending = True
                *lines, rest[key.fd] = (rest[key.fd] + data).split(b"\n")
                for line in lines:
                    ending |= self._handle(line.decode().split())
            self._reap()
            self._start()

    def _handle(self, words: list[str]) -> bool:
        if words[0] == "end":
            return True
        rank = int(words[1])
        if words[0] == "run":
            self.tried.discard(rank)
            self.enqueue(rank)
            if rank in self.waiting:
                self.enqueue(self.waiting[rank], first=True)
        elif words[0] == "try":
            self.tried.add(rank)
            self.enqueue(rank)
        elif words[0] == "waits":
            self.waiting[rank] = int(words[2])
            if rank not in self.tried:
                self.enqueue(self.waiting[rank], first=True)
        elif words[0] == "goes":
            self.waiting.pop(rank, None)
        return False

    def enqueue(self, rank: int, *, first: bool = False) -> None:
        """Queue a rank to be run, once."""
        if rank in self.started:
            return
        if rank in self.queue:
            self.queue.remove(rank)
        self.queue.insert(0 if first else len(self.queue), rank)

    def _start(self) -> None:
        while self.queue and len(self.running) - len(self.waiting) < self.most:
            rank = self.queue.pop(0)
            self.started.add(rank)
            sys.stdout.flush()
            child = os.fork()
            if not child:
                self._run_child(rank)
            self.running[child] = rank

    def _run_child(self, rank: int) -> None:
        """Run the rank in the child process, with the script's output in a file."""
        try:
            out = os.open(self.folder / f"output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            run_rank(self.request, self.folder, rank, self.report)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)

    def _reap(self) -> None:
        for child, rank in list(self.running.items()):
            if os.waitpid(child, os.WNOHANG)[0]:
                del self.running[child]
                self.waiting.pop(rank, None)
                (self.folder / f"over-{rank}").touch()
                print(f"over {rank}", flush=True)


def _prepare() -> None:
    """Import once the modules that multi-rank scripts use, except for the compiler, which is never used here."""

    def identity(found: Any = None, recursive: bool = True) -> Any:
        return found if found is not None else (lambda one: one)

    torch._compile._disable_dynamo = torch._disable_dynamo = identity
    for one in gc.get_objects():
        # functions decorated earlier would load the compiler on their first call
        if (
            isinstance(one, FunctionType)
            and one.__code__.co_filename == torch._compile.__file__
            and one.__closure__
        ):
            for cell in one.__closure__:
                if isinstance(cell.cell_contents, FunctionType):
                    cell.cell_contents.__dynamo_disable = cell.cell_contents  # type: ignore[attr-defined]
    for name in ("fsdp", "tensor.parallel", "pipelining", "pipelining.schedules"):
        with contextlib.suppress(ImportError):
            import_module(f"torch.distributed.{name}")


def main() -> None:
    """Run the recorder. The first argument is the folder."""
    _prepare()
    with open(0, "rb", buffering=0, closefd=False) as given:  # later lines are read as they arrive
        request = json.loads(given.readline())
    gc.freeze()
    Runner(request, Path(sys.argv[1]), request["at_once"]).run()


if __name__ == "__main__":
    main()
