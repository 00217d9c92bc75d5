"""A PyTorch process group whose operations are executed by a communicator, with tensors as its arrays.

Methods that PyTorch's C++ calls have the names of `c10d::ProcessGroup` in 2.13; earlier names are aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from testbed.comm.collectives import Reduction
from testbed.comm.collectives.arrays import Array
from testbed.contrib.torch.group_base import ProcessGroupBase, Tensors, Work
from testbed.contrib.torch.launch_env import BackendError
from testbed.contrib.torch.worker import Finish, PendingOperation

_METHODS = {
    "all_gather": "all_gather_into_tensor",
    "all_to_all": "all_to_all_single",
    "reduce_scatter": "reduce_scatter_tensor",
}
"""Methods of a communicator that do not have the name of their collective."""


class Group(ProcessGroupBase):
    """Ranks of a job that execute collectives together, with the semantics of torch.distributed."""

    # ---- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """See torch.distributed.all_reduce."""
        return self._all(tensors, partial(self._reduce, "all_reduce", opts, ()))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        """See torch.distributed.reduce."""
        return self._all(tensors, partial(self._reduce, "reduce", opts, (opts.rootRank,)))

    def _reduce(
        self, collective: str, opts: Any, root: tuple[int, ...], tensor: torch.Tensor
    ) -> PendingOperation:
        """Reduce in place."""
        staged, how = Staged(tensor, writes=True), reduction(_op(opts), tensor.dtype)
        return self._start(collective, (staged.array, *root, how), staged.copy_back, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """See torch.distributed.reduce_scatter_tensor."""
        return self._several([self._reduce_scatter(output, input, opts)], [output])

    def _reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> PendingOperation:
        written, read, how = Staged(output, writes=True), Staged(input), reduction(_op(opts), input.dtype)
        return self._start("reduce_scatter", (written.array, read.array, how), written.copy_back, opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Start several `reduce_scatter_single` at once."""
        pairs = zip(outputs, inputs, strict=True)
        return self._several([self._reduce_scatter(*pair, opts) for pair in pairs], list(outputs))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        """See torch.distributed.reduce_scatter; parts may differ in size."""
        parts = []
        for output, shares in zip(outputs, inputs, strict=True):
            if len({share.numel() for share in shares}) == 1:
                parts.append(self._reduce_scatter(output, concatenate_flat(shares), opts))
                continue
            for root, share in enumerate(shares):  # one reduction per share, each to its rank
                copy, how = share.detach().clone().contiguous(), reduction(_op(opts), share.dtype)
                finish = partial(output.detach().copy_, copy) if root == self._communicator.rank else None
                parts.append(self._start("reduce", (Staged(copy).array, root, how), finish, opts))
        return self._several(parts, list(outputs))

    # ---- copies

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        """See torch.distributed.broadcast."""
        return self._all(tensors, lambda tensor: self._broadcast(tensor, opts.rootRank, opts))

    def _broadcast(self, tensor: torch.Tensor, root: int, opts: Any) -> PendingOperation:
        staged = Staged(tensor, writes=root != self._communicator.rank)
        return self._start("broadcast", (staged.array, root), staged.copy_back, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """See torch.distributed.all_gather_into_tensor."""
        return self._several([self._all_gather(output, input, opts)], [output])

    def _all_gather(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any, finish: Finish | None = None
    ) -> PendingOperation:
        written, read = Staged(output, writes=True), Staged(input)
        return self._start("all_gather", (written.array, read.array), finish or written.copy_back, opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Start several `all_gather_single` at once."""
        pairs = zip(outputs, inputs, strict=True)
        return self._several([self._all_gather(*pair, opts) for pair in pairs], list(outputs))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """See torch.distributed.all_gather; parts may differ in size."""
        parts: list[PendingOperation] = []
        for shares, own in zip(outputs, inputs, strict=True):
            if len({share.numel() for share in shares}) == 1:
                whole = own.new_empty(own.numel() * len(shares))
                parts.append(self._all_gather(whole, own, opts, partial(split_into, whole, shares)))
                continue
            shares[self._communicator.rank].detach().copy_(own)
            parts += [self._broadcast(share, root, opts) for root, share in enumerate(shares)]
        return self._several(parts, [list(shares) for shares in outputs])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Start several `allgather` at once; here each rank has its own list."""
        return self.allgather([list(shares) for shares in zip(*outputs, strict=True)], inputs, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        """See torch.distributed.gather."""
        own, written, finish = inputs[0], None, None
        read = Staged(own).array
        if opts.rootRank == self._communicator.rank:
            whole = own.new_empty(own.numel() * self.size())
            written, finish = Staged(whole).array, partial(split_into, whole, outputs[0])
        part = self._start("gather", (written, read, opts.rootRank), finish, opts)
        return self._several([part], list(chain.from_iterable(outputs)))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        """See torch.distributed.scatter."""
        written, here = Staged(outputs[0], writes=True), opts.rootRank == self._communicator.rank
        read = Staged(concatenate_flat(inputs[0])).array if here else None
        part = self._start("scatter", (written.array, read, opts.rootRank), written.copy_back, opts)
        return self._several([part], [outputs[0]])

    # ---- all-to-all

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> Work:
        """See torch.distributed.all_to_all_single; splits are rows of each rank, empty for equal shares."""
        written, read = Staged(output, writes=True), Staged(input)
        sizes = [
            [rows * _row(tensor) * (staged.array.size // max(1, tensor.numel())) for rows in given]
            for given, tensor, staged in (
                (output_splits or (), output, written),
                (input_splits or (), input, read),
            )
        ]
        if any(sizes):
            parts = self.size()
            sizes = [
                own or [staged.array.size // parts] * parts
                for own, staged in zip(sizes, (written, read), strict=True)
            ]
        arrays = written.array, read.array
        part = self._start("all_to_all", (*arrays, *(own or None for own in sizes)), written.copy_back, opts)
        return self._several([part], [output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """See torch.distributed.all_to_all."""
        sent, received = concatenate_flat(inputs), concatenate_flat(outputs)
        written, read = Staged(received).array, Staged(sent).array
        unit = read.size // sent.numel() if sent.numel() else 1
        sizes = ([tensor.numel() * unit for tensor in tensors] for tensors in (outputs, inputs))
        part = self._start(
            "all_to_all", (written, read, *sizes), partial(split_into, received, outputs), opts
        )
        return self._several([part], list(outputs))

    # ---- point to point

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        """See torch.distributed.isend."""
        return self._all(tensors, lambda tensor: self._message("isend", Staged(tensor), dst, tag))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        """See torch.distributed.irecv."""
        return self._all(
            tensors, lambda tensor: self._message("irecv", Staged(tensor, writes=True), src, tag)
        )

    def _message(self, method: str, staged: Staged, peer: int, tag: int) -> PendingOperation:
        begin = partial(getattr(self._communicator, method), staged.array, peer, tag)
        return self._submit(begin, staged.copy_back, None)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Raise BackendError: receives from any source are not supported."""
        raise BackendError(where="recv", got="no source", expected="the rank that sends")

    def barrier(self, opts: Any = None) -> Work:
        """See torch.distributed.barrier."""
        begin = partial(self._communicator.barrier, async_op=True)
        return self._several([self._submit(begin, None, opts)], [])

    def _start(
        self, collective: str, arguments: tuple[Any, ...], finish: Finish | None, opts: Any
    ) -> PendingOperation:
        """Start a collective with the job's algorithm for it."""
        method = getattr(self._communicator, _METHODS.get(collective, collective))
        begin = partial(method, *arguments, algorithm=self._job.algorithm(collective), async_op=True)
        return self._submit(begin, finish, opts)

    # ---- names before 2.13

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _op(opts: Any) -> Any:
    return opts.reduceOp if opts is not None else dist.ReduceOp.SUM


def _row(tensor: torch.Tensor) -> int:
    """Return the elements of a row of the first dimension."""
    return tensor[0].numel() if tensor.dim() and tensor.shape[0] else 1


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
    """A tensor's elements as a flat array, in its own memory or, if that is not contiguous, in a copy.

    writes: whether `copy_back` copies the array's new content into the tensor.
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
        """Copy the array into the tensor, unless it is the tensor's memory."""
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
    if dtype == torch.bool and name in ("sum", "max"):  # a logical or, as in gloo
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
