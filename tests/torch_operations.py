"""A program of three ranks with PyTorch: every operation of the backend, and what it refuses."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from testbed.contrib.torch import Roofline, computing
from testbed.contrib.torch.launch_env import BackendError

NUMBERS = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)


def own(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, rank + 1).to(dtype)


def reductions(rank: int, size: int) -> None:
    ops = dist.ReduceOp
    for dtype in NUMBERS:
        for op, wanted in ((ops.SUM, 6), (ops.PRODUCT, 6), (ops.MIN, 1), (ops.MAX, 3), (ops.AVG, 2)):
            turned = own(rank, 5, 7, dtype=dtype).t()  # not in one piece of memory
            dist.all_reduce(turned, op)
            assert turned.eq(wanted).all(), (dtype, op, turned)
    for op, number in ((ops.BAND, 0), (ops.BOR, 3), (ops.BXOR, 0)):
        bits = own(rank, 3, dtype=torch.int32)
        dist.all_reduce(bits, op)
        assert bits.eq(number).all(), (op, bits)
    some = torch.tensor([True, rank == 0, False])
    every = some.clone()
    dist.all_reduce(some, ops.MAX)
    dist.all_reduce(every, ops.MIN)
    assert some.tolist() == [True, True, False]
    assert every.tolist() == [True, False, False]
    turning = own(rank, 4, dtype=torch.complex64) * 1j
    dist.all_reduce(turning)
    assert turning.eq(6j).all()
    large = own(rank, 300_001)
    dist.all_reduce(large)
    assert large.eq(6).all()
    alone = own(rank, 2)
    dist.reduce(alone, 1)
    assert alone.eq(6 if rank == 1 else rank + 1).all()
    mine = torch.zeros(2)
    dist.reduce_scatter_single(mine, torch.arange(2.0 * size))
    assert mine.equal(size * torch.arange(2.0 * size)[2 * rank : 2 * rank + 2])
    uneven = torch.zeros(rank + 1)
    dist.reduce_scatter(uneven, [torch.full((other + 1,), float(other)) for other in range(size)])
    assert uneven.eq(3.0 * rank).all()


def copies(rank: int, size: int) -> None:
    for dtype in (*NUMBERS, torch.bool, torch.complex64, torch.float8_e4m3fn):
        value = torch.full((3,), rank == 1).to(dtype)
        dist.broadcast(value, 1)
        assert value.float().eq(1).all() if not dtype.is_complex else value.eq(1).all(), dtype
    whole = torch.zeros(2 * size, dtype=torch.bfloat16)
    dist.all_gather_single(whole, own(rank, 2, dtype=torch.bfloat16))
    assert whole.tolist() == [1, 1, 2, 2, 3, 3]
    parts = [torch.zeros(other + 1, 2) for other in range(size)]
    dist.all_gather(parts, own(rank, rank + 1, 2))
    assert [part.unique().tolist() for part in parts] == [[1], [2], [3]]
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "long": "x" * 1000 * rank})
    assert [found["rank"] for found in objects] == [0, 1, 2]
    said = [("from", rank)]
    dist.broadcast_object_list(said, 2)
    assert said == [("from", 2)]
    gathered = [torch.zeros(2, 2) for _ in range(size)] if rank == 1 else None
    dist.gather(own(rank, 2, 2), gathered, 1)
    assert gathered is None or [int(part[0, 0]) for part in gathered] == [1, 2, 3]
    share = torch.zeros(2)
    dist.scatter(share, [own(other, 2) for other in range(size)] if rank == 0 else None, 0)
    assert share.eq(rank + 1).all()


def exchanges(rank: int, size: int) -> None:
    out = torch.zeros(size, 3)
    dist.all_to_all_single(out, torch.arange(size * 3.0).reshape(size, 3) + 100 * rank)
    assert out.equal(torch.stack([torch.arange(3.0) + 3 * rank + 100 * other for other in range(size)]))
    sent = [other + 1 for other in range(size)]
    out = torch.zeros((rank + 1) * size, 2)
    dist.all_to_all_single(out, torch.full((sum(sent), 2), float(rank)), [rank + 1] * size, sent)
    assert out[:, 0].tolist() == [float(other) for other in range(size) for _ in range(rank + 1)]
    parts = [torch.zeros(rank + 1) for _ in range(size)]
    dist.all_to_all(parts, [torch.full((other + 1,), float(rank)) for other in range(size)])
    assert [part.unique().item() for part in parts] == [0, 1, 2]
    following, before = (rank + 1) % size, (rank - 1) % size
    came = torch.zeros(2, 3)
    sending = dist.isend(own(rank, 3), following, tag=5)
    receiving = dist.irecv(came.t()[:, 0], before, tag=5)
    sending.wait()
    receiving.wait()
    assert receiving.is_completed()
    assert receiving.is_success()
    assert came[0].eq(before + 1).all()
    came = torch.zeros(3)
    messages = [
        dist.P2POp(dist.isend, own(rank, 3), following),
        dist.P2POp(dist.irecv, came, before),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    assert came.eq(before + 1).all()


def several(rank: int, size: int) -> None:
    with dist._coalescing_manager(async_ops=True) as together:
        one, other = torch.ones(2), own(rank, 3)
        dist.all_reduce(one)
        dist.all_reduce(other)
    together.wait()
    assert one.eq(3).all()
    assert other.eq(6).all()
    works = [dist.all_reduce(own(rank, 1000), async_op=True) for _ in range(20)]
    assert all(work.wait() for work in reversed(works))
    doubled = (
        dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    )
    assert doubled.wait().eq(2 * size).all()

    def waits_again(done: Any) -> torch.Tensor:
        again = done.value()[0]
        dist.all_reduce(again)
        return again

    assert dist.all_reduce(torch.ones(1), async_op=True).get_future().then(waits_again).wait() == 9
    assert functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD).eq(size).all()
    assert functional.all_gather_single(own(rank, 1), 0, dist.group.WORLD).tolist() == [1, 2, 3]


def groups(rank: int, size: int) -> None:
    pair, single = dist.new_group([2, 0]), dist.new_group([1])
    if rank != 1:
        value = own(rank, 3)
        dist.all_reduce(value, group=pair)
        assert value.eq(4).all()
        dist.broadcast(value, 2, group=pair)
        dist.barrier(group=pair)
    else:
        dist.barrier(group=single)
    assert dist.get_backend(pair) == "testbed" if rank != 1 else True


def hooks(rank: int, size: int) -> None:
    """DistributedDataParallel with buckets that are compressed: what follows on a future waits for more."""
    for hook, state in (
        (default_hooks.fp16_compress_hook, None),
        (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, 1, 2)),
    ):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)))
        model.register_comm_hook(state, hook)
        for _ in range(4):
            model(own(rank, 2, 40)).sum().backward()
        whole = torch.stack([parameter.grad.norm() for parameter in model.parameters()])
        mean = whole.clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        assert mean.allclose(whole)


def as_gloo(rank: int, size: int) -> None:
    """Two ranks train bit for bit what gloo's would: there is one order in which two can add."""
    trained = []
    for backend in ("gloo", "testbed"):
        pair = dist.new_group([0, 2], backend=backend)
        if rank == 1:
            continue
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(30, 300), torch.nn.Tanh(), torch.nn.Linear(300, 30))
        parallel = DistributedDataParallel(model, process_group=pair, bucket_cap_mb=0.01)
        optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            parallel(torch.randn(4, 30) * (rank + 1)).square().mean().backward()
            optimizer.step()
        trained.append([parameter.detach().clone() for parameter in model.parameters()])
    assert rank == 1 or all(map(torch.equal, *trained))


def complaint(call: Callable[[], Any]) -> str:
    """What is said when this is tried."""
    try:
        call()
    except (dist.DistBackendError, BackendError) as error:
        return str(error)
    raise AssertionError("nobody has complained")


def complaints(rank: int, size: int) -> None:
    hurried = dist.new_group(timeout=timedelta(seconds=0.2))
    if rank == 0:
        said = complaint(lambda: dist.all_reduce(torch.ones(1000), group=hurried))
        assert "not done within 0.2 s; waits" in said, said
        assert "rank 1" in said or "rank 2" in said, said
    said = complaint(lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)))
    assert "float8_e4m3fn, expected sum, avg" in said, said
    said = complaint(lambda: dist.recv(torch.ones(1)))
    assert "got no source, expected the rank that sends" in said, said
    said = complaint(lambda: dist.all_reduce(torch.ones(2, device="meta")))
    assert "got strided on meta, expected a dense tensor on the CPU" in said, said
    dist.barrier()


def accelerators_time(rank: int, size: int) -> None:
    dist.barrier()
    began_s = time.monotonic()
    with computing(Roofline(flop_rate=1e9, memory_rate=1e15)) as timed:
        product = torch.ones(100, 500) @ torch.ones(500, 1000)
        assert time.monotonic() - began_s < 0.1 or timed.pending_s  # nothing has been slept yet
        dist.all_reduce(product)
        assert time.monotonic() - began_s >= 0.1
    assert abs(timed.total_s - 2 * 100 * 500 * 1000 / 1e9) < 1e-4, timed.total_s
    mesh = init_device_mesh("cpu", (size,))
    parts = distribute_tensor(torch.ones(500, 900), mesh, [Shard(1)])
    whole = distribute_tensor(torch.ones(100, 500), mesh, [Replicate()])
    with computing(Roofline(flop_rate=1e12, memory_rate=1e18)) as timed:
        whole @ parts
    assert abs(timed.total_s - 2 * 100 * 500 * 300 / 1e12) < 1e-9, timed.total_s
    assert Roofline.of("h100").flop_rate == 989e12 * 0.4
    assert Roofline(1e12, 1e9).seconds(1e9, 2e6) == 2e-3


def main() -> None:
    dist.init_process_group("testbed")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert size == 3
    for part in (
        reductions,
        copies,
        exchanges,
        several,
        groups,
        hooks,
        as_gloo,
        complaints,
        accelerators_time,
    ):
        part(rank, size)
        print(part.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
