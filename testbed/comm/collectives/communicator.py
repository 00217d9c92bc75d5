"""Collectives over a transport, under torch.distributed's names, on numpy arrays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from testbed.comm.collectives.algorithm_selection import TuningTable
from testbed.comm.collectives.all_to_all import DispatchCombine
from testbed.comm.collectives.arrays import (
    Array,
    Reduction,
    check_array,
    finish,
    require_array,
)
from testbed.comm.collectives.failure_scopes import Vote
from testbed.comm.collectives.group import COMMUNICATORS, WORLD, RankGroup
from testbed.comm.collectives.progress_engine import CollectiveTimeout, Engine, Work
from testbed.comm.collectives.registry import AUTO, Algorithm, Collective, collective_of
from testbed.comm.flight_recorder import Recorder
from testbed.comm.transport import BEST_EFFORT, TrafficClass, Transport


class Communicator(DispatchCombine):
    """Ranks that execute collectives together: all ranks of a transport, or some of them after `split`.

    Ranks are numbered from 0, and every rank calls the same collectives in the same order. Arrays are C-contiguous,
    of one of `DTYPES`, or int8, uint8 or int16; otherwise ValueError or TypeError is raised. All operations return a
    Work, which is already done unless `async_op` is set; any number may be in flight.

    Operations progress only inside calls of this communicator, or of others split from it: `wait` of any Work,
    `sleep`, `progress`, or any blocking operation. There is one communicator per transport; `split` makes others. All
    calls except `abort` must come from one thread.

    A failed operation fails all operations of its communicator on this rank, and no others. A lost peer fails all
    communicators that contain it. The contents of their arrays are then undefined; `shrink` makes a communicator of
    the surviving ranks.

    Args:
        transport: Connects the ranks.
        groups: A number for each rank's building; None: all ranks are in one building. Hierarchical algorithms and
            `auto` use it. A ring follows the order of ranks, so it crosses buildings least if each building's ranks are
            consecutive.
        timeout_s: Timeout of every operation, from its start, unless the operation has its own.
        traffic: Class of all its messages, which use connections of their own.
        tuning: Table from which `auto` chooses.
        name: Name for error messages.
        recorder: Records operations of this communicator and of all split from it.
    """

    def __init__(
        self,
        transport: Transport,
        groups: Sequence[int] | None = None,
        timeout_s: float = 30.0,
        *,
        traffic: TrafficClass | None = None,
        tuning: TuningTable | None = None,
        name: str = "",
        recorder: Recorder | None = None,
    ) -> None:
        if groups is not None and len(groups) != transport.size:
            raise ValueError(f"groups: got {len(groups)} entries, expected one per rank, {transport.size}")
        buildings = tuple(groups) if groups is not None else (0,) * transport.size
        engine = Engine(transport, recorder)
        ranks = range(transport.size)
        traffic, tuning = traffic or BEST_EFFORT, tuning or TuningTable()
        super().__init__(engine, ranks, buildings, timeout_s, traffic, name, WORLD, tuning)
        self._next_number = [1]  # shared by all split from this one

    # ---- groups of ranks

    def split(
        self,
        ranks: Sequence[int],
        name: str = "",
        *,
        timeout_s: float | None = None,
        traffic: TrafficClass | None = None,
    ) -> Communicator | None:
        """Make a communicator of these ranks (numbered as in this one), in this order; returns None on all others.

        Every rank of this communicator calls it; those outside may pass any ranks, such as those of their own new
        group. The call takes one small all-reduce. Settings that are not given are inherited from this communicator.
        """
        if len(set(ranks)) != len(ranks) or any(not 0 <= rank < self.size for rank in ranks):
            raise ValueError(f"ranks: got {list(ranks)}, expected distinct ranks of 0 to {self.size - 1}")
        # a number that no rank has used, so that messages of different communicators never mix
        number = np.array(self._next_number, dtype=np.int64)
        self.all_reduce(number, op="max", algorithm="halving_doubling")
        self._next_number[0] = int(number[0]) + 1
        if self._next_number[0] > COMMUNICATORS:
            raise ValueError(f"split: got {COMMUNICATORS} communicators already, expected fewer")
        if self.rank not in ranks:
            return None
        return self.split_as(int(number[0]), ranks, name, timeout_s=timeout_s, traffic=traffic)

    def split_as(
        self,
        number: int,
        ranks: Sequence[int],
        name: str = "",
        *,
        timeout_s: float | None = None,
        traffic: TrafficClass | None = None,
        fails_with: Sequence[int] | None = None,
    ) -> Communicator:
        """Make a communicator as `split` does, but without messages: only members call it, and other ranks may be lost.

        Args:
            number: At least 1, the same on all members, and unique among the communicators that any of them is in. A
                rank that uses `split_as` must not use `split`.
            ranks: The members, numbered as in this communicator.
            name, timeout_s, traffic: See `Communicator`; by default those of this communicator.
            fails_with: Ranks whose loss ends the communicator, because it sends to no others; None: all members.
        """
        if not 0 < number < COMMUNICATORS:
            raise ValueError(f"number: got {number}, expected 1 to {COMMUNICATORS - 1}")
        made = Communicator.__new__(Communicator)
        RankGroup.__init__(
            made,
            self._engine,
            tuple(self.ranks[rank] for rank in ranks),
            tuple(self.groups[rank] for rank in ranks),
            self.timeout_s if timeout_s is None else timeout_s,
            self.traffic if traffic is None else traffic,
            name or self.name,
            number,
            self.tuning,
            None if fails_with is None else tuple(self.ranks[rank] for rank in fails_with),
        )
        made._next_number = self._next_number
        return made

    # ---- after a failure

    def agree(self, flags: int = -1, timeout_s: float | None = None) -> int:
        """Return the AND of all living members' flags: the same value on all, even if members die (`MPIX_Comm_agree`).

        This works on a communicator that has failed or was aborted. A rank that learns of a decision and dies at once
        may have been the only one to learn it. Raises CollectiveTimeout, which names the missing members.
        """
        return self._agree(Vote(flags), "agree", timeout_s).flags

    def shrink(
        self, exclude: Sequence[int] = (), name: str = "", timeout_s: float | None = None
    ) -> Communicator:
        """Make a communicator of the surviving members, in their order; this communicator ends.

        As with `MPIX_Comm_shrink`, all living members call it and agree on who has failed. `exclude` names further
        members to leave out, which do not call it, as in `ncclCommShrink`; a rank that any member excludes is left
        out. Operations in flight are first aborted on all members (`NCCL_SHRINK_ABORT`), which raises Revoked
        there.
        """
        excluded = [self.ranks[self._check_rank("exclude", rank)] for rank in exclude]
        if self.rank in exclude:
            raise ValueError(f"exclude: got this rank, {self.rank}, expected others")
        scopes = self._engine.scopes
        lost = self._scope.ranks & set(scopes.lost)
        scopes.revoke(self._scope, "it shrinks to the surviving ranks")
        scopes.process_pending()
        vote = self._agree(Vote(-1, frozenset([*excluded, *lost]), self._next_number[0]), "shrink", timeout_s)
        self._next_number[0] = vote.number + 1
        living = [rank for rank, transport_rank in enumerate(self.ranks) if transport_rank not in vote.out]
        return self.split_as(vote.number, living, name)

    def _agree(self, vote: Vote, operation: str, timeout_s: float | None) -> Vote:
        self._agreements += 1
        engine, timeout_s = self._engine, self.timeout_s if timeout_s is None else timeout_s
        agreement = engine.scopes.agree(self._scope, self._agreements, vote)
        deadline_s = time.monotonic() + timeout_s
        while agreement.decided is None:
            engine.check(None)
            left_s = deadline_s - engine.transport.now_s
            if left_s <= 0:
                name = f"{operation} #{self._agreements}"
                raise CollectiveTimeout(name, engine.transport.rank, [], agreement.missing_members, timeout_s)
            engine.progress(left_s)
        return agreement.decided

    # ---- reductions

    def all_reduce(
        self,
        array: Array,
        op: str | Reduction = "sum",
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Reduce `array` in place over all ranks. Algorithms: `registry.ALL_REDUCE.algorithms`."""
        check_array(array, "array", writes=True)
        flat = array.reshape(-1)
        plan = self._plan("all_reduce", algorithm, array.nbytes)
        end = partial(finish, op, flat, self.size)
        return self._execute("all_reduce", plan, array, flat, flat, async_op, timeout_s, op, end)

    def reduce_scatter_tensor(
        self,
        output: Array,
        input: Array,
        op: str | Reduction = "sum",
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Reduce `input` (size x output's elements) over all ranks; rank i's `output` gets the i-th part."""
        check_array(output, "output", writes=True)
        check_array(input, "input", like=output, numel=output.size * self.size)
        source, flat = input.reshape(-1), output.reshape(-1)
        plan = self._plan("reduce_scatter", algorithm, output.nbytes)
        scratch = np.empty_like(source) if self.size > 1 else source

        def end() -> None:
            flat[:] = scratch[self.rank * output.size : (self.rank + 1) * output.size]
            finish(op, flat, self.size)

        name = "reduce_scatter_tensor"
        return self._execute(name, plan, input, source, scratch, async_op, timeout_s, op, end)

    def reduce(
        self,
        array: Array,
        dst: int,
        op: str | Reduction = "sum",
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Reduce all ranks' `array` into that of rank `dst`; the others' arrays are unchanged."""
        root = self._check_rank("dst", dst)
        check_array(array, "array", writes=self.rank == root)
        flat = array.reshape(-1)
        plan = self._plan("reduce", algorithm, array.nbytes, root)
        target = flat if self.rank == root else np.empty_like(flat)
        end = partial(finish, op, flat, self.size) if self.rank == root else None
        return self._execute("reduce", plan, array, flat, target, async_op, timeout_s, op, end)

    # ---- copies

    def all_gather_into_tensor(
        self,
        output: Array,
        input: Array,
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Gather every rank's `input`, in rank order, into every rank's `output` (size x input's elements)."""
        check_array(output, "output", writes=True)
        check_array(input, "input", like=output)
        check_array(output, "output", numel=input.size * self.size)
        flat = output.reshape(-1)
        flat[self.rank * input.size : (self.rank + 1) * input.size] = input.reshape(-1)
        plan = self._plan("all_gather", algorithm, input.nbytes)
        return self._execute("all_gather_into_tensor", plan, input, flat, flat, async_op, timeout_s)

    def broadcast(
        self,
        array: Array,
        src: int,
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Copy rank `src`'s `array` into every rank's."""
        root = self._check_rank("src", src)
        check_array(array, "array", writes=self.rank != root)
        flat = array.reshape(-1)
        plan = self._plan("broadcast", algorithm, array.nbytes, root)
        return self._execute("broadcast", plan, array, flat, flat, async_op, timeout_s)

    def gather(
        self,
        output: Array | None,
        input: Array,
        dst: int,
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Gather all `input`, in rank order, into rank `dst`'s `output` (size x input's elements; None elsewhere)."""
        root = self._check_rank("dst", dst)
        check_array(input, "input")
        if self.rank == root:
            output = require_array(output, "output", "on the rank that gathers")
            check_array(output, "output", writes=True, like=input, numel=input.size * self.size)
            flat = output.reshape(-1)
        else:
            flat = np.empty(input.size * self.size, input.dtype)
        flat[self.rank * input.size : (self.rank + 1) * input.size] = input.reshape(-1)
        plan = self._plan("gather", algorithm, input.nbytes, root)
        return self._execute("gather", plan, input, flat, flat, async_op, timeout_s)

    def scatter(
        self,
        output: Array,
        input: Array | None,
        src: int,
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Scatter rank `src`'s `input` (size x output's elements; None elsewhere) in rank order into each `output`."""
        root = self._check_rank("src", src)
        check_array(output, "output", writes=True)
        if self.rank == root:
            input = require_array(input, "input", "on the rank that scatters")
            check_array(input, "input", like=output, numel=output.size * self.size)
            flat = input.reshape(-1)
        else:
            flat = np.empty(output.size * self.size, output.dtype)
        plan = self._plan("scatter", algorithm, output.nbytes, root)

        def end() -> None:
            output.reshape(-1)[:] = flat[self.rank * output.size : (self.rank + 1) * output.size]

        return self._execute("scatter", plan, output, flat, flat, async_op, timeout_s, end=end)

    # ---- any collective

    def collective(
        self,
        collective: str | Collective,
        output: Array,
        input: Array,
        op: str | Reduction = "sum",
        algorithm: str | Algorithm = AUTO,
        async_op: bool = False,
        timeout_s: float | None = None,
        root: int = 0,
    ) -> Work:
        """Execute any collective by its definition: from the blocks in `input` to the blocks in `output`.

        `input` and `output` may be one array if both have the same blocks. The whole array is staged in separate
        memory; only the part in use is touched. Collectives with uneven rows are not supported.
        """
        known = collective_of(collective)
        if known.uneven:
            raise ValueError(f"collective: got {known.name}, expected one with a method for its rows")
        before, after = (side(self.rank, self.size, root) for side in (known.before, known.after))
        check_array(output, "output", writes=bool(after))
        check_array(input, "input", like=output)
        part = max(input.size // max(1, len(before)), output.size // max(1, len(after)))
        check_array(input, "input", numel=part * len(before))
        check_array(output, "output", numel=part * len(after))
        plan = self._plan(known, algorithm, part * output.itemsize, root)
        whole = np.empty((known.blocks(self.size), part), output.dtype)
        whole[list(before)] = input.reshape(len(before), part)

        def end() -> None:
            output.reshape(len(after), part)[:] = whole[list(after)]
            if known.reduces:
                finish(op, output.reshape(-1), self.size)

        flat = whole.reshape(-1)
        reduction = op if known.reduces else None
        return self._execute(known.name, plan, input, flat, flat, async_op, timeout_s, reduction, end)
