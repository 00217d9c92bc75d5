"""Emulation of accelerators: scripts that name CUDA run on fake CPU tensors, and a tape records their streams."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils as foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from testbed.contrib.capture.recorder.tape import MAIN, Tape

_TORCH = str(Path(torch.__file__).parent)
NAMES = ("cuda", "xpu", "hpu")


def on_cpu(device: Any) -> Any:
    """Return the device, or the CPU for an accelerator."""
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type in NAMES else device
    if isinstance(device, str):
        return "cpu" if device.split(":")[0] in NAMES else device
    return device


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Redirects to the CPU all tensors that are created on, or moved to, an accelerator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchFunctionMode."""
        if func in _STAY:
            return args[0]
        if kwargs:
            device = kwargs.get("device")
            if device is not None:
                if isinstance(device, int) and not isinstance(device, bool):
                    device = "cuda"
                kwargs = {**kwargs, "device": on_cpu(device)}
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
        if func in _MOVE and len(args) > 1:
            args = (args[0], *map(on_cpu, args[1:]))
        return func(*args, **(kwargs or {}))


_STAY = {torch.Tensor.cuda, torch.Tensor.pin_memory, torch.Tensor.xpu}
_MOVE = {torch.Tensor.to, torch.Tensor.type, torch.Tensor.new_empty, torch.Tensor.new_zeros}


def stream_classes(tape: Tape) -> tuple[Any, Any, Any]:
    """Return replacements of torch.cuda's Stream, Event and StreamContext that record on the tape."""
    count = iter(range(1, 1_000_000))

    class Stream:
        def __init__(self, *_: Any, **named: Any) -> None:
            name = named.get("name") or f"stream {next(count)}"
            self.own = tape.stream(name)
            self.device = torch.device("cpu")
            self.cuda_stream = self.stream_id = id(self.own)

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, other: Any) -> None:
            tape.wait_event(tape.record(other.own), self.own)

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def synchronize(self) -> None:
            event = tape.record(self.own)
            for stream in tape.streams.values():
                tape.wait_event(event, stream)

        def query(self) -> bool:
            return True

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.own is self.own

        def __hash__(self) -> int:
            return hash(self.own.name)

    class Event:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.found: Any = None

        def record(self, stream: Any = None) -> Any:
            self.found = tape.record(None if stream is None else stream.own)
            return self

        def wait(self, stream: Any = None) -> None:
            if self.found is not None:
                tape.wait_event(self.found, None if stream is None else stream.own)

        def synchronize(self) -> None:
            if self.found is not None:
                for stream in tape.streams.values():
                    tape.wait_event(self.found, stream)

        def query(self) -> bool:
            return True

        def elapsed_time(self, other: Any) -> float:
            return 1.0

    class StreamContext(contextlib.AbstractContextManager):  # type: ignore[type-arg]
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            self.before = tape.current
            if self.stream is not None:
                tape.current = self.stream.own

        def __exit__(self, *_: Any) -> None:
            tape.current = self.before

    return Stream, Event, StreamContext


def _outside(answer: Any) -> Callable[..., Any]:
    """Return a function that returns `answer` to scripts, but "no accelerator" to PyTorch's own code."""

    def call(*_: Any, **__: Any) -> Any:
        frame = sys._getframe(1)
        inside = frame.f_code.co_filename.startswith(_TORCH)
        return type(answer)() if inside else answer

    return call


_REAL_METHODS = {
    "__init__",
    "__getitem__",
    "_compute_coordinates_from_mesh",
    "_compute_coordinate_on_dim",
    "_concatenate",
    "_create_flatten_mesh",
    "_create_sub_mesh",
    "_flatten",
    "_get_all_submeshes",
    "_get_mesh_tensor_from_full_mesh",
    "_unflatten",
    "from_group",
    "mesh",
}
"""Methods of a mesh that read ranks from tensors, which must be real."""


def _real(found: Any) -> Any:
    """Return the function or property, executed without fake tensors."""
    if isinstance(found, staticmethod | classmethod):
        return type(found)(_real(found.__func__))
    if isinstance(found, property):
        return property(_real(found.fget))

    @functools.wraps(found)
    def call(*arguments: Any, **named: Any) -> Any:
        with _disable_current_modes():
            return found(*arguments, **named)

    return call


class _RealIntegers(TorchDispatchMode):  # type: ignore[misc]
    """Keeps the indices of gradient buckets real, since DDP's reducer reads them in C++. The buckets stay fake."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = [one for one in args if isinstance(one, torch.Tensor)]
        made = func is torch.ops.aten.empty.memory_format and kwargs.get("dtype") is torch.int32
        if made or (found and not any(isinstance(one, FakeTensor) for one in found)):
            with _disable_current_modes():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


Once = Callable[[], contextlib.AbstractContextManager[None]]


def install(tape: Tape, name: str, memory_bytes: int, once: Once) -> None:
    """Replace the relevant functions of torch.cuda and torch.cpu.

    Args:
        tape: Records the streams.
        name: Name of the emulated accelerator.
        memory_bytes: Memory of the emulated accelerator.
        once: Context for work that is done once and belongs to no step.
    """
    stream, event, context = stream_classes(tape)
    known: dict[str, Any] = {}

    def current_stream(*_: Any) -> Any:
        own = tape.current
        if own.name not in known:
            known[own.name] = stream(name=own.name)
        return known[own.name]

    def default_stream(*_: Any) -> Any:
        return known.setdefault(MAIN, stream(name=MAIN))

    for module in (torch.cuda, torch.cpu):
        module.Stream, module.Event, module.StreamContext = stream, event, context
        module.current_stream, module.stream = current_stream, context
        module.set_stream = lambda one: setattr(tape, "current", one.own)
        module.synchronize = lambda *_: tape.block()
    torch.cuda.default_stream = default_stream
    torch.Stream, torch.Event = stream, event
    # as on an accelerator: one kernel for many parameters
    foreach = "_get_foreach_kernels_supported_devices"
    setattr(foreach_utils, foreach, _always(["cpu", "cuda"]))
    setattr(sys.modules["torch.optim.optimizer"], foreach, _always(["cpu", "cuda"]))
    _emulate_cuda(name, memory_bytes)
    _map_devices(once)


def _emulate_cuda(name: str, memory_bytes: int) -> None:
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    nothing = ["empty_cache", "ipc_collect", "init", "_lazy_init"]
    nothing += ["set_device", "manual_seed", "manual_seed_all", "set_per_process_memory_fraction"]
    nothing += ["reset_peak_memory_stats", "reset_max_memory_allocated"]
    for one in nothing:
        setattr(torch.cuda, one, _always(None))
    for one in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(torch.cuda, one, _always(0))
    state = torch.zeros(1, dtype=torch.uint8)
    torch.cuda.get_rng_state, torch.cuda.get_rng_state_all = _always(state), _always([state] * ranks)
    torch.cuda.set_rng_state = torch.cuda.set_rng_state_all = _always(None)
    torch.random.fork_rng = torch.cuda.random.fork_rng = lambda *_, **__: contextlib.nullcontext()
    torch.cuda.memory_stats = _always({})
    torch.cuda.mem_get_info = _always((memory_bytes, memory_bytes))
    torch.cuda.current_device = _always(local)
    torch.cuda.get_device_name = _always(name)
    torch.cuda.get_device_capability = _always((9, 0))
    torch.cuda.is_bf16_supported = _always(True)
    torch.cuda.is_available = _outside(True)
    torch.cuda.device_count = _outside(ranks)

    class Properties:
        total_memory = memory_bytes
        major, minor, multi_processor_count = 9, 0, 132

    Properties.name = name  # type: ignore[attr-defined]
    torch.cuda.get_device_properties = _always(Properties())


def _map_devices(once: Once) -> None:
    mesh = torch.distributed.device_mesh
    begin = mesh.DeviceMesh.__init__

    def make(self: Any, device_type: Any, *rest: Any, **named: Any) -> None:
        begin(self, on_cpu(device_type), *rest, **named)

    mesh.DeviceMesh.__init__ = make
    for name, found in list(vars(mesh.DeviceMesh).items()):
        if name in _REAL_METHODS:
            setattr(mesh.DeviceMesh, name, _real(found))
    init_mesh = _real(mesh.init_device_mesh)

    def init_device_mesh(device_type: Any, *rest: Any, **named: Any) -> Any:
        named.pop("backend_override", None)
        return init_mesh(on_cpu(device_type), *rest, **named)

    for module in (mesh, torch.distributed):
        module.init_device_mesh = init_device_mesh
    autocast = torch.amp.autocast_mode.autocast
    begin_cast = autocast.__init__

    def cast(self: Any, device_type: Any, dtype: Any = None, *rest: Any, **named: Any) -> None:
        if dtype is None and on_cpu(device_type) != device_type:
            dtype = torch.float16
        begin_cast(self, on_cpu(device_type), dtype, *rest, **named)

    autocast.__init__ = cast
    parallel = torch.nn.parallel.DistributedDataParallel
    begin_parallel = parallel.__init__
    # reads the values of parameters' shapes, in C++
    torch.nn.parallel.distributed._verify_param_shape_across_processes = _always(None)

    def wrap(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *rest: Any, **named: Any
    ) -> None:
        begin_parallel(self, module, None, None, *rest, **named)

    parallel.__init__ = wrap
    rebuild = torch.distributed.Reducer._rebuild_buckets

    def rebuilt(self: Any) -> Any:
        with _RealIntegers(), once():
            return rebuild(self)

    torch.distributed.Reducer._rebuild_buckets = rebuilt
    apply = torch.nn.Module._apply

    made = WeakIdKeyDictionary()  # new parameters of weights that several modules share

    def applied(self: Any, fn: Any, recurse: bool = True) -> Any:
        """Replace changed parameters by new ones, because fake ones cannot be swapped in PyTorch's usual way."""
        if recurse:
            for child in self.children():
                child._apply(fn)
        own = [*self._parameters.values(), *self._buffers.values()]
        if not all(one is None or type(one) is FakeTensor for one in own):
            return apply(self, fn, False)
        with torch.no_grad():
            for kept in (self._parameters, self._buffers):
                for key, one in kept.items():
                    if one is None or (new := fn(one)) is one:
                        continue
                    if kept is self._parameters:
                        new = made.setdefault(one, torch.nn.Parameter(new, one.requires_grad))
                    kept[key] = new
        return self

    torch.nn.Module._apply = applied
    default = torch.set_default_device
    torch.set_default_device = lambda device: default(on_cpu(device))


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """Make torch.compile return its argument unchanged."""

    def compiled(model: Any = None, **_: Any) -> Any:
        return (lambda found: found) if model is None else model

    before = torch.compile, torch.nn.Module.compile
    torch.compile, torch.nn.Module.compile = compiled, lambda self, *_, **__: None
    try:
        yield
    finally:
        torch.compile, torch.nn.Module.compile = before
