"""A PyTorch process group whose operations are executed by a communicator.

Methods that PyTorch's C++ calls have the names of `c10d::ProcessGroup` in 2.13; earlier names are aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from testbed.contrib.torch.group_base import ProcessGroupBase, Tensors, Work
from testbed.contrib.torch.launch_env import BackendError
from testbed.contrib.torch.tensors import Staged, concatenate_flat, reduction, split_into
from testbed.contrib.torch.worker import PendingOperation


class Group(ProcessGroupBase):
    """Ranks of a job that execute collectives together, each as torch.distributed describes it."""

    # ---- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """See torch.distributed.all_reduce."""
        return self._all(tensors, self._all_reduce(opts))

    allreduce_coalesced = allreduce

    def _all_reduce(self, opts: Any) -> Callable[[torch.Tensor], PendingOperation]:
        op = _op(opts)

        def one(tensor: torch.Tensor) -> PendingOperation:
            staged, how = Staged(tensor, writes=True), reduction(op, tensor.dtype)
            algorithm = self._job.algorithm("all_reduce")
            return self._submit(
                lambda: self._communicator.all_reduce(staged.array, how, algorithm, async_op=True),
                staged.copy_back,
                opts,
            )

        return one

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        """See torch.distributed.reduce."""

        def one(tensor: torch.Tensor) -> PendingOperation:
            staged, how = Staged(tensor, writes=True), reduction(_op(opts), tensor.dtype)
            algorithm = self._job.algorithm("reduce")
            return self._submit(
                lambda: self._communicator.reduce(staged.array, opts.rootRank, how, algorithm, async_op=True),
                staged.copy_back,
                opts,
            )

        return self._all(tensors, one)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """See torch.distributed.reduce_scatter_tensor."""
        return self._one(self._reduce_scatter(output, input, opts), [output])

    def _reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> PendingOperation:
        written, read, how = Staged(output, writes=True), Staged(input), reduction(_op(opts), input.dtype)
        algorithm = self._job.algorithm("reduce_scatter")
        return self._submit(
            lambda: self._communicator.reduce_scatter_tensor(
                written.array, read.array, how, algorithm, async_op=True
            ),
            written.copy_back,
            opts,
        )

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
                copy = share.detach().clone().contiguous()
                staged, how = Staged(copy), reduction(_op(opts), share.dtype)
                parts.append(self._reduced_to(root, staged, how, output, copy, opts))
        return self._several(parts, list(outputs))

    def _reduced_to(
        self, root: int, staged: Staged, how: Any, output: torch.Tensor, copy: torch.Tensor, opts: Any
    ) -> PendingOperation:
        def finish() -> None:
            if root == self._communicator.rank:
                output.detach().copy_(copy)

        algorithm = self._job.algorithm("reduce")
        return self._submit(
            lambda: self._communicator.reduce(staged.array, root, how, algorithm, async_op=True), finish, opts
        )

    # ---- copies

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        """See torch.distributed.broadcast."""
        return self._all(tensors, lambda tensor: self._broadcast(tensor, opts.rootRank, opts))

    def _broadcast(self, tensor: torch.Tensor, root: int, opts: Any) -> PendingOperation:
        staged = Staged(tensor, writes=root != self._communicator.rank)
        algorithm = self._job.algorithm("broadcast")
        return self._submit(
            lambda: self._communicator.broadcast(staged.array, root, algorithm, async_op=True),
            staged.copy_back,
            opts,
        )

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """See torch.distributed.all_gather_into_tensor."""
        return self._one(self._all_gather(output, input, opts), [output])

    def _all_gather(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any, finish: Callable[[], None] | None = None
    ) -> PendingOperation:
        written, read = Staged(output, writes=True), Staged(input)
        algorithm = self._job.algorithm("all_gather")
        return self._submit(
            lambda: self._communicator.all_gather_into_tensor(
                written.array, read.array, algorithm, async_op=True
            ),
            finish or written.copy_back,
            opts,
        )

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
                parts.append(self._all_gather(whole, own, opts, _splitter(whole, shares)))
                continue
            shares[self._communicator.rank].detach().copy_(own)
            parts += [self._broadcast(share, root, opts) for root, share in enumerate(shares)]
        return self._several(parts, [list(shares) for shares in outputs])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Start several `allgather` at once; here each rank has its own list."""
        return self.allgather([list(shares) for shares in zip(*outputs, strict=True)], inputs, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        """See torch.distributed.gather."""
        own, here = inputs[0], opts.rootRank == self._communicator.rank
        read, algorithm = Staged(own), self._job.algorithm("gather")
        whole = own.new_empty(own.numel() * self.size()) if here else None
        written = Staged(whole) if whole is not None else None
        part = self._submit(
            lambda: self._communicator.gather(
                written.array if written else None, read.array, opts.rootRank, algorithm, async_op=True
            ),
            _splitter(whole, outputs[0]) if whole is not None else None,
            opts,
        )
        return self._one(part, list(chain.from_iterable(outputs)))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        """See torch.distributed.scatter."""
        output, here = outputs[0], opts.rootRank == self._communicator.rank
        written, algorithm = Staged(output, writes=True), self._job.algorithm("scatter")
        read = Staged(concatenate_flat(inputs[0])) if here else None
        part = self._submit(
            lambda: self._communicator.scatter(
                written.array, read.array if read else None, opts.rootRank, algorithm, async_op=True
            ),
            written.copy_back,
            opts,
        )
        return self._one(part, [output])

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
        splits = [
            [rows * _row(tensor) * (staged.array.size // max(1, tensor.numel())) for rows in given] or None
            for given, tensor, staged in (
                (output_splits or (), output, written),
                (input_splits or (), input, read),
            )
        ]
        if (splits[0] is None) != (splits[1] is None):
            splits = [
                sizes or _even(staged, self.size())
                for sizes, staged in zip(splits, (written, read), strict=True)
            ]
        return self._one(self._to_all(written, read, splits[0], splits[1], written.copy_back, opts), [output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """See torch.distributed.all_to_all."""
        sent, received = concatenate_flat(inputs), concatenate_flat(outputs)
        written, read = Staged(received), Staged(sent)
        unit = read.array.size // max(1, sent.numel()) if sent.numel() else 1
        sizes = [[tensor.numel() * unit for tensor in tensors] for tensors in (outputs, inputs)]
        part = self._to_all(written, read, sizes[0], sizes[1], _splitter(received, outputs), opts)
        return self._one(part, list(outputs))

    def _to_all(
        self,
        written: Staged,
        read: Staged,
        output_sizes: list[int] | None,
        input_sizes: list[int] | None,
        finish: Callable[[], None],
        opts: Any,
    ) -> PendingOperation:
        algorithm = self._job.algorithm("all_to_all")
        return self._submit(
            lambda: self._communicator.all_to_all_single(
                written.array, read.array, output_sizes, input_sizes, algorithm, async_op=True
            ),
            finish,
            opts,
        )

    # ---- point to point

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        """See torch.distributed.isend."""

        def one(tensor: torch.Tensor) -> PendingOperation:
            staged = Staged(tensor)
            return self._submit(lambda: self._communicator.isend(staged.array, dst, tag), None, None)

        return self._all(tensors, one)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        """See torch.distributed.irecv."""

        def one(tensor: torch.Tensor) -> PendingOperation:
            staged = Staged(tensor, writes=True)
            return self._submit(
                lambda: self._communicator.irecv(staged.array, src, tag), staged.copy_back, None
            )

        return self._all(tensors, one)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Raise BackendError: receives from any source are not supported."""
        raise BackendError(where="recv", got="no source", expected="the rank that sends")

    def barrier(self, opts: Any = None) -> Work:
        """See torch.distributed.barrier."""
        return self._one(self._submit(lambda: self._communicator.barrier(async_op=True), None, opts), [])

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


def _even(staged: Staged, parts: int) -> list[int]:
    return [staged.array.size // parts] * parts


def _splitter(whole: torch.Tensor, tensors: Tensors) -> Callable[[], None]:
    return lambda: split_into(whole, tensors)
