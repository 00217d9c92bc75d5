"""An accelerator's time, where a program computes on the CPU: what its operations would take there, slept.

Where computing costs no virtual time, that is all the time it takes: what a step takes is then the accelerator's and
the network's. By the machine's own clock it comes on top.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from testbed.contrib.torch.launch_env import BackendError, ProgramJob

_COMMUNICATION = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


@dataclass(frozen=True)
class Roofline:
    """What an accelerator reaches: flop/s in matrix products, bytes a second from and to memory, seconds per operation.

    An operation takes the longer of both. kernel_s: at the least; 0 where launches are hidden.
    """

    flop_rate: float
    memory_rate: float
    kernel_s: float = 0.0

    @classmethod
    def of(cls, accelerator: str, dtype: str = "bf16") -> Roofline:
        """Of one of the testbed's catalogue: peak of the type times the part of it that training reaches."""
        known = ProgramJob.here().accelerators
        if accelerator not in known:
            raise BackendError(where="accelerator", got=accelerator, expected=", ".join(known))
        entry = known[accelerator]
        return cls(entry["peak"][dtype] * entry["utilisation"], entry["memory_bandwidth"])

    def seconds(self, flops: float, touched_bytes: float) -> float:
        """Of one operation."""
        return max(self.kernel_s, flops / self.flop_rate, touched_bytes / self.memory_rate)


class computing(TorchDispatchMode):  # type: ignore[misc]
    """Within the block every operation takes the accelerator's time, before the next communication and at the end.

    accelerator: a name of the catalogue, or a Roofline. scale: how many times longer, for a model that stands for a
    larger one. owed_s: what has not passed yet. total_s: of all operations so far.
    """

    active: list[computing] = []  # noqa: RUF012 (of this process: the blocks that are open)

    def __init__(self, accelerator: str | Roofline, dtype: str = "bf16", scale: float = 1.0) -> None:
        super().__init__()
        self.roofline = accelerator if isinstance(accelerator, Roofline) else Roofline.of(accelerator, dtype)
        self.scale = scale
        self.owed_s = self.total_s = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operation itself, and what it would take: of DTensors and their like, that of a rank's own part."""
        kwargs = kwargs or {}
        others = [kind for kind in types if kind not in (torch.Tensor, torch.nn.Parameter)]
        shapes_only = any(issubclass(kind, FakeTensor) for kind in others)
        if others and not shapes_only:
            return NotImplemented  # what they make of it comes here again
        result = func(*args, **kwargs)
        if not shapes_only and func.namespace not in _COMMUNICATION:
            took_s = self._seconds(func, args, kwargs, result) * self.scale
            self.owed_s += took_s
            self.total_s += took_s
        return result

    def _seconds(self, func: Any, args: Any, kwargs: Any, result: Any) -> float:
        if func.is_view or not isinstance(result, torch.Tensor | tuple | list):
            return 0.0
        counted = flop_registry.get(func.overloadpacket)
        flops = counted(*args, **kwargs, out_val=result) if counted is not None else 0
        tensors = [one for one in tree_leaves((args, kwargs, result)) if isinstance(one, torch.Tensor)]
        different = {one.data_ptr(): one.numel() * one.element_size() for one in tensors}
        return self.roofline.seconds(flops, sum(different.values()))

    def __enter__(self) -> Any:
        computing.active.append(self)
        return super().__enter__()

    def __exit__(self, *reason: Any) -> Any:
        computing.active.remove(self)
        self.pay()
        return super().__exit__(*reason)

    def pay(self) -> None:
        """Have what is owed pass now."""
        owed_s, self.owed_s = self.owed_s, 0.0
        sleep(owed_s)


def sleep(seconds: float) -> None:
    """Let so much of the job's time pass, as computing would; messages go on meanwhile."""
    if seconds > 0:
        time.sleep(seconds)


def pay_all() -> None:
    """Have pass what any open block owes: before a communication begins, or is waited for."""
    for one in computing.active:
        one.pay()
