"""Execution of one rank: runs the unmodified script through its steps, and writes the last step to a file.

Ranks really exchange the Python objects that they send each other before they train, such as shapes between stages.
Every rank runs as a separate process, so objects go through files; a rank that waits for another's object reports this
to the runner.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import runpy
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from testbed.contrib.capture.recorder import devices
from testbed.contrib.capture.recorder.dispatch_mode import RecordingMode, Speeds
from testbed.contrib.capture.recorder.groups import World
from testbed.contrib.capture.recorder.source_locations import _OWN, _TORCH, Modules
from testbed.contrib.capture.recorder.tape import Tape
from testbed.errors import TestbedError


class _AllStepsDone(BaseException):
    """All steps are recorded. A BaseException, so that scripts that catch Exception do not catch it."""


class Steps:
    """Detects steps by optimizers: a step ends with the last optimizer step that follows a backward pass."""

    def __init__(self, recorder: RecordingMode, wanted: int) -> None:
        self.recorder, self.wanted = recorder, wanted
        self.count, self.length, self._backward, self._inside = 0, 0, False, False

    def install(self) -> None:
        """Hook all optimizers, modules and backward passes."""
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)
        torch.nn.modules.module.register_module_forward_pre_hook(self._forward)
        run = torch.autograd._engine_run_backward

        def backward(*arguments: Any, **named: Any) -> Any:
            self._stop_if_done()
            self._begin()
            recorder, outer = self.recorder, self.recorder.backward
            recorder.backward = self._backward = True
            try:
                return run(*arguments, **named)
            finally:
                recorder.backward = outer
                if not outer:
                    recorder.doing = "compute"  # until a module runs, e.g. for gradient clipping
                    recorder.backward_over()

        torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = backward

    def _begin(self) -> None:
        if self.wanted == 1 and not self.count and not self.recorder.on:
            self._restart()

    def _restart(self) -> None:
        self.recorder.tape.restart()
        self.recorder.modules.clear()
        self.recorder.on = True

    def _stop_if_done(self) -> None:
        if self.count >= self.wanted:
            raise _AllStepsDone

    def _forward(self, *_: Any) -> None:
        if not self._inside:
            self._stop_if_done()
            self._begin()
            self.recorder.doing = "forward"

    def _before(self, *_: Any) -> None:
        self.recorder.doing, self._inside, self.recorder.quiet = "compute", True, True

    def _after(self, *_: Any) -> None:
        self._inside = self.recorder.quiet = False
        self.count += self._backward
        self._backward = False
        if self.count == self.wanted:
            self.length = self.recorder.tape.end()
        elif self.count == self.wanted - 1:
            self._restart()


def run_rank(request: Mapping[str, Any], folder: Path, rank: int, report: int) -> None:
    """Run a rank in its own process; writes FOLDER/rank-RANK.json."""
    begun_s = time.monotonic()
    found: dict[str, Any]
    try:
        found = _record(request, folder, rank, report)
    except BaseException:
        found = {"error": _traceback(), "steps": 0}
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found |= {"rank": rank, "seconds": time.monotonic() - begun_s, "peak_bytes": peak_bytes}
    path = folder / f"rank-{rank}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(path)


def _environment(request: Mapping[str, Any], rank: int) -> dict[str, str]:
    size, local = request["world_size"], request["local_world_size"]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local),
        "GROUP_WORLD_SIZE": str(-(-size // local)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "capture",
        "TORCH_DIST_INIT_BARRIER": "0",
    }


def _record(request: Mapping[str, Any], folder: Path, rank: int, report: int) -> dict[str, Any]:
    os.environ.update(_environment(request, rank))
    tape, modules = Tape(), Modules()
    recorder = RecordingMode(tape, modules, Speeds(request["peaks"], request["bytes_per_s"]))
    world = World(rank, request["world_size"], recorder.note)
    steps = Steps(recorder, request["steps"])
    world.install()
    devices.install(tape, request["accelerator"], request["memory_bytes"], recorder.once)
    _replace_object_collectives(ObjectExchange(folder, rank, report), rank, request["world_size"])
    _vote_alone()
    torch.save = lambda *_, **__: None
    modules.install()
    steps.install()
    script = request["script"]
    sys.argv = [script, *request["arguments"]]
    sys.path.insert(0, str(Path(script).resolve().parent))
    torch.manual_seed(0)
    with devices.without_compiling(), FakeTensorMode(allow_non_fake_inputs=True), recorder, devices.OnCpu():
        try:
            runpy.run_path(script, run_name="__main__")
        except _AllStepsDone:
            pass
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise
    return {
        "steps": steps.count,
        "nodes": tape.nodes[: steps.length],
        "groups": {name: list(members) for name, members in world.groups.items()},
        "families": world.families,
        "scalars": recorder.scalars,
        "torch": torch.__version__,
    }


def _traceback() -> str:
    """Return the current traceback without the recorder's frames."""
    kind, error, trace = sys.exc_info()
    assert kind is not None
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not frame.filename.startswith(_OWN) and "runpy" not in frame.filename]
    last = max((at for at, frame in enumerate(own) if not frame.filename.startswith(_TORCH)), default=-1)
    # the script's own frames, and the place of failure in PyTorch
    shown = [
        frame
        for at, frame in enumerate(own)
        if not frame.filename.startswith(_TORCH) or at == last + 1 or (at > last and at == len(own) - 1)
    ]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)]
    return "".join([*lines, *traceback.format_exception_only(kind, error)])


def _replace_object_collectives(objects: ObjectExchange, rank: int, size: int) -> None:
    """Replace collectives of Python objects: gathers return this rank's object for all ranks, others transfer it."""

    def all_gather(found: list[Any], own: Any, group: Any = None) -> None:
        found[:] = [own] * len(found)

    def gather(own: Any, found: Any = None, *_: Any, **__: Any) -> None:
        if found is not None:
            found[:] = [own] * len(found)

    def broadcast(found: list[Any], src: Any = None, group: Any = None, *_: Any, **named: Any) -> None:
        source, members = _peer(group, src, named.get("group_src"), 0), _members(group, size)
        if source == rank:
            for one in members:
                if one != rank:
                    objects.send(one, found)
        elif rank in members:
            found[:] = objects.receive(source)

    def scatter(
        out: list[Any], given: Any, src: Any = None, group: Any = None, *_: Any, **named: Any
    ) -> None:
        source, members = _peer(group, src, named.get("group_src"), 0), _members(group, size)
        if source == rank:
            for one, thing in zip(members, given, strict=True):
                if one == rank:
                    out[0] = thing
                else:
                    objects.send(one, thing)
        elif rank in members:
            out[0] = objects.receive(source)

    def send(found: list[Any], dst: Any = None, group: Any = None, *_: Any, **named: Any) -> None:
        objects.send(_peer(group, dst, named.get("group_dst"), None), found)

    def receive(found: list[Any], src: Any = None, group: Any = None, *_: Any, **named: Any) -> int:
        source = _peer(group, src, named.get("group_src"), None)
        found[:] = objects.receive(source)
        return source

    for module in (dist, c10d):
        module.all_gather_object, module.gather_object = all_gather, gather
        module.broadcast_object_list, module.scatter_object_list = broadcast, scatter
        module.send_object_list, module.recv_object_list = send, receive


def _members(group: Any, size: int) -> tuple[int, ...]:
    return tuple(range(size)) if group is None else tuple(group.ranks)


def _peer(group: Any, rank: Any, in_group: Any, usual: Any) -> int:
    if in_group is not None:
        return int(in_group if group is None else group.ranks[in_group])
    return int(usual if rank is None else rank)


def _vote_alone() -> None:
    """Make this rank's vote on shape inference decide, because all pipeline stages of a script vote the same."""
    with contextlib.suppress(ImportError):
        from torch.distributed.pipelining import stage  # noqa: PLC0415

        if not hasattr(stage.PipelineStage, "_warmup_forward_vote"):
            return

        def vote(self: Any, has_backward: bool, received_acc: Any = None) -> Any:
            needs = stage.InferenceMode.needs_dynamic(self._user_meta, has_backward)
            return torch.tensor([0 if needs else 1], dtype=torch.int32)

        def result(self: Any, received_result: Any = None) -> Any:
            return vote(self, True) if received_result is None else received_result

        stage.PipelineStage._warmup_forward_vote = vote
        stage.PipelineStage._warmup_backward_result = result


POLL_S = 0.01


class MissingObject(TestbedError):
    """A rank ended without sending an object that another waits for."""


class ObjectExchange:
    """Object exchange of one rank.

    folder: shared by all ranks.
    report: file descriptor for reports of which rank waits for which.
    """

    def __init__(self, folder: Path, rank: int, report: int) -> None:
        self.folder, self.rank, self.report = folder, rank, report
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def send(self, target: int, found: Any) -> None:
        """Send an object; returns at once."""
        number = self._sent[target] = self._sent.get(target, -1) + 1
        path = self.folder / f"{self.rank}-{target}-{number}"
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(found))
        part.rename(path)

    def receive(self, source: int) -> Any:
        """Return the next object from a rank. Raises MissingObject if that rank ends without sending it."""
        number = self._received[source] = self._received.get(source, -1) + 1
        path, over = self.folder / f"{source}-{self.rank}-{number}", self.folder / f"over-{source}"
        reported = False
        while not path.exists():
            if over.exists() and not path.exists():
                raise MissingObject(
                    f"rank {self.rank} receives object {number + 1} from rank {source}, which sent only {number}"
                )
            if not reported:
                os.write(self.report, f"waits {self.rank} {source}\n".encode())
                reported = True
            time.sleep(POLL_S)
        if reported:
            os.write(self.report, f"goes {self.rank}\n".encode())
        return pickle.loads(path.read_bytes())
