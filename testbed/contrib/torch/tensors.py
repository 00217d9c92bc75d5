"""Tensors as arrays for collectives, without a copy if their memory layout allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from testbed.comm.collectives import Reduction
from testbed.comm.collectives.arrays import Array
from testbed.contrib.torch.launch_env import BackendError

# Types unknown to NumPy are viewed as integers of the same size; PyTorch itself reduces them.
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NATIVE = {
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
}
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}

Ops = dist.ReduceOp
_NAMES = {Ops.SUM: "sum", Ops.AVG: "avg", Ops.PRODUCT: "product", Ops.MIN: "min", Ops.MAX: "max"}
_BITS = {Ops.BAND: np.bitwise_and, Ops.BOR: np.bitwise_or, Ops.BXOR: np.bitwise_xor}
_IN_TORCH: dict[str, Callable[..., Any]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


class Staged:
    """A tensor's elements as a flat array: its own memory, or a copy if that is not contiguous.

    writes: `copy_back` copies what was written to the array into the tensor.
    """

    def __init__(self, tensor: torch.Tensor, writes: bool = False) -> None:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            got = f"{tensor.layout} on {tensor.device}".removeprefix("torch.")
            raise BackendError(where="tensor", got=got, expected="a dense tensor on the CPU")
        tensor = tensor.detach()
        plain = tensor.resolve_conj().resolve_neg().contiguous()
        self._tensor = tensor if writes and plain.data_ptr() != tensor.data_ptr() else None
        self._plain = plain
        self.array: Array = _carried(plain).numpy()

    def copy_back(self) -> None:
        """Copy the array into the tensor, if it is not its memory."""
        if self._tensor is not None:
            self._tensor.copy_(self._plain)


def _carried(plain: torch.Tensor) -> torch.Tensor:
    flat = plain.reshape(-1)
    if flat.dtype in _NATIVE:
        return flat
    if flat.dtype in _REAL:
        return flat.view(_REAL[flat.dtype])
    return flat.view(_CARRIERS[flat.element_size()])


def concatenate_flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a copy of all tensors in one flat tensor."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def split_into(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy the parts of a flat tensor into these tensors; the inverse of `concatenate_flat`."""
    begin = 0
    for tensor in tensors:
        tensor.detach().copy_(whole[begin : begin + tensor.numel()].view(tensor.shape))
        begin += tensor.numel()


def reduction(op: Any, dtype: torch.dtype) -> str | Reduction:
    """Return PyTorch's reduction of a type for the communicator. Raises BackendError if it is not supported."""
    name = next((word for known, word in _NAMES.items() if op == known), None)
    bits = next((function for known, function in _BITS.items() if op == known), None)
    if dtype in _NATIVE and name is not None:
        return name
    if bits is not None and not dtype.is_floating_point and not dtype.is_complex:
        return Reduction(bits.__name__, bits)
    if dtype == torch.bool and name in ("sum", "max"):  # as in gloo: logical or
        return Reduction("any", np.bitwise_or)
    if dtype == torch.bool and name in ("product", "min"):
        return Reduction("all", np.bitwise_and)
    if dtype in _REAL and name in ("sum", "avg"):
        return name
    if dtype == torch.bfloat16 and name is not None:
        return _in_torch(name, dtype)
    raise BackendError(
        where="reduction",
        got=f"{getattr(op, 'name', op)} of {dtype}".replace("torch.", ""),
        expected="sum, avg, product, min or max of numbers, or bitwise operations on integers",
    )


def _in_torch(name: str, dtype: torch.dtype) -> Reduction:
    function = _IN_TORCH[name]

    def as_tensor(array: Array) -> torch.Tensor:
        return torch.from_numpy(array).view(dtype)

    def combine(one: Array, other: Array, out: Array) -> None:
        function(as_tensor(one), as_tensor(other), out=as_tensor(out))

    def average(array: Array, size: int) -> None:
        as_tensor(array).div_(size)

    return Reduction(name, combine, average if name == "avg" else None)
