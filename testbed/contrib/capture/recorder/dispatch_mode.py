"""Recording of PyTorch operations as they are dispatched: kernels with their cost, and functional collectives."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.weak import WeakIdKeyDictionary

from testbed.contrib.capture.recorder.groups import BY_NAME, RecordedWork, RecordingGroup
from testbed.contrib.capture.recorder.source_locations import Modules, here
from testbed.contrib.capture.recorder.tape import Tape
from testbed.errors import TestbedError

aten = torch.ops.aten
FEW = 1024  # elements; smaller integer tensors stay real
_DEVICE = torch.ops.prim.device.default
PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}
FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
}
"""Functional collectives, by name without the suffixes in `_FORMS`."""
_FORMS = re.compile(r"(_out|_coalesced)?_?$")
NAMESPACES = (
    "c10d",
    "_c10d_functional",
    "_c10d_functional_autograd",
    "c10d_functional",
    "symm_mem",
    "_dtensor",
)
_PRESERVING = re.compile(
    r"view|reshape|_unsafe_view|select|slice|t|transpose|permute|_to_copy|to|clone|unbind|split|split_with_sizes|chunk|"
    r"detach|alias|unsqueeze|squeeze|contiguous|copy_|as_strided|lift_fresh|expand"
)
"""Operations that only select or rearrange elements of their input."""
_FREE = ("empty", "detach", "alias", "set_", "resize_", "record_stream", "lift_fresh", "new_empty")


class UnknownCollective(TestbedError):
    """A collective or group that is not supported."""


class Speeds:
    """Peak speeds of an accelerator. peaks: flop/s by element type; types not listed compute at the rate of float32."""

    def __init__(self, peaks: Mapping[str, float], bytes_per_s: float) -> None:
        self.peaks, self.bytes_per_s = peaks, bytes_per_s

    def seconds(self, dtype: str, flops: float, touched_bytes: float) -> float:
        """Return the lower bound of a kernel's time: the longer of its compute time and its memory traffic."""
        computing = flops / self.peaks.get(dtype, self.peaks["float32"]) if flops else 0.0
        return max(computing, touched_bytes / self.bytes_per_s)


def type_name(dtype: Any) -> str:
    """Return the name of an element type as used in traces."""
    return str(dtype).removeprefix("torch.")


class RecordingMode(TorchDispatchMode):  # type: ignore[misc]
    """Records dispatched operations on a tape while `on` is set. doing: forward, backward or compute."""

    def __init__(self, tape: Tape, modules: Modules, speeds: Speeds) -> None:
        super().__init__()
        self.tape, self.modules, self.speeds = tape, modules, speeds
        self.on = False
        self.quiet = False  # optimizers read numbers that are on the CPU
        self.doing = "compute"
        self.backward = False
        self.check: Callable[[], None] = lambda: None
        self._pending = WeakIdKeyDictionary()
        self._uniform = WeakIdKeyDictionary()  # value of each element, for counts that are assumed uniform
        self._views: dict[Any, bool] = {}
        self._deferred: list[Callable[[], None]] = []
        self.scalars: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # a hot path
        for one in types:
            if one not in PLAIN:
                return NotImplemented  # a composite tensor, such as DTensor, whose parts are dispatched later
        kwargs = kwargs or {}
        if func.namespace in NAMESPACES:
            return self._functional(func, args, kwargs)
        if FakeTensor not in types and self._known(func, args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is aten._local_scalar_dense.default:
            return self._scalar(func, args, kwargs)
        return self._computed(func, args, kwargs)

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten.bincount.default:  # with the requested minimum length
            most = max(1, args[2] if len(args) > 2 else kwargs.get("minlength", 0))
            return self._assume_uniform(aten.histc.default(args[0].float(), most).long(), args[0].numel())
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            if func in (aten.equal.default, aten.allclose.default):
                return True
            what = "size" if isinstance(error, DynamicOutputShapeException) else "value"
            raise RuntimeError(
                f"capture: {func} at {here()}: its result's {what} depends on data, "
                "which fake tensors do not have"
            ) from None
        if func is aten.histc.default:
            self._assume_uniform(out, args[0].numel())
        elif self._uniform and args and isinstance(args[0], torch.Tensor):
            for one in out if isinstance(out, list | tuple) else (out,):
                if isinstance(one, torch.Tensor):
                    self._propagate_uniform(func, args[0], one)
        if self.on and not self._free(func):
            kind, module = "backward" if self.backward else self.doing, self.modules.current(self.backward)
            # only the first kernel of a sequence is located, because the lookup is slow
            site = "" if self.tape.current.open is not None else here()
            self.tape.compute(kind, module, site, self._cost(func, args, kwargs, out))
        return out

    def _assume_uniform(self, counts: Any, total: int) -> Any:
        """Mark counts, such as tokens per expert, as uniform."""
        self._uniform[counts] = total / counts.numel()
        return counts

    def _propagate_uniform(self, func: Any, given: Any, out: Any) -> None:
        """Mark the result of an operation on uniform counts as uniform, if that is true."""
        each = self._uniform.get(given)
        if each is None:
            return
        name = func._schema.name.removeprefix("aten::")
        if name == "sum":
            self._uniform[out] = each * given.numel() / out.numel()
        elif _PRESERVING.fullmatch(name) and out.numel() <= given.numel():
            self._uniform[out] = each

    @staticmethod
    def _known(func: Any, args: Any, kwargs: Any) -> bool:
        """Return whether this operates on a few integers from the script, such as ranks, which stay real."""
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if not tensors:
            return func._overloadpacket is aten.arange and all(
                isinstance(one, int) and one <= FEW for one in args
            )
        if any(isinstance(one, list | tuple) and one and isinstance(one[0], torch.Tensor) for one in args):
            return False
        tensors += [one for one in kwargs.values() if isinstance(one, torch.Tensor)]
        return all(one.numel() <= FEW and not one.dtype.is_floating_point for one in tensors)

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        """Suspend recording, for work that belongs to no step."""
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before

    # ---- computing

    def _free(self, func: Any) -> bool:
        if func not in self._views:
            name = func._schema.name.split("::")[-1]
            returns = func._schema.returns
            view = bool(returns) and all(
                one.alias_info is not None and not one.alias_info.is_write for one in returns
            )
            self._views[func] = view or func.namespace == "prim" or name.startswith(_FREE)
        return self._views[func]

    def _cost(self, func: Any, args: Any, kwargs: Any, out: Any) -> tuple[str, float, float, float]:
        touched, dtype = 0, None
        for one in (args, tuple(kwargs.values()), (out,)):
            found, first = _size(one)
            touched += found
            dtype = dtype or first
        name = type_name(dtype) if dtype is not None else "float32"
        formula: Any = flop_registry.get(func._overloadpacket) or _MORE.get(func._overloadpacket)
        flops = float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0
        return name, flops, float(touched), self.speeds.seconds(name, flops, touched)

    def _scalar(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the value of a tensor's element, if known, or a constant. The program waits for it."""
        if self.on and not self.quiet:
            self.tape.block()
        try:
            return func(*args, **kwargs)
        except DataDependentOutputException:
            pass
        if (each := self._uniform.get(args[0])) is not None:
            return round(each)
        site = here()
        self.scalars[site] = self.scalars.get(site, 0) + 1
        dtype = args[0].dtype
        if dtype is torch.bool:
            return False
        return 1.0 if dtype.is_floating_point else 1

    # ---- communication

    def note(
        self,
        group: RecordingGroup,
        collective: str,
        tensors: list[Any],
        results: list[Any],
        **more: Any,
    ) -> Any:
        """Record a communication; see groups.Note. more: see `_start`."""
        if collective == "all_to_all" and (each := self._uniform.get(tensors[0])) is not None:
            for result in results:
                self._uniform[result] = each
        number = self._start(group, collective, tensors or results, **more)
        token = self.tape.generation
        return RecordedWork(lambda: self.tape.wait(number, token), results, self._defer_wait)

    def _defer_wait(self, waited: Callable[[], None]) -> None:
        """Wait for an operation whose future is taken: at the end of a backward pass, or now outside of one."""
        if self.backward:
            self._deferred.append(waited)
        else:
            waited()

    def backward_over(self) -> None:
        """Wait for the operations whose futures were taken during the backward pass."""
        deferred, self._deferred = self._deferred, []
        for waited in deferred:
            waited()

    def _start(
        self,
        group: RecordingGroup,
        collective: str,
        tensors: list[Any],
        splits: Any = (),
        root: int | None = None,
        times: int = 1,
        peer: int = 0,
        tag: int = 0,
    ) -> int | None:
        """Add an operation to the tape; returns its number, None if nothing is recorded now.

        splits: elements for each member. root, peer: ranks in the job. times: number of members with equal tensors.
        """
        if not self.on:
            return None
        module, site = self.modules.current(self.backward), here()
        dtype = type_name(tensors[0].dtype) if tensors else "float32"
        numel = sum(tensor.numel() for tensor in tensors) * times
        node = {"module": module, "site": site, "numel": int(numel), "dtype": dtype}
        if collective in ("send", "recv"):
            node |= {"type": "message", "name": f"{collective} {peer}", "peer": peer, "tag": tag}
            node["sends"] = collective == "send"
            return self.tape.communicate(f"{collective} {peer}", node)
        node |= {"type": "collective", "collective": collective, "group": group.key}
        node["name"] = f"{collective} {module}".strip()
        if splits:
            node |= {"collective": "all_to_all_v", "splits": list(splits), "numel": int(sum(splits))}
        if root is not None:
            node["root"] = root
        return self.tape.communicate(f"group {group.key}", node)

    def _functional(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.split("::")[-1]
        if name == "wait_tensor":
            out = func(*args, **kwargs)
            number, token = self._pending.get(args[0], (None, 0))
            if (each := self._uniform.get(args[0])) is not None:
                self._uniform[out] = each
            self.tape.wait(number, token)
            return out
        collective = FUNCTIONAL.get(_FORMS.sub("", name))
        if collective is None:
            raise UnknownCollective(f"capture: {func._schema.name} at {here()} is not a supported collective")
        group = next((found for one in (*args, *kwargs.values()) if (found := _group(one)) is not None), None)
        if group is None:
            raise UnknownCollective(f"capture: {func._schema.name} at {here()}: its group is unknown")
        out = func(*args, **kwargs)
        larger = _tensors(out if collective == "all_gather" else args[0])
        splits = self._splits(args) if name == "all_to_all_single" else ()
        root = group.ranks[args[1]] if collective == "broadcast" else None
        number = self._start(group, collective, larger, splits, root)
        for tensor in _tensors(out):
            self._pending[tensor] = number, self.tape.generation
            if collective == "all_to_all" and (each := self._uniform.get(args[0])) is not None:
                self._uniform[tensor] = each
        return out

    @staticmethod
    def _splits(args: Any) -> list[int]:
        """Return the elements for each member; empty if all get the same."""
        tensor, outputs, inputs = args[:3]
        if not inputs or len({*inputs, *outputs}) == 1:
            return []
        row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 1
        return [int(count) * row for count in inputs]


def _group(found: Any) -> RecordingGroup | None:
    if isinstance(found, RecordingGroup):
        return found
    return BY_NAME.get(found) if isinstance(found, str) else None


def _tensors(found: Any) -> list[Any]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def _size(found: Any) -> tuple[int, Any]:
    """Return the bytes of all tensors, and the first floating-point type."""
    if isinstance(found, torch.Tensor):
        dtype = found.dtype
        return found.numel() * dtype.itemsize, dtype if dtype.is_floating_point else None
    if isinstance(found, list | tuple):
        total, first = 0, None
        for one in found:
            size, dtype = _size(one)
            total += size
            first = first or dtype
        return total, first
    return 0, None


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape))


def _grouped(one: Any, other: Any, *_: Any, **__: Any) -> int:
    """Return the flops of rows times their group's matrix or, for weight gradients, of a group's rows by each other."""
    return int(2 * one.numel() * other.shape[-1])


_MORE = {
    aten._grouped_mm: _grouped,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
