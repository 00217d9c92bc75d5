"""Simulated accelerator time for programs that compute on the CPU: they sleep for the accelerator's compute time.

Under the virtual clock, computing itself takes no time, so a step takes the time of the accelerator and the network. On
the machine's own clock, the CPU time is added.
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
    """The roofline of an accelerator: an operation takes the longer of computing and memory access.

    flop_rate: flop/s in matrix products.
    memory_rate: bytes/s from and to memory.
    kernel_s: minimum seconds per operation; 0 if launches are hidden.
    """

    flop_rate: float
    memory_rate: float
    kernel_s: float = 0.0

    @classmethod
    def of(cls, accelerator: str, dtype: str = "bf16") -> Roofline:
        """Return the roofline of an accelerator in the catalogue: the type's peak times its achievable utilisation."""
        known = ProgramJob.here().accelerators
        if accelerator not in known:
            raise BackendError(where="accelerator", got=accelerator, expected=", ".join(known))
        entry = known[accelerator]
        return cls(entry["peak"][dtype] * entry["utilisation"], entry["memory_bandwidth"])

    def seconds(self, flops: float, touched_bytes: float) -> float:
        """Return the time of one operation."""
        return max(self.kernel_s, flops / self.flop_rate, touched_bytes / self.memory_rate)


class computing(TorchDispatchMode):  # type: ignore[misc]
    """A block whose operations take an accelerator's time, slept before each communication and at the end.

    accelerator: a name in the catalogue, or a Roofline.
    scale: multiplies all times, for a model that represents a larger one.
    pending_s: time that has not been slept yet.
    total_s: time of all operations so far.
    """

    active: list[computing] = []  # noqa: RUF012 (the open blocks of this process)

    def __init__(self, accelerator: str | Roofline, dtype: str = "bf16", scale: float = 1.0) -> None:
        super().__init__()
        self.roofline = accelerator if isinstance(accelerator, Roofline) else Roofline.of(accelerator, dtype)
        self.scale = scale
        self.pending_s = self.total_s = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Execute an operation and add its time; for DTensor and similar types, add the time of the rank's own part."""
        kwargs = kwargs or {}
        others = [kind for kind in types if kind not in (torch.Tensor, torch.nn.Parameter)]
        shapes_only = any(issubclass(kind, FakeTensor) for kind in others)
        if others and not shapes_only:
            return NotImplemented  # their component operations are dispatched here again
        result = func(*args, **kwargs)
        if not shapes_only and func.namespace not in _COMMUNICATION:
            took_s = self._seconds(func, args, kwargs, result) * self.scale
            self.pending_s += took_s
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
        self.sleep_pending()
        return super().__exit__(*reason)

    def sleep_pending(self) -> None:
        """Sleep for the pending time."""
        pending_s, self.pending_s = self.pending_s, 0.0
        sleep(pending_s)


def sleep(seconds: float) -> None:
    """Let this much of the job's time pass, as computing would, while messages progress."""
    if seconds > 0:
        time.sleep(seconds)


def sleep_pending() -> None:
    """Sleep for the pending time of all open blocks, before a communication starts or is waited for."""
    for one in computing.active:
        one.sleep_pending()
