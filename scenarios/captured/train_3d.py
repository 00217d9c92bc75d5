"""Pipeline stages, sharded data parallelism (FSDP2), tensor with sequence parallelism (DTensor); any of them alone too.

torchrun --nnodes 8 --nproc-per-node 8 train_3d.py --model 70b --pipeline 4 --shard 4 --tensor 4
"""

import argparse
import os

import torch
import torch.distributed as dist
from llama import MODELS, Llama, loss_of
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, default="tiny")
parser.add_argument("--microbatches", type=int, default=4)
parser.add_argument("--batch", type=int, default=1, help="sequences in a microbatch")
parser.add_argument("--sequence", type=int, default=256)
parser.add_argument("--pipeline", type=int, default=1)
parser.add_argument("--shard", type=int, default=1)
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--schedule", default="1F1B", help="1F1B, Interleaved1F1B, ZBVZeroBubble")
asked = parser.parse_args()


def split_tensors(model: Llama, mesh: DeviceMesh) -> None:
    """Tensor parallelism; between its layers tokens are split along the sequence."""
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(
        model, mesh, {key: how for key, how in plan.items() if getattr(model, key) is not None}
    )
    for layer in model.layers.values():
        parallelize_module(
            layer,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward.w3": ColwiseParallel(),
            },
        )


def prepared(model: Llama) -> Llama:
    """As this mesh has it."""
    if asked.tensor > 1:
        split_tensors(model, mesh["tensor"])
    if asked.shard > 1:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        whole = asked.pipeline == 1  # stages keep their parameters until the step ends
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh["shard"], mp_policy=policy, reshard_after_forward=whole)
        fully_shard(model, mesh=mesh["shard"], mp_policy=policy, reshard_after_forward=whole)
    else:
        model.to(torch.bfloat16)
    return model.to_empty(device=device)


dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
mesh = init_device_mesh(
    "cuda", (asked.pipeline, asked.shard, asked.tensor), mesh_dim_names=("pipeline", "shard", "tensor")
)
sizes = MODELS[asked.model]
tokens = torch.randint(0, sizes.vocab_size, (asked.batch * asked.microbatches, asked.sequence), device=device)
if asked.pipeline == 1:
    with torch.device("meta"):
        model = Llama(sizes)
    models = [prepared(model)]
else:
    kind = get_schedule_class(asked.schedule)
    looped = 2 if issubclass(kind, PipelineScheduleMulti) else 1
    count, own = asked.pipeline * looped, mesh["pipeline"].get_local_rank()
    numbers = (
        [own, count - 1 - own]
        if asked.schedule.startswith("ZBV")
        else [own + n * asked.pipeline for n in range(looped)]
    )
    stages, models = [], []
    for number in numbers[:looped]:
        with torch.device("meta"):
            model = Llama(sizes, number * sizes.n_layers // count, (number + 1) * sizes.n_layers // count)
        models.append(prepared(model))
        stages.append(PipelineStage(models[-1], number, count, device, group=mesh.get_group("pipeline")))
    given = stages if looped > 1 else stages[0]
    schedule = kind(given, asked.microbatches, loss_fn=loss_of)
optimizer = torch.optim.AdamW([one for model in models for one in model.parameters()], lr=3e-4)
for step in range(10):
    if asked.pipeline == 1:
        for part in tokens.split(asked.batch):
            loss_of(models[0](part), part).backward()
    else:
        given = (tokens,) if 0 in numbers else ()
        schedule.step(*given, target=tokens if count - 1 in numbers else None)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
